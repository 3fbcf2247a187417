//! recv, recvfrom, recvmsg, read ...: one datagram to the caller, copied once.

use std::io::IoSliceMut;
use std::net::SocketAddrV4;
use std::sync::atomic::Ordering;

use super::block::{Guard, Look, Over, Round, Source, block};
use super::message::ControlWriter;
use super::order::{Front, Left, Origin, Turn, View};
use super::wait::{Patience, Wait};
use super::{Outcome, Socket, Stack, State, WhyOs, filter};
use crate::shard::datagram::Datagram;
use crate::shard::{Direct, Endpoint, SleeperId, SocketId, clock};
use crate::sys::sockaddr::Family;
use crate::sys::thread;
use crate::sys::wait::{PollFd, PollSet};

/// A receive call as the program made it.
pub struct Request<'a, 'b> {
    pub buffers: &'a mut [IoSliceMut<'b>],
    /// MSG_* of the call.
    pub flags: i32,
    /// Room for control messages; None if the call has none.
    pub control: Option<&'a mut [u8]>,
    /// Does the call on the kernel's socket, without blocking: what it took, or errno. With [`Take::Several`] it may take more
    /// than one datagram, if the program has room for them.
    pub os: &'a mut dyn FnMut(Take) -> Result<FromKernel, i32>,
}

/// The number of the kernel's datagrams that a call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    One,
    /// Nothing of ours waits.
    Several,
}

/// Datagrams that were taken from the kernel's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FromKernel {
    pub datagrams: u32,
    /// The bytes of all.
    pub bytes: usize,
}

impl FromKernel {
    /// One datagram of so many bytes.
    pub fn one(bytes: usize) -> FromKernel {
        FromKernel { datagrams: 1, bytes }
    }
}

/// What a receive call delivered.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A datagram of ours.
    Datagram {
        /// The return value.
        len: usize,
        source: SocketAddrV4,
        /// How the socket names the source.
        family: Family,
        /// `msg_flags`.
        flags: i32,
        /// Bytes of control messages written.
        control: usize,
    },
    /// The kernel's socket had it: everything is in place.
    FromOs(FromKernel),
}

/// Flags that change nothing in what a receive call delivers.
const SIMPLE_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_WAITALL;

/// Flags that only the kernel can serve.
const OS_FLAGS: i32 = libc::MSG_ERRQUEUE | libc::MSG_OOB;

pub fn receive(stack: &Stack, id: SocketId, request: Request<'_, '_>) -> Outcome<Received> {
    if request.flags & OS_FLAGS != 0 {
        return Outcome::Os(WhyOs::Arguments);
    }
    match block(stack, &mut Receiving { id, request }, None) {
        Ok(outcome) => outcome,
        Err(Over::TimedOut) => match stack.shard.lock() {
            Ok(state) => eagain(state, id),
            Err(_) => Outcome::Errno(libc::EAGAIN),
        },
        Err(Over::Interrupted) => Outcome::Errno(libc::EINTR),
    }
}

/// A receive call under way.
struct Receiving<'r, 'b> {
    id: SocketId,
    request: Request<'r, 'b>,
}

impl<'a> Source<'a> for Receiving<'_, '_> {
    type Found = Outcome<Received>;

    /// Datagrams that have passed are taken first: if judging always came before, it could fill the queue.
    fn lets_judge(&self, state: &mut Guard<'_>) -> bool {
        filter::forget_held_news(state, self.id);
        state.socket(self.id).is_none_or(|(endpoint, _)| !endpoint.is_readable())
    }

    #[inline]
    fn look(&mut self, stack: &'a Stack, round: Round) -> Look<'a, Outcome<Received>> {
        let Receiving { id, ref mut request } = *self;
        let first = round == Round::First;
        // The shadow was asked in this round and has nothing, or was looked at.
        let mut just_asked = false;
        loop {
            let Ok(mut state) = stack.shard.lock() else { return Look::Found(reentered(request)) };
            match poll(stack, &mut state, id, request, first) {
                Some(Polled::Took(direct)) => {
                    return Look::Found(Outcome::Ours(taken(&mut state, id, direct)));
                }
                Some(Polled::Looked) => {}
                None if first => return Look::Found(Outcome::Os(WhyOs::NotOurs)),
                // Closed by another thread while this one waited: its number may be another file's
                // by now, which is not ours to read from.
                None => return Look::Found(Outcome::Errno(libc::EBADF)),
            }
            let live = stack.shard.is_live();
            let Some((endpoint, socket)) = state.socket(id) else {
                return Look::Found(Outcome::Os(WhyOs::NotOurs));
            };
            if socket.pending_error != 0 {
                endpoint.counters.rx_errors += 1;
                return Look::Found(Outcome::Errno(core::mem::take(&mut socket.pending_error)));
            }
            let withheld = || socket.is_withheld();
            let nonblocking = socket.nonblocking || request.flags & libc::MSG_DONTWAIT != 0;
            let view = View {
                doubtful: !live || first && (withheld() || nonblocking && socket.takes_ipv6()),
                has_local_peers: first && has_local_peers(stack, socket),
                just_asked: core::mem::take(&mut just_asked),
                ratio: stack.config.rx_udp_poll_os_ratio,
                ..view(endpoint, socket)
            };
            socket.order.note_poll();
            match (socket.order.next(&view), socket.state) {
                (Turn::TakeOurs, _) => {
                    endpoint.counters.rx_poll_hits += 1;
                    if endpoint.rx_thread == 0 {
                        endpoint.rx_thread = thread::cached_id();
                    }
                    return Look::Found(take(&mut state, id, request));
                }
                (_, State::Os(why)) if view.front.is_none() => {
                    return Look::Found(Outcome::Os(why));
                }
                // Nothing can have arrived. A blocking call waits here all the same: another thread may
                // bind or connect the socket meanwhile.
                (_, State::Undecided) if nonblocking => {
                    return Look::Found(Outcome::Os(WhyOs::Unbound));
                }
                (Turn::AskKernel, _) => {
                    if let Some(outcome) = ask_os(stack, state, id, request) {
                        return Look::Found(outcome);
                    }
                    just_asked = true;
                    continue;
                }
                (Turn::LookAtShadow, _) => {
                    look_at_shadow(socket);
                    just_asked = true;
                    continue;
                }
                (Turn::Wait, _) => {}
            }
            if first {
                endpoint.rx_thread = thread::cached_id();
            }
            if nonblocking {
                endpoint.counters.rx_poll_misses += 1;
                return Look::Found(would_block(stack, state, id, request));
            }
            return Look::Nothing(Some(state));
        }
    }

    fn wait(&mut self, stack: &Stack, state: Option<&mut Guard<'_>>) -> Wait {
        let (links, (timeout, flowless)) = state.map_or((false, (None, true)), |state| {
            let links = state.has_links();
            let flows = |socket: &Socket| (socket.options.receive_timeout, socket.flows.is_empty());
            (links, state.socket(self.id).map_or((None, true), |(_, socket)| flows(socket)))
        });
        // Polling pays where packets of ours may come.
        let polls = !flowless || links;
        let loops = if polls { stack.config.rx_poll } else { stack.config.rx_poll_init };
        // signal(7): a receive call with SO_RCVTIMEO is not restarted.
        Wait::new(Patience::loops(loops), timeout, timeout.is_none())
            .yielding(stack.config.rx_poll_yield)
    }

    fn enlist(&mut self, state: &mut Guard<'_>, sleeper: SleeperId, fds: &mut PollSet) -> bool {
        state.sleep_on(self.id, sleeper);
        let socket = state.socket(self.id);
        fds.add_readable(socket.as_ref().map_or(-1, |(_, socket)| socket.shadow()));
        // It polled in vain: the call is a miss, for it blocks its thread.
        if let Some((endpoint, _)) = socket {
            endpoint.counters.rx_poll_misses += 1;
        }
        true
    }

    fn leave(&mut self, state: &mut Guard<'_>, sleeper: SleeperId, fds: &[PollFd]) {
        state.leave(self.id, sleeper);
        note_shadow(state, self.id, fds);
    }
}

/// The shadow is the first descriptor of a sleep.
pub(super) fn note_shadow(state: &mut Guard<'_>, id: SocketId, fds: &[PollFd]) {
    if fds.first().is_some_and(|shadow| shadow.revents != 0)
        && let Some((_, socket)) = state.socket(id)
    {
        socket.order.note_readable();
    }
}

/// What a look at the rings came to.
enum Polled {
    Looked,
    /// A datagram is in the caller's buffer.
    Took(Direct),
}

/// Looks at the rings, if the queue is empty or what is in them may be older than what the shadow has. None: the
/// socket is gone.
#[inline]
fn poll(
    stack: &Stack,
    state: &mut Guard<'_>,
    id: SocketId,
    request: &mut Request<'_, '_>,
    first: bool,
) -> Option<Polled> {
    let (endpoint, socket) = state.socket(id)?;
    if endpoint.is_readable() {
        if socket.order.wants_poll() {
            state.poll_well();
        } else if stack.config.rx_drain_nanos != 0 {
            drain(stack, state);
        }
        return Some(Polled::Looked);
    }
    let told = socket.order.may_be_readable();
    let simple = request.control.is_none()
        && request.flags & !SIMPLE_FLAGS == 0
        && socket.state == State::Offloaded
        && socket.pending_error == 0
        && socket.order.is_settled(stack.config.rx_udp_poll_os_ratio)
        && !endpoint.wants_stamp;
    let direct = match (simple, first) {
        (true, false) => state.poll_patiently_for(id, request.buffers),
        (true, true) => state.take_from_links(id, request.buffers),
        (false, false) => {
            state.poll_patiently();
            None
        }
        (false, true) => None,
    };
    if let Some(direct) = direct {
        return Some(Polled::Took(direct));
    }
    if told || first {
        state.poll_well();
    }
    Some(Polled::Looked)
}

/// What the two queues look like, without what only a receive call knows.
#[inline]
fn view(endpoint: &Endpoint, socket: &Socket) -> View {
    let front = |datagram: &Datagram| Front {
        by_link: datagram.by_link,
        after_kernel: datagram.after_kernel,
    };
    View {
        front: endpoint.front().map(front),
        queued: endpoint.waiting().0 as usize,
        is_kernels: matches!(socket.state, State::Os(_)),
        doubtful: false,
        has_local_peers: false,
        just_asked: false,
        ratio: 0,
    }
}

/// May processes of this host send to it?
fn has_local_peers(stack: &Stack, socket: &Socket) -> bool {
    stack.config.local && (socket.named || socket.starts_locally)
}

/// VMA_RX_CQ_DRAIN_RATE_NSEC: takes what has arrived, though the call could do without, if that was
/// not done for so long.
fn drain(stack: &Stack, state: &mut Guard<'_>) {
    let now = clock::now().as_nanos();
    if now.saturating_sub(stack.drained.load(Ordering::Relaxed)) >= stack.config.rx_drain_nanos {
        stack.drained.store(now, Ordering::Relaxed);
        state.poll();
    }
}

/// An error that the next call on the socket reports.
pub fn keep_error(stack: &Stack, id: SocketId, errno: i32) {
    if errno != libc::EAGAIN
        && let Ok(mut state) = stack.shard.lock()
        && let Some((_, socket)) = state.socket(id)
    {
        socket.pending_error = errno;
    }
}

/// Takes what [`keep_error`] has kept.
pub fn take_kept_error(stack: &Stack, id: SocketId) -> Option<i32> {
    let mut state = stack.shard.lock().ok()?;
    let (_, socket) = state.socket(id)?;
    Some(core::mem::take(&mut socket.pending_error)).filter(|error| *error != 0)
}

/// The size of the next datagram (FIONREAD), if one is queued.
pub fn next_len(stack: &Stack, id: SocketId) -> Option<usize> {
    let mut state = stack.shard.lock().ok()?;
    state.poll_well();
    let told_by_kernel = state.take_os_doubt(id);
    let (endpoint, socket) = state.socket(id)?;
    let has_local_peers = has_local_peers(stack, socket);
    let doubtful = told_by_kernel || socket.takes_ipv6();
    let view = View { has_local_peers, doubtful, ..view(endpoint, socket) };
    // With something queued a look alone changes nothing: what the shadow has now is newer.
    if socket.order.next(&view) == Turn::AskKernel {
        if look_at_shadow(socket) {
            socket.order.announce(Some(Origin::Shadow));
            return None;
        }
        socket.order.found_empty();
    }
    let len = endpoint.front().map(|next| next.train.next(next.len) as usize);
    socket.order.announce(len.map(|_| Origin::Queue));
    len
}

/// Would the next receive call find a datagram, as far as the library knows without a look at the rings or at the kernel?
pub fn has_more(stack: &Stack, id: SocketId) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return true };
    state.socket(id).is_none_or(|(endpoint, socket)| {
        endpoint.is_readable()
            || socket.order.may_be_readable()
            || socket.pending_error != 0
            || socket.state != State::Offloaded
    })
}

/// Has the shadow something to read, or an error to report?
fn look_at_shadow(socket: &mut Socket) -> bool {
    // Before the look: what is said during it must count.
    socket.order.begin_to_look();
    let events = crate::sys::wait::poll_now(socket.shadow(), libc::POLLIN);
    if events & libc::POLLERR != 0 {
        socket.order.note_error();
    }
    match events {
        0 => socket.order.looked_in_vain(),
        _ => socket.order.note_readable(),
    }
    events != 0
}

/// A datagram is in the caller's buffer, past the queue.
#[inline]
fn taken(state: &mut Guard<'_>, id: SocketId, direct: Direct) -> Received {
    let mut family = Family::Ipv4;
    if let Some((endpoint, socket)) = state.socket(id) {
        let counters = &mut endpoint.counters;
        counters.rx_poll_hits += 1;
        counters.rx_packets += 1;
        counters.rx_bytes += direct.len as u64;
        counters.rx_ready_packets_max = counters.rx_ready_packets_max.max(1);
        counters.rx_ready_bytes_max = counters.rx_ready_bytes_max.max(direct.len as u32);
        socket.order.took_directly();
        family = socket.family;
    }
    let flags = if direct.copied < direct.len { libc::MSG_TRUNC } else { 0 };
    let (len, source) = (direct.copied, direct.source);
    Received::Datagram { len, source, family, flags, control: 0 }
}

/// Copies the front datagram out. MSG_PEEK leaves it, MSG_TRUNC returns its real length (recv(2)). With a bad buffer it is
/// lost, as with the kernel.
fn take(state: &mut Guard<'_>, id: SocketId, request: &mut Request<'_, '_>) -> Outcome<Received> {
    // Out of the queue, so that the shard can lend its bytes; a peeked one goes back to the front.
    let Some(mut datagram) = state.pop(id) else {
        return Outcome::Ours(Received::FromOs(FromKernel::one(0)));
    };
    let rest = datagram.uncouple();
    let taken = state.copy_out(&datagram, request.buffers);
    let copied = taken.unwrap_or(0);
    let len = datagram.len as usize;
    // The kernel starts from this flag of the call.
    let mut flags = request.flags & libc::MSG_CMSG_CLOEXEC;
    if copied < len {
        flags |= libc::MSG_TRUNC;
    }
    let mut control = 0;
    let own = state.interface_address(datagram.interface);
    if taken.is_some()
        && let (Some(room), Some((_, socket))) = (request.control.as_deref_mut(), state.socket(id))
    {
        let mut writer = ControlWriter::new(room);
        writer.describe(&datagram, socket, own);
        control = writer.written();
        if writer.is_cut() {
            flags |= libc::MSG_CTRUNC;
        }
    }
    let source = datagram.source;
    let returned = if request.flags & libc::MSG_TRUNC != 0 { len } else { copied };
    let peeks = request.flags & libc::MSG_PEEK != 0;
    let mut family = Family::Ipv4;
    if let Some((_, socket)) = state.socket(id) {
        family = socket.family;
        socket.order.took_ours(match (peeks, &rest) {
            (true, _) => Left::All,
            (false, Some(_)) => Left::Rest,
            (false, None) => Left::Nothing,
        });
    }
    let received = match taken {
        Some(_) => {
            Outcome::Ours(Received::Datagram { len: returned, source, family, flags, control })
        }
        None => Outcome::Errno(libc::EFAULT),
    };
    if peeks {
        if let Some(rest) = rest {
            datagram.couple(rest);
        }
        state.put_back(id, datagram);
        return received;
    }
    if taken.is_none()
        && let Some((endpoint, _)) = state.socket(id)
    {
        // udp_recvmsg() of the kernel counts it so.
        endpoint.count_lost(datagram.train, len);
    } else if let Some((endpoint, _)) = state.socket(id) {
        endpoint.counters.rx_packets += u64::from(datagram.train.count(datagram.len));
        endpoint.counters.rx_bytes += len as u64;
    }
    match rest {
        None => state.release(datagram),
        Some(rest) => {
            datagram.move_up(rest);
            state.put_back(id, datagram);
        }
    }
    received
}

/// Looks at the shadow. None: it has nothing.
fn ask_os(
    stack: &Stack,
    mut state: Guard<'_>,
    id: SocketId,
    request: &mut Request<'_, '_>,
) -> Option<Outcome<Received>> {
    let mut take = Take::One;
    if let Some((endpoint, socket)) = state.socket(id) {
        // Before the call: an event that comes during it must count.
        socket.order.begin_to_ask();
        if !endpoint.is_readable() {
            take = Take::Several;
        }
    }
    drop(state);
    let result = (request.os)(take);
    let mut state = stack.shard.lock().ok()?;
    if matches!(result, Err(libc::EAGAIN)) {
        if let Some((_, socket)) = state.socket(id) {
            socket.order.found_empty();
        }
        return None;
    }
    if let Some((endpoint, socket)) = state.socket(id) {
        endpoint.rx_thread = thread::cached_id();
        endpoint.counters.rx_os_poll_hits += result.map_or(0, |taken| taken.datagrams.into());
        endpoint.counters.rx_os_errors += u32::from(result.is_err());
        let peeks = request.flags & libc::MSG_PEEK != 0;
        match result {
            Ok(taken) => socket.order.took_kernels(taken.datagrams, peeks),
            Err(_) => socket.order.note_kernels_error(),
        }
        if let Ok(taken) = result
            && !peeks
        {
            (0..taken.datagrams).for_each(|_| endpoint.note_kernels());
            endpoint.counters.rx_os_packets += u64::from(taken.datagrams);
            endpoint.counters.rx_os_bytes += taken.bytes as u64;
        }
    }
    Some(match result {
        Ok(taken) => Outcome::Ours(Received::FromOs(taken)),
        Err(errno) => Outcome::Errno(errno),
    })
}

/// The kernel has done a receive call on the shadow that was none of ours.
pub fn after_os(stack: &Stack, id: SocketId, outcome: Result<usize, i32>) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let Some((endpoint, socket)) = state.socket(id) else { return };
    let counters = &mut endpoint.counters;
    match outcome {
        // The end of a stream.
        Ok(0) if socket.stream.is_some() => {}
        Ok(len) => {
            counters.rx_os_packets += 1;
            counters.rx_os_bytes += len as u64;
        }
        Err(libc::EAGAIN) => counters.rx_os_eagain += 1,
        Err(libc::EINTR) => {}
        Err(_) => counters.rx_os_errors += 1,
    }
}

/// A non-blocking call found nothing of ours. If an epoll or poll call reported the descriptor on
/// the kernel's word, the kernel's socket must be asked before the answer is EAGAIN.
fn would_block(
    stack: &Stack,
    mut state: Guard<'_>,
    id: SocketId,
    request: &mut Request<'_, '_>,
) -> Outcome<Received> {
    if state.take_os_doubt(id) {
        if let Some(outcome) = ask_os(stack, state, id, request) {
            return outcome;
        }
        let Ok(mut state) = stack.shard.lock() else { return Outcome::Errno(libc::EAGAIN) };
        if let Some((endpoint, _)) = state.socket(id) {
            endpoint.counters.rx_os_eagain += 1;
        }
        return eagain(state, id);
    }
    eagain(state, id)
}

fn eagain(mut state: Guard<'_>, id: SocketId) -> Outcome<Received> {
    if let Some((endpoint, _)) = state.socket(id) {
        endpoint.counters.rx_eagain += 1;
    }
    Outcome::Errno(libc::EAGAIN)
}

/// Below our own lock: only the kernel's socket can be asked.
fn reentered(request: &mut Request<'_, '_>) -> Outcome<Received> {
    match (request.os)(Take::One) {
        Ok(taken) => Outcome::Ours(Received::FromOs(taken)),
        Err(errno) => Outcome::Errno(errno),
    }
}

#[cfg(test)]
mod tests;
