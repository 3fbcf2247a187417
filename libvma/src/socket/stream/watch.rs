//! Connections as the daemon is told of them (`agent`), which resets their peers when the process dies
//! without a word. Only those whose bytes go over an interface's rings: the kernel ends its own.
//!
//! **A connection that becomes the kernel's must be told to be over before it is**, or the daemon would
//! reset it though another process goes on with it. So whoever installs one [`withhold`]s it first, and a
//! process that ends, or may become another program, takes its leave before it installs anything
//! ([`end`], [`withdraw`]).

use std::collections::VecDeque;
use std::sync::Arc;

use libvma_dev::{agent, ipv6_loopback};
use libvma_engine::tcp::State as TcpState;

use super::{Guard, Stack};
use crate::agent::wards::Wards;
use crate::agent::{Agent, Asked, Source};
use crate::process::inherit;
use crate::shard::SocketId;
use crate::shard::tcp::{Pending, Report};
use crate::sys::wait::{PollSet, Waker};

/// Reports taken under one lock.
const BATCH: usize = 64;

/// What a process needs to tell the daemon.
pub struct Watch {
    agent: Agent,
    pending: Option<Arc<Pending>>,
}

impl Watch {
    /// With files in this directory, unless it is empty; the waker is the internal thread's, the wards are those
    /// of a forked child's parent.
    pub fn new(
        directory: &str,
        internal_waker: Option<&Arc<Waker>>,
        wards: Option<&'static Wards>,
    ) -> Watch {
        let agent = Agent::new(directory, wards);
        let internal_waker = internal_waker.filter(|_| agent.is_wanted());
        let pending = internal_waker.map(|waker| Arc::new(Pending::new(Arc::clone(waker))));
        Watch { agent, pending }
    }

    /// If the process is killed, does `vmad` or the parent tell the peers of its connections of this family?
    pub fn is_guarded(&self, is_ipv6: bool) -> bool {
        self.agent.is_guarded(is_ipv6)
    }

    pub fn pending(&self) -> Option<Arc<Pending>> {
        self.pending.clone()
    }
}

/// Asks for a guard ([`Watch::is_guarded`]), who is there a moment later.
pub fn ask_for_guard(stack: &Stack) {
    match stack.watch.agent.ask() {
        Asked::Parent => inherit::call_parent(),
        Asked::Daemon => stack.wake_internal_thread(),
        Asked::Already => {}
    }
}

/// Before the internal thread sleeps: what it is to wait for, always one entry, and how long.
pub fn prepare(stack: &Stack, set: &mut PollSet) -> Option<u64> {
    stack.watch.agent.prepare(&Connections(stack), set)
}

/// In the internal thread: does what is due.
pub fn attend(stack: &Stack, readable: bool) {
    stack.watch.agent.attend(readable, &mut Connections(stack));
}

/// The socket's connection is about to become the kernel's. Not under the shard's lock.
pub fn withhold(stack: &Stack, id: SocketId) {
    let known = stack.shard.lock().is_ok_and(|mut state| state.withhold_connection(id));
    if known {
        stack.watch.agent.settle(&mut Connections(stack));
    }
}

/// A connection of the kernel's is served from here on: the parent knows of it before its program goes on.
pub fn taken_over(stack: &Stack) {
    stack.watch.agent.settle(&mut Connections(stack));
}

/// The kernel did not take it.
pub fn resume(state: &mut Guard<'_>, id: SocketId) {
    state.resume_watching(id);
}

/// Another program may be about to take the process over.
pub fn withdraw(stack: &Stack) {
    stack.watch.agent.withdraw(&mut Connections(stack));
}

/// The process ends.
pub fn end(stack: &Stack) {
    stack.watch.agent.end(&mut Connections(stack));
}

struct Connections<'a>(&'a Stack);

impl Source for Connections<'_> {
    fn has_connections(&self) -> bool {
        // Whoever has the lock may be making one.
        self.0.shard.try_lock().is_none_or(|state| state.has_tcp())
    }

    fn has_news(&self) -> bool {
        self.0.watch.pending.as_ref().is_some_and(|pending| pending.is_raised())
    }

    fn note_news(&mut self) {
        if let Some(pending) = &self.0.watch.pending {
            pending.lower();
        }
    }

    fn listen(&mut self) {
        if let Ok(mut state) = self.0.shard.lock() {
            state.watch_connections();
        }
    }

    fn stop(&mut self) {
        if let Ok(mut state) = self.0.shard.lock() {
            state.stop_watching();
        }
    }

    fn take(&mut self, process: i32, into: &mut VecDeque<agent::State>) -> bool {
        let Ok(mut state) = self.0.shard.lock() else { return true };
        state.take_reports(
            BATCH,
            |socket| u32::try_from(socket.shadow()).ok(),
            |report| into.push_back(message(process, &report)),
        )
    }

    fn has_ended(&self) -> bool {
        self.0.shard.lock().is_ok_and(|state| state.has_ended_reports())
    }
}

fn message(process: i32, report: &Report) -> agent::State {
    let Report { number, key, state } = report;
    agent::State {
        pid: process,
        fd: *number,
        local: ipv6_loopback::named(key.local_endpoint()),
        peer: ipv6_loopback::named(key.remote_endpoint()),
        state: match state {
            TcpState::Closed => agent::TcpState::Closed,
            TcpState::SynSent => agent::TcpState::SynSent,
            TcpState::SynReceived => agent::TcpState::SynReceived,
            TcpState::Established => agent::TcpState::Established,
            TcpState::FinWait1 => agent::TcpState::FinWait1,
            TcpState::FinWait2 => agent::TcpState::FinWait2,
            TcpState::CloseWait => agent::TcpState::CloseWait,
            TcpState::Closing => agent::TcpState::Closing,
            TcpState::LastAck => agent::TcpState::LastAck,
            TcpState::TimeWait => agent::TcpState::TimeWait,
        },
    }
}

#[cfg(test)]
mod tests;
