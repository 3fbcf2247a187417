//! Giving a stream to the kernel while it lives: its connection is installed into the shadow by
//! TCP_REPAIR, which goes on where the engine stopped. For what we cannot serve (another process
//! that shares the descriptor, stdio), and at exit, when nobody is left to serve it.

use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, Ordering};

use libvma_engine::tcp::State as TcpState;
use rustix::net::Shutdown;

use super::{
    Guard, Phase, Stack, WhyOs, is_established, local, set_phase, unaccepted, view, watch,
};
use crate::log::log_line;
use crate::shard::SocketId;
use crate::shard::tcp::{Cutting, Orphan};
use crate::socket::State;
use crate::sys::repair::{self, Snapshot, Timestamps, WindowScale};
use crate::sys::{Fd, fd, shadow, thread};

/// Makes the shadow what the socket is. False: it cannot be done now, the socket stays ours. After
/// true the caller forgets it.
pub fn give_back(stack: &Stack, id: SocketId, why: WhyOs) -> bool {
    watch::withhold(stack, id);
    match why {
        WhyOs::ProcessEnds => unaccepted::hand_over_shared(stack, id),
        _ => unaccepted::hand_over(stack, id),
    }
    let Ok(mut state) = stack.shard.lock() else { return false };
    let Some(view) = view(&mut state, id) else { return true };
    hand_over(stack, state, id, view.shadow, why)
}

/// As [`give_back`], to a shadow whose number the socket does not know any more.
pub(super) fn give_back_to(stack: &Stack, id: SocketId, shadow: i32, why: WhyOs) -> bool {
    watch::withhold(stack, id);
    let Ok(state) = stack.shard.lock() else { return false };
    hand_over(stack, state, id, shadow, why)
}

/// Under one holding of the lock: as long as the socket is ours, its number is.
fn hand_over(stack: &Stack, mut state: Guard<'_>, id: SocketId, shadow: i32, why: WhyOs) -> bool {
    let Some(view) = view(&mut state, id) else { return true };
    if view.has_pipe {
        drop(state);
        return local::end::give_back_to(stack, id, shadow, why);
    }
    // At the end of the process the kernel sends FIN at once, whose answer tells as much, unless
    // there is data before it.
    let over = state.connection(id).is_some_and(|connection| is_over(connection.state()));
    let probed = is_established(&mut state, id)
        && !over
        && (why != WhyOs::ProcessEnds
            || state.connection(id).is_some_and(|connection| connection.unacknowledged() > 0));
    let given = match view.phase {
        Phase::Fresh => true,
        Phase::Listening { .. } => {
            end_listening(&mut state, id);
            true
        }
        Phase::Connecting | Phase::Connected => install(&mut state, id, shadow),
    };
    if given {
        if probed {
            repair::probe(shadow);
        }
        // What the rings got before the flows went is lost, as on the wire; those who wait look
        // again, and find the kernel's socket.
        state.catch_up();
        if let Some((_, socket)) = state.socket(id) {
            socket.state = State::Os(why);
        }
        set_phase(&mut state, id, Phase::Fresh);
        state.announce(id);
        state.depart(id);
    } else {
        watch::resume(&mut state, id);
    }
    drop(state);
    if given {
        log_line!(Debug, "fd {shadow} is served by the kernel: {why}");
    }
    given
}

/// Our flows of a listener go; the connections that it made keep theirs.
pub(super) fn end_listening(state: &mut Guard<'_>, id: SocketId) {
    let flows = state.socket(id).map(|(_, socket)| core::mem::take(&mut socket.flows));
    let local = state.socket(id).and_then(|(_, socket)| socket.local);
    if state.is_listening(id)
        && let Some(local) = local
    {
        // What arrived is accepted or reset before the flows go.
        state.catch_up();
        state.end_listening(id);
        state.steer_accepted(local);
    }
    for (ring, flow) in flows.unwrap_or_default() {
        state.remove_flow(ring, flow);
    }
}

fn install(state: &mut Guard<'_>, id: SocketId, descriptor: i32) -> bool {
    // The kernel sees nothing of what our rings have.
    state.catch_up();
    state.acknowledge(id);
    state.run_tcp();
    let installed = state.transplant(id, |cutting| install_into(descriptor, cutting));
    installed.unwrap_or(true)
}

/// True also if there is nothing left to install.
pub(super) fn install_into(descriptor: i32, cutting: &Cutting<'_>) -> bool {
    let Some(result) = snapshot(cutting, |snapshot| repair::install(descriptor, snapshot)) else {
        return !matches!(cutting.connection.state(), TcpState::SynSent | TcpState::SynReceived);
    };
    if let Err(error) = &result {
        log_line!(Debug, "fd {descriptor}: {} failed with errno {}", error.call, error.errno);
        warn_once_of(error.errno);
    } else if cutting.connection.is_reading_ended() || is_over(cutting.connection.state()) {
        fd::with_borrowed(descriptor, |fd| rustix::net::shutdown(fd, Shutdown::Read));
    }
    // Of what is over the program has had everything.
    let is_dispensable = is_over(cutting.connection.state()) && cutting.unread.is_empty();
    result.is_ok() || is_dispensable
}

/// What was offloaded before the process gave up its rights cannot be given to anybody any more.
fn warn_once_of(errno: i32) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if errno == libc::EPERM && !WARNED.swap(true, Ordering::Relaxed) {
        log_line!(
            Warning,
            "TCP connections cannot be given to the kernel, nor to other processes: \
             CAP_NET_ADMIN is missing"
        );
    }
}

fn is_over(state: TcpState) -> bool {
    matches!(state, TcpState::TimeWait | TcpState::Closed)
}

/// None: there is nothing to give to the kernel in this state, or it cannot be given.
///
/// Of a connection that is over the next holder of the descriptor reads the rest, and then the end, or the
/// error that this program has not learnt of.
fn snapshot<T>(cutting: &Cutting<'_>, with: impl FnOnce(&Snapshot<'_>) -> T) -> Option<T> {
    let connection = cutting.connection;
    let parts = connection.transplant(cutting.now);
    let state = match connection.state() {
        TcpState::Established => repair::State::Established,
        TcpState::FinWait1 => repair::State::FinWait1,
        TcpState::FinWait2 => repair::State::FinWait2,
        TcpState::CloseWait => repair::State::CloseWait,
        TcpState::Closing => repair::State::Closing,
        TcpState::LastAck => repair::State::LastAck,
        TcpState::TimeWait => repair::State::TimeWait,
        TcpState::Closed if parts.was_established => repair::State::Closed,
        TcpState::SynSent | TcpState::SynReceived | TcpState::Closed => return None,
    };
    let most = connection.settings().max_segment.map_or(u32::MAX, u32::from);
    let segment_size = u16::try_from(parts.peer_mss.min(most)).unwrap_or(u16::MAX);
    let recent = parts.recent_timestamp;
    let (unacknowledged, unsent) = match is_over(connection.state()) {
        true => Default::default(),
        false => connection.unacknowledged_bytes(),
    };
    let scale = |(send, receive)| WindowScale { send, receive };
    Some(with(&Snapshot {
        local: cutting.key.local_endpoint(),
        remote: cutting.key.remote_endpoint(),
        state,
        send_unacknowledged: parts.snd_una.raw(),
        unacknowledged,
        unsent,
        send_window: parts.snd_wnd,
        largest_send_window: parts.max_snd_wnd,
        receive_next: parts.rcv_nxt.raw(),
        receive_window: parts.rcv_wnd,
        unread: &[cutting.unread],
        segment_size,
        window_scale: parts.scales.map(scale),
        sack: parts.sack,
        timestamps: parts.timestamp.map(|value| Timestamps { value, recent }),
        failed: connection.has_error() && !parts.peer_closed,
        is_held: cutting.is_held,
    }))
}

/// All stream sockets.
pub fn streams(stack: &Stack) -> Vec<SocketId> {
    let Ok(mut state) = stack.shard.lock() else { return Vec::new() };
    let mut ids = state.ids();
    ids.retain(|id| state.socket(*id).is_some_and(|(_, socket)| socket.stream.is_some()));
    ids
}

/// Those that were connected.
pub fn connections(stack: &Stack) -> Vec<SocketId> {
    let mut ids = streams(stack);
    let Ok(mut state) = stack.shard.lock() else { return Vec::new() };
    ids.retain(|id| is_established(&mut state, *id));
    ids
}

/// The process ends and the kernel did not take the connection: it is closed here.
pub fn end(stack: &Stack, id: SocketId) {
    if let Ok(mut state) = stack.shard.lock() {
        state.orphan_connection(id, None);
    }
}

/// At exit: the kernel finishes what programs have closed and what is not over. What it does not
/// take gets a little time.
pub fn finish_orphans(stack: &Stack) {
    let Ok(mut state) = stack.shard.lock() else { return };
    if !state.has_tcp() {
        return;
    }
    state.catch_up();
    state.run_tcp();
    for orphan in state.orphans() {
        hand_over_orphan(&mut state, orphan);
    }
    for _ in 0..PATIENCE_MILLIS {
        if !state.has_unfinished_orphans() {
            return;
        }
        drop(state);
        thread::nap_millis(1);
        let Ok(again) = stack.shard.lock() else { return };
        state = again;
        state.catch_up();
        state.run_tcp();
    }
}

/// How long a process stays for connections that the kernel does not take.
const PATIENCE_MILLIS: u32 = 2000;

/// The kernel finishes a connection that its program has closed.
pub(super) fn hand_over_orphan(state: &mut Guard<'_>, orphan: Orphan) {
    // Closed last, which has the kernel send the end: by then the answer goes to the kernel.
    let mut socket = None;
    state.transplant_orphan(orphan, |cutting| {
        socket = fresh_socket(cutting.key.local_endpoint());
        socket.as_ref().is_some_and(|socket| install_into(socket.raw(), cutting))
    });
}

/// A socket of the family of a connection's own end.
fn fresh_socket(local: SocketAddrV4) -> Option<Fd> {
    let socket = shadow::stream_for(local).ok()?;
    // A server that is started again binds its port with SO_REUSEADDR: what is left of connections
    // must allow that, too.
    shadow::set_int_option(socket.raw(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    Some(socket)
}

#[cfg(test)]
mod tests;
