//! The administrator's rules: which users may have rings on which interfaces, and how many.

use rustix::io::Errno;

use super::{Refused, Who};

/// All rules, and the limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    pub rules: Vec<Rule>,
    /// Rings of one user at a time.
    pub most_rings: u32,
    /// Flows of one ring.
    pub most_flows: u32,
    /// Bytes that the rings of one user hold frames in.
    pub most_memory: u64,
}

/// These users, and the members of these groups, may have rings on these interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// By name; `*` is all.
    pub interfaces: Vec<String>,
    pub users: Vec<u32>,
    pub groups: Vec<u32>,
}

/// Rings of one user on one interface. So many of all users can be there (`MOST_SHARERS` of `ring`) that others have room.
const MOST_OF_ONE: usize = 4;

/// The rings and memory of a user, also of rings that have ended and whose process keeps their memory.
#[derive(Clone, Copy, Default)]
pub struct Used {
    pub rings: usize,
    pub memory: u64,
    /// Rings on the interface in question.
    pub there: usize,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { rules: Vec::new(), most_rings: 16, most_flows: 1024, most_memory: 2 << 30 }
    }
}

impl Rules {
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Is there any rule for who asks?
    pub fn name(&self, who: &Who) -> bool {
        self.rules.iter().any(|rule| rule.names(who))
    }

    /// # Errors
    /// EPERM: no rule allows it; EDQUOT: the user has enough.
    pub fn check(&self, who: &Who, interface: &str, asked: u64, used: Used) -> Result<(), Refused> {
        let uid = who.uid;
        let allows = |rule: &Rule| rule.names(who) && rule.covers(interface);
        if !self.rules.iter().any(allows) {
            let why = format!("no [[grant]] in vmad.toml allows user {uid} a ring on {interface}");
            return Err(Refused::new(Errno::PERM, why));
        }
        let Used { rings, memory, there } = used;
        if there >= MOST_OF_ONE {
            let why = format!("user {uid} has {there} rings on {interface}, which is the limit");
            return Err(Refused::new(Errno::DQUOT, why));
        }
        if rings >= self.most_rings as usize {
            let why = format!("user {uid} has {rings} rings, which is the limit (max_rings)");
            return Err(Refused::new(Errno::DQUOT, why));
        }
        let (all, most) = (memory.saturating_add(asked) >> 20, self.most_memory >> 20);
        if all > most {
            let why = format!(
                "the rings of user {uid} would hold {all} MiB, the limit is {most} (max_ring_memory_mib)"
            );
            return Err(Refused::new(Errno::DQUOT, why));
        }
        Ok(())
    }
}

impl Rule {
    fn covers(&self, interface: &str) -> bool {
        self.interfaces.iter().any(|name| name == "*" || name == interface)
    }

    fn names(&self, who: &Who) -> bool {
        self.users.contains(&who.uid) || self.groups.iter().any(|gid| who.is_in(*gid))
    }
}
