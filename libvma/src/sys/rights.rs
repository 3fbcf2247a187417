//! The right to give TCP connections to the kernel, CAP_NET_ADMIN, as a thread has it, lays it down, and gives it up for good
//! (capabilities(7)). Only what the kernel says about this thread: what to do about it is not decided here.

use core::ffi::c_int;

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Uid, geteuid};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// The rights that a hand-over needs: for `repair`, for a listener's port that may be one of root's, and for the program by which the
/// kernel gets connections that wait to be accepted.
const NEEDED: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON);

static ENDING: AtomicBool = AtomicBool::new(false);

/// A thread is about to give the right up: until this is dropped, after its call, no thread relies on the right.
#[derive(Debug)]
pub struct Ending(());

impl Ending {
    pub fn begin() -> Ending {
        ENDING.store(true, Ordering::SeqCst);
        Ending(())
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        ENDING.store(false, Ordering::SeqCst);
    }
}

pub fn are_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
}

/// Has this thread the right, or can it take it back? seteuid(2) away from root only lays it down.
pub fn are_held() -> bool {
    capabilities(None).map_or(true, |sets| sets.permitted.contains(CapabilitySet::NET_ADMIN))
}

/// The rights that a thread took back; it lays them down again when this is dropped.
pub struct Raised(Option<(CapabilitySet, Uid)>);

/// Takes the rights back that the thread has laid down, for what the library does for the program.
pub fn raise() -> Raised {
    let Ok(sets) = capabilities(None) else { return Raised(None) };
    let wanted = sets.permitted.intersection(NEEDED);
    if sets.effective.contains(wanted) {
        return Raised(None);
    }
    let added = wanted.difference(sets.effective);
    let raised = CapabilitySets { effective: sets.effective.union(wanted), ..sets };
    Raised(set_capabilities(None, raised).is_ok().then(|| (added, geteuid())))
}

impl Drop for Raised {
    fn drop(&mut self) {
        let Some((added, user)) = self.0.take() else { return };
        // Another thread may have changed the user of all threads: then the kernel has set what this one has.
        if let Ok(mut sets) = capabilities(None)
            && geteuid() == user
        {
            sets.effective = sets.effective.difference(added);
            // The kernel never refuses a smaller set.
            let _ = set_capabilities(None, sets);
        }
    }
}

/// Real, effective and saved user id.
pub type Users = [libc::uid_t; 3];

/// In the place of an id that stays as it is.
pub const SAME: libc::uid_t = libc::uid_t::MAX;

/// A call that changes user ids (setuid(2), setreuid(2), seteuid(2), setresuid(2)).
#[derive(Clone, Copy)]
pub enum Change {
    All(libc::uid_t),
    RealAndEffective(libc::uid_t, libc::uid_t),
    Each(Users),
}

impl Change {
    /// Is this the end of the rights? So it is when root was one of the three and none of them is afterwards, unless
    /// the thread keeps its capabilities (PR_SET_KEEPCAPS).
    pub fn ends_rights(self) -> bool {
        let before = users();
        let is_root = |users: Users| users.contains(&0);
        is_root(before)
            && !is_root(self.apply(before))
            && !rustix::thread::get_keep_capabilities().unwrap_or(false)
    }

    fn apply(self, [real, effective, saved]: Users) -> Users {
        let or = |wanted, now| if wanted == SAME { now } else { wanted };
        match self {
            // Whoever is not root changes the effective one alone.
            Change::All(user) if effective == 0 => [user; 3],
            Change::All(user) => [real, user, saved],
            Change::RealAndEffective(to_real, to_effective) => {
                let effective = or(to_effective, effective);
                let is_saved = to_real != SAME || to_effective != SAME && to_effective != real;
                [or(to_real, real), effective, if is_saved { effective } else { saved }]
            }
            Change::Each([to_real, to_effective, to_saved]) => {
                [or(to_real, real), or(to_effective, effective), or(to_saved, saved)]
            }
        }
    }
}

fn users() -> Users {
    let [mut real, mut effective, mut saved] = [SAME; 3];
    // SAFETY: getresuid writes three ids that live here.
    let result: c_int = unsafe { libc::getresuid(&mut real, &mut effective, &mut saved) };
    if result == 0 { [real, effective, saved] } else { [SAME; 3] }
}

/// The first half of what capset(2) gets, for capabilities below 32.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Half {
    _effective: u32,
    permitted: u32,
    _inheritable: u32,
}

impl Half {
    /// Does a thread with these sets have no right any more?
    pub fn ends_rights(self) -> bool {
        u64::from(self.permitted) & CapabilitySet::NET_ADMIN.bits() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Users = [0; 3];
    /// As seteuid(2) leaves it.
    const LAID_DOWN: Users = [0, 7, 0];

    #[test]
    fn ids_after_a_call_are_those_of_the_manual_pages() {
        let cases = [
            (Change::All(7), ROOT, [7; 3]),
            (Change::All(7), LAID_DOWN, [0, 7, 0]),
            (Change::RealAndEffective(7, 7), ROOT, [7; 3]),
            (Change::RealAndEffective(SAME, 7), ROOT, [0, 7, 7]),
            (Change::RealAndEffective(SAME, 0), LAID_DOWN, ROOT),
            (Change::RealAndEffective(7, SAME), ROOT, [7, 0, 0]),
            (Change::Each([7, 8, 9]), ROOT, [7, 8, 9]),
            (Change::Each([SAME, 7, SAME]), ROOT, LAID_DOWN),
        ];
        for (number, (change, before, after)) in cases.into_iter().enumerate() {
            assert_eq!(change.apply(before), after, "case {number}");
        }
    }

    #[test]
    fn a_set_without_net_admin_ends_rights() {
        let half = |permitted| Half { _effective: 0, permitted, _inheritable: 0 };
        assert!(half(0).ends_rights() && half(!(1 << 12)).ends_rights());
        assert!(!half(1 << 12).ends_rights());
    }
}
