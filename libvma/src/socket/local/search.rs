//! Connections that were made while a process had not answered yet: their pipes are apart, and are offered when
//! it does.

use super::host::Owner;
use super::{Finder, LinkId, Local, PATIENCE_NANOS, SECOND, open};
use crate::control::rendezvous::{Key, Known};
use crate::shard::SocketId;
use crate::shard::pipe::Offer;
use crate::socket::Stack;
use crate::sys::time::monotonic_nanos;
use crate::sys::wait::poll_now;

use core::sync::atomic::Ordering;

/// A connection that seeks its peer.
pub(super) struct Search {
    socket: SocketId,
    key: Key,
    offer: Offer,
    /// When to ask again which process has the key.
    again: u64,
    /// When it is given up.
    until: u64,
}

/// Longer than a process may take to answer.
const SEARCH_NANOS: u64 = SECOND + SECOND / 4;
/// Before the same process is called again at the earliest.
const DOUBT_NANOS: u64 = 10_000_000;
const MOST: usize = 4096;

/// The socket's pipe is apart: it is offered when the process that has the key answers, and is over if
/// that does not.
pub fn seek(stack: &Stack, socket: SocketId, key: Key, offer: Offer) {
    let Some(mut opened) = open(stack) else { return };
    let Some(finder) = opened.as_mut() else { return };
    let now = monotonic_nanos();
    if finder.searches.len() < MOST {
        let until = now.saturating_add(SEARCH_NANOS);
        finder.searches.push(Search { socket, key, offer, again: now, until });
        finder.pursue(stack, now);
        finder.note_due(stack);
    }
}

/// A link whose peer may be about to offer pipes late, until this time.
pub(super) struct Expected {
    link: LinkId,
    until: u64,
}

/// A caller has just been told of its link, and may have connected before that.
pub(super) fn expect_offers(stack: &Stack, link: LinkId) {
    let until = monotonic_nanos().saturating_add(SECOND);
    if let Ok(mut expected) = stack.local.expected.lock() {
        expected.retain(|one| one.link != link);
        expected.push(Expected { link, until });
    }
}

/// The link's peer has offered a pipe before it connected. So it knows of the link, and offers those of earlier
/// connections now, if there are any.
pub fn offer_came(stack: &Stack, link: LinkId) {
    let Ok(mut expected) = stack.local.expected.lock() else { return };
    if let Some(one) = expected.iter_mut().find(|one| one.link == link) {
        one.until = one.until.min(monotonic_nanos().saturating_add(PATIENCE_NANOS));
    }
}

/// Did a client process get an answer so recently that it may be about to offer pipes of connections that are
/// there already? Calls that wait are answered first, because a client calls before it connects.
pub fn expects_offers(stack: &Stack) -> bool {
    let now = monotonic_nanos();
    look_for_calls(stack, now);
    let Ok(mut expected) = stack.local.expected.lock() else { return false };
    expected.retain(|one| now < one.until);
    !expected.is_empty()
}

/// Answers calls that wait, every 10 ms at most: a client connects 20 ms after its call at the earliest, unless that is
/// answered before.
fn look_for_calls(stack: &Stack, now: u64) {
    let Local { descriptor, looked, .. } = &stack.local;
    if now.saturating_sub(looked.load(Ordering::Relaxed)) < PATIENCE_NANOS / 2 {
        return;
    }
    let descriptor = descriptor.load(Ordering::Acquire);
    // The thread that holds the lock may be answering a call now.
    let Ok(mut slot) = stack.local.finder.lock() else { return };
    looked.store(now, Ordering::Relaxed);
    if let Some(finder) = slot.as_mut()
        && poll_now(descriptor, libc::POLLIN) != 0
    {
        finder.attend(stack);
    }
}

impl Finder {
    /// Goes on with what is sought.
    pub(super) fn pursue(&mut self, stack: &Stack, now: u64) {
        for mut search in core::mem::take(&mut self.searches) {
            let known = self.rendezvous.ask(&mut Owner::new(stack), search.key, now);
            let again = match known {
                Known::Pending { .. } => Some(search.until),
                // An answer that contradicts what is known holds for a moment only.
                Known::Nobody { until } => Some(until.max(now.saturating_add(DOUBT_NANOS)))
                    .filter(|again| again.saturating_sub(now) < SECOND / 4),
                Known::Link(_) => None,
            };
            if let Some(again) = again.filter(|_| now < search.until) {
                search.again = again;
                self.searches.push(search);
                continue;
            }
            let Ok(mut state) = stack.shard.lock() else {
                self.searches.push(search);
                continue;
            };
            let Search { socket, offer, .. } = search;
            let offered = match known {
                Known::Link(link) => state.offer_late(socket, link, offer),
                _ => false,
            };
            if !offered {
                // The pipe is apart, if it is there at all.
                state.withdraw_pipe(socket);
            }
        }
    }

    /// When [`Finder::pursue`] has something to do without an answer.
    pub(super) fn search_due(&self) -> Option<u64> {
        self.searches.iter().map(|search| search.again.min(search.until)).min()
    }
}
