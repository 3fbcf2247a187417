//! listen() and accept(): our connections first, then those that reached the shadow by other ways.
//!
//! The kernel listens, too. Our flows are installed at listen(), *ahead* of the first thread that
//! waits for connections: clients that come at once are ours. A process that only listens for the
//! children it forks gives them up again before the fork ([`give_up_ahead`]), so that the child that
//! waits can have the traffic.

pub mod rings;

use core::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use libvma_dev::ipv6_loopback::is_stand_in;
use libvma_dev::ipv6_stand_ins;
use libvma_engine::tcp::Settings;

use super::candidate::Model;
use super::local::accept as other_processes;
use super::wait::{Call, Ended, Manner, Watches, until};
use super::{
    Guard, Inherited, Outcome, Phase, Stack, Stream, WhyOs, inherited, listener_flows, set_phase,
    system, view,
};
use crate::shard;
use crate::shard::SocketId;
use crate::shard::tcp::{Accepted, ListenSpec};
use crate::socket::options::Options;
use crate::socket::{Plane, Socket, State, attach};
use crate::sys::sockaddr::{Family, SocketName};
use crate::sys::{loopback_end, repair, shadow};

/// The kernel has accepted a listen() with this backlog.
pub fn listen(stack: &Stack, id: SocketId, backlog: i32) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let Some(view) = view(&mut state, id) else { return };
    let local = loopback_end::listening(view.shadow);
    if let Some((_, socket)) = state.socket(id) {
        socket.local = local;
        if let Some(stream) = socket.stream.as_mut() {
            stream.backlog = backlog;
        }
    }
    match view.phase {
        Phase::Listening { .. } => {
            drop(state);
            update(stack, id);
        }
        _ => {
            set_phase(&mut state, id, Phase::Listening { steered: false });
            drop(state);
            other_processes::post(stack, id);
        }
    }
}

/// The library has no part in the listener, which is the kernel's.
pub fn undo(stack: &Stack, id: SocketId) {
    if let Ok(mut state) = stack.shard.lock() {
        set_phase(&mut state, id, Phase::Fresh);
    }
}

/// Steers connections to us though nobody waits for them yet. Whatever cannot be done now is
/// tried again, and judged, by [`steer`].
pub fn steer_ahead(stack: &Stack, id: SocketId) {
    {
        let Ok(mut state) = stack.shard.lock() else { return };
        let Some(stream) = state.socket(id).and_then(|(_, socket)| socket.stream.as_mut()) else {
            return;
        };
        let waits = stream.phase == Phase::Listening { steered: false };
        if !waits || stream.inherited_at.is_some() || !repair::is_allowed() {
            return;
        }
        stream.ahead = true;
    }
    let done = match stack.plane.lock() {
        // The flows follow when the interface is attached.
        Ok(mut plane) => plane.as_mut().is_some_and(|plane| {
            matches!(install(stack, plane, id), Ok(()) | Err(WhyOs::Attaching))
        }),
        Err(_) => false,
    };
    if done {
        // Until a thread waits, the internal thread shakes hands, after a moment.
        stack.hold.begin();
        stack.wake_internal_thread();
    } else if let Ok(mut state) = stack.shard.lock() {
        cancel_ahead(&mut state, id);
    }
}

/// Before a fork: listeners that nobody has waited on may be the child's to serve, and it can only
/// have the interface if we do not hold it.
pub fn give_up_ahead(stack: &Stack) {
    other_processes::unpost_idle(stack);
    stack.hold.end();
    let given_up: Vec<SocketId> = {
        let Ok(mut state) = stack.shard.lock() else { return };
        state.ids().into_iter().filter(|id| is_ahead(&mut state, *id)).collect()
    };
    for id in &given_up {
        // Their clients are to be accepted by whoever accepts.
        super::unaccepted::hand_over(stack, *id);
    }
    let Ok(mut plane) = stack.plane.lock() else { return };
    if let Some(plane) = plane.as_mut() {
        // Those that began by the kernel stay there, for the child has them, too.
        plane.wanted.give_up_connections();
    }
    let Ok(mut state) = stack.shard.lock() else { return };
    let mut any = false;
    for id in given_up {
        // Those that could not be handed over are to be accepted here.
        if is_ahead(&mut state, id) && !state.has_clients(id) {
            cancel_ahead(&mut state, id);
            any = true;
        }
    }
    if any && let Some(plane) = plane.as_mut() {
        plane.wanted.give_up();
        plane.rings.retain(|_, ring| ring.is_ok_and(|ring| !state.shut_idle_ring(ring)));
        state.next_epoch();
    }
}

/// Are connections steered to a listener that nobody has waited on?
fn is_ahead(state: &mut Guard<'_>, id: SocketId) -> bool {
    let stream = state.socket(id).and_then(|(_, socket)| socket.stream.as_ref());
    stream.is_some_and(|stream| stream.ahead && !stream.phase.is_waited_on())
}

fn cancel_ahead(state: &mut Guard<'_>, id: SocketId) {
    state.leave_listening(id);
    let Some((_, socket)) = state.socket(id) else { return };
    if let Some(stream) = socket.stream.as_mut() {
        stream.ahead = false;
        stream.left = false;
    }
    let flows = core::mem::take(&mut socket.flows);
    for (ring, flow) in flows {
        state.remove_flow(ring, flow);
    }
    // Clients that came meanwhile are the kernel's.
    state.catch_up();
    state.end_listening(id);
}

/// Somebody waits for connections on the socket: from now on they come to us. False if the socket
/// is the kernel's for good.
pub fn steer(stack: &Stack, id: SocketId) -> Result<(), WhyOs> {
    let descriptor = {
        let mut state = stack.shard.lock().map_err(|_| WhyOs::Reentered)?;
        let view = view(&mut state, id).ok_or(WhyOs::NotOurs)?;
        match view.phase {
            Phase::Listening { steered: false } => {}
            _ => return Ok(()),
        }
        stack.hold.end();
        set_phase(&mut state, id, Phase::Listening { steered: true });
        if let Some((_, socket)) = state.socket(id) {
            socket.state = State::Offloaded;
            // Connections may wait in the shadow already.
            socket.order.note_readable();
        }
        view.shadow
    };
    let result = match stack.plane.lock() {
        Ok(mut plane) => match plane.as_mut() {
            Some(plane) => install(stack, plane, id),
            None => Err(WhyOs::NoControlPlane),
        },
        Err(_) => Err(WhyOs::Reentered),
    };
    // It may have been given up before a fork.
    other_processes::post(stack, id);
    match result {
        // The shadow's connections are to be looked at.
        Err(why) if other_processes::is_posted(stack, id) => {
            let local = shadow::local_address(descriptor);
            if local.is_some_and(|local| !local.ip().is_loopback()) {
                why.tell_remedy(format_args!("what comes to fd {descriptor} from other hosts"));
            }
            Ok(())
        }
        Err(why) if !attach::may_pass(why) => {
            if let Ok(mut state) = stack.shard.lock() {
                state.end_listening(id);
            }
            why.tell(format_args!("fd {descriptor}"));
            Err(why)
        }
        _ => {
            stack.wake_internal_thread();
            Ok(())
        }
    }
}

/// The interface that the listener needs was refused. True if the listener is the kernel's now, for the caller
/// to forget; not so if processes of this host come to it, or if no thread waits for connections yet.
pub fn refuse(stack: &Stack, id: SocketId, why: WhyOs) -> bool {
    let is_posted = other_processes::is_posted(stack, id);
    let Ok(mut state) = stack.shard.lock() else { return false };
    let Some(view) = view(&mut state, id) else { return false };
    match view.phase {
        Phase::Listening { steered: true } if !is_posted => {
            state.end_listening(id);
            why.tell(format_args!("fd {}", view.shadow));
            true
        }
        Phase::Listening { steered: false } => {
            cancel_ahead(&mut state, id);
            false
        }
        _ => false,
    }
}

/// accept() that blocks has to learn of the kernel's connections while it polls. It asks the kernel now and
/// then by itself; only if the user forbids that does the internal thread look, which then is woken by every
/// connection, in each process that shares the listener. poll() and epoll ask the kernel, too.
fn watch(stack: &Stack, id: SocketId, descriptor: i32) {
    if stack.config.rx_udp_poll_os_ratio != 0 {
        return;
    }
    let is_watched = {
        let Ok(mut state) = stack.shard.lock() else { return };
        state.socket(id).is_none_or(|(_, socket)| socket.is_shadow_watched)
    };
    if !is_watched {
        attach::watch_shadow(stack, id, descriptor);
    }
}

/// Options or the backlog changed.
pub fn update(stack: &Stack, id: SocketId) {
    let Ok(mut state) = stack.shard.lock() else { return };
    if state.is_listening(id)
        && let Some(spec) = spec(stack, &mut state, id)
    {
        state.listen(id, spec);
    }
}

pub(in crate::socket) fn spec(
    stack: &Stack,
    state: &mut Guard<'_>,
    id: SocketId,
) -> Option<ListenSpec> {
    let (_, socket) = state.socket(id)?;
    let stream = socket.stream.as_ref()?;
    let system = system::of(stack);
    let system = system.listening(stack);
    let mut listen = system::of_listener(&stream.settings, &system.settings);
    let seconds = |seconds| Duration::from_secs(u64::from(seconds));
    listen.defer_accept = stream.defer_accept.map(seconds);
    Some(ListenSpec {
        local: socket.local?,
        // A negative backlog is a huge one.
        backlog: (stream.backlog as u32).min(system.somaxconn),
        listen,
        settings: stream.settings.clone(),
        inherited_state: Arc::new(Heritage {
            family: stream.family,
            options: socket.options.clone(),
            settings: stream.settings.clone(),
            linger: stream.linger,
            send_timeout: stream.send_timeout,
            low_water: stream.low_water,
            inherited: stream.inherited.clone(),
        }),
        takes_ipv6: stream.family == Family::Ipv6,
        envelopes: [false, true].map(|is_ipv6| socket.options.envelope(is_ipv6)),
    })
}

/// Brings the flows of a listener in line with the interfaces and addresses there are.
pub fn install(stack: &Stack, plane: &mut Plane, id: SocketId) -> Result<(), WhyOs> {
    let (local, device, is_ipv6, takes_ipv6) = {
        let mut state = stack.shard.lock().map_err(|_| WhyOs::Reentered)?;
        let (_, socket) = state.socket(id).ok_or(WhyOs::NotOurs)?;
        let listens = socket
            .stream
            .as_ref()
            .is_some_and(|stream| stream.phase.is_waited_on() || stream.ahead);
        if !listens {
            return Ok(());
        }
        let left = socket.stream.as_ref().is_some_and(|stream| stream.left);
        // Clients over IPv6 that come before anybody waits could not be handed over to a child.
        let is_waited_on = socket.stream.as_ref().is_some_and(|it| it.phase.is_waited_on());
        let is_ipv6 = socket.stream.as_ref().is_some_and(|it| it.family == Family::Ipv6);
        let takes_ipv6 = is_ipv6 && is_waited_on && !socket.options.sends_ipv6_by_kernel;
        let local = socket.local.ok_or(WhyOs::Unbound)?;
        let place = (local, socket.options.device(), is_ipv6, takes_ipv6);
        if left {
            // Connections that wait are still to be accepted here.
            return if state.has_clients(id) { Ok(()) } else { Err(WhyOs::Passed) };
        }
        if inherited::is_shared(&mut state, id) {
            inherited::leave_to_kernel(&mut state, id);
            return Err(WhyOs::Passed);
        }
        if !repair::is_allowed() {
            // The process gave up its rights since listen(), as daemons do before they accept. A connection that it accepted
            // here would be lost to the child that it forks for it.
            inherited::leave_to_kernel(&mut state, id);
            return Err(WhyOs::CannotBeGivenBack);
        }
        place
    };
    if is_stand_in(*local.ip()) {
        // Traffic to `::1` comes from within the host: for that the listener is posted.
        return Err(WhyOs::NoInterface);
    }
    if ipv6_stand_ins::is_one(*local.ip()) && !takes_ipv6 {
        return Err(WhyOs::NoInterface);
    }
    if let Some(rule) = stack.config.rules.decide_listener(local, is_ipv6) {
        return Err(WhyOs::Rule(rule));
    }
    let (wanted, why) = listener_flows::wanted(stack, plane, local, device, takes_ipv6);
    let unserved = wanted.is_empty();
    if unserved && !attach::may_pass(why) {
        return Err(why);
    }
    // Connections that the kernel has from this listener stay its own.
    super::exceptions::except_older(stack, local);
    let mut state = stack.shard.lock().map_err(|_| WhyOs::Reentered)?;
    state.set_own_addresses(plane.control.own_addresses());
    if state.socket(id).and_then(|(_, socket)| socket.stream.as_ref()).is_some_and(|it| it.left) {
        // A child has asked for it since: a listener without flows would answer clients who come again from a port, and
        // have no part in what they say next.
        return Err(WhyOs::Passed);
    }
    // The listener first: a packet that a flow brings must find it.
    let spec = spec(stack, &mut state, id).ok_or(WhyOs::NotOurs)?;
    state.listen(id, spec);
    let held = attach::exchange_flows(&mut state, id, wanted);
    drop(state);
    // And those that began meanwhile.
    super::exceptions::except_older(stack, local);
    match (held, unserved) {
        (true, false) => Ok(()),
        (true, true) => Err(why),
        (false, _) => Err(WhyOs::FlowRefused),
    }
}

/// What accept() found.
pub enum Found {
    /// A connection of ours: give it a descriptor by [`adopt`], or put it back.
    Ours(Accepted),
    /// A descriptor of the kernel's.
    Os(i32),
}

/// accept(2). `os` accepts from the shadow; it is only called when that has a connection, or the listener does not block. Unless it `may_wait`, the call
/// ends at once also on a listener that blocks.
pub fn accept(
    stack: &Stack,
    id: SocketId,
    may_wait: bool,
    os: &mut dyn FnMut() -> Result<i32, i32>,
) -> Outcome<Found> {
    if let Err(why) = steer(stack, id) {
        return Outcome::Os(why);
    }
    let (manner, descriptor) = {
        let Ok(mut state) = stack.shard.lock() else { return Outcome::Os(WhyOs::Reentered) };
        let Some(view) = view(&mut state, id) else { return Outcome::Os(WhyOs::NotOurs) };
        if !matches!(view.phase, Phase::Listening { .. }) {
            return Outcome::Errno(libc::EINVAL);
        }
        let timeout = state.socket(id).and_then(|(_, socket)| socket.options.receive_timeout);
        let (blocking, watches) = (may_wait && !view.nonblocking, Watches::Listener);
        (Manner { blocking, timeout, watches, call: Call::Other }, view.shadow)
    };
    if !manner.blocking {
        return accept_at_once(stack, id, manner, os);
    }
    watch(stack, id, descriptor);
    let mut polls = 0u64;
    loop {
        let found = until(stack, id, manner, |state| {
            let before_ours = is_kernels_turn(state, id);
            if !before_ours && let Some(accepted) = state.accept(id) {
                note_accepted(state, id);
                return Some(Some(accepted));
            }
            // Also at the first poll: a call may end after a few, by a connection of ours or its time-out.
            let ratio = stack.config.rx_udp_poll_os_ratio;
            let os_turn = ratio != 0 && polls.is_multiple_of(ratio);
            polls += 1;
            let (_, socket) = state.socket(id)?;
            let stream = socket.stream.as_mut()?;
            // Another call that takes from the shadow takes the connection that this one would wait for, and wakes it.
            let asked =
                !stream.os_accepting && (socket.order.take_readable() || os_turn || before_ours);
            // The epoll of the shadows tells of the first connection only; this tells of all.
            if asked && crate::sys::wait::poll_now(descriptor, libc::POLLIN) != 0 {
                // A blocking shadow would keep a second one, which then sees no connection of ours.
                stream.os_accepting = true;
                return Some(None);
            }
            if !before_ours {
                return None;
            }
            let accepted = state.accept(id)?;
            note_accepted(state, id);
            Some(Some(accepted))
        });
        match found {
            Ok(Some(accepted)) => return Outcome::Ours(Found::Ours(accepted)),
            Ok(None) => {
                let result = os();
                end_os_accept(stack, id);
                match result {
                    // Another process was faster.
                    Err(libc::EAGAIN) if manner.blocking => {}
                    Err(errno) => return Outcome::Errno(errno),
                    Ok(fd) => return Outcome::Ours(Found::Os(fd)),
                }
            }
            Err(Ended::Departed) => return Outcome::Os(WhyOs::Passed),
            Err(ended) => return Outcome::Errno(ended.errno()),
        }
    }
}

/// After so many of ours a connection of the kernel's comes first, if there is one: none waits for ever.
const MOST_IN_ROW: u8 = 8;

/// Is the shadow to be asked before ours are looked at? True once after each row of ours.
fn is_kernels_turn(state: &mut shard::State<Socket>, id: SocketId) -> bool {
    let stream = state.socket(id).and_then(|(_, socket)| socket.stream.as_mut());
    stream.is_some_and(|stream| {
        let is_turn = stream.ours_in_row >= MOST_IN_ROW;
        if is_turn {
            stream.ours_in_row = 0;
        }
        is_turn
    })
}

fn note_accepted(state: &mut shard::State<Socket>, id: SocketId) {
    if let Some((_, socket)) = state.socket(id)
        && let Some(stream) = socket.stream.as_mut()
    {
        stream.ours_in_row = stream.ours_in_row.saturating_add(1);
    }
}

/// accept(2) that does not wait: ours first, but for their turn, else what the shadow has.
fn accept_at_once(
    stack: &Stack,
    id: SocketId,
    manner: Manner,
    os: &mut dyn FnMut() -> Result<i32, i32>,
) -> Outcome<Found> {
    let kernels_turn = stack.shard.lock().is_ok_and(|mut state| is_kernels_turn(&mut state, id));
    if kernels_turn {
        match os() {
            Ok(fd) => return Outcome::Ours(Found::Os(fd)),
            Err(libc::EAGAIN) => {}
            Err(errno) => return Outcome::Errno(errno),
        }
    }
    let accepted = until(stack, id, manner, |state| {
        let accepted = state.accept(id)?;
        note_accepted(state, id);
        Some(accepted)
    });
    match accepted {
        Ok(accepted) => Outcome::Ours(Found::Ours(accepted)),
        Err(Ended::WouldBlock) => match os() {
            Ok(fd) => Outcome::Ours(Found::Os(fd)),
            Err(errno) => Outcome::Errno(errno),
        },
        Err(Ended::Departed) => Outcome::Os(WhyOs::Passed),
        Err(ended) => Outcome::Errno(ended.errno()),
    }
}

/// The call that asked the shadow is back from there.
fn end_os_accept(stack: &Stack, id: SocketId) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let Some((_, socket)) = state.socket(id) else { return };
    // There may be more.
    socket.order.note_readable();
    if let Some(stream) = socket.stream.as_mut() {
        stream.os_accepting = false;
    }
    state.announce(id);
}

/// There is no descriptor for an accepted connection.
pub fn put_back(stack: &Stack, id: SocketId, accepted: Accepted) {
    if let Ok(mut state) = stack.shard.lock() {
        state.put_back_accepted(accepted, id);
    }
}

/// What a connection takes from its listener as it was when the connection came.
struct Heritage {
    family: Family,
    options: Options,
    settings: Settings,
    linger: Option<NonZeroU32>,
    send_timeout: Option<u64>,
    low_water: u32,
    inherited: Vec<Inherited>,
}

/// What a connection that the kernel accepts for a listener takes from it.
pub(super) fn model(options: &Options, settings: &Stream) -> Model {
    let mut stream = Stream::new(settings.settings.clone(), settings.family);
    stream.phase = Phase::Connected;
    stream.linger = settings.linger;
    stream.send_timeout = settings.send_timeout;
    stream.low_water = settings.low_water;
    stream.inherited = settings.inherited.clone();
    Model { options: options.clone(), stream }
}

/// The socket of an accepted connection.
pub struct Adopted {
    pub id: SocketId,
    pub peer: SocketName,
    /// What the listener had set: to be set on the shadow, too.
    pub inherited: Vec<Inherited>,
}

/// Of the socket that an accepted connection is to get: its listener's.
pub fn family_of(accepted: &Accepted) -> Family {
    let heritage = accepted.inherited_state.as_ref().and_then(|one| one.downcast_ref::<Heritage>());
    heritage.map_or(Family::default(), |heritage| heritage.family)
}

/// The accepted connection gets a socket, whose shadow is this fresh descriptor of the same family.
pub fn adopt(
    stack: &Stack,
    accepted: Accepted,
    descriptor: i32,
    nonblocking: bool,
) -> Option<Adopted> {
    let key = accepted.key;
    let inherited_state = accepted.inherited_state.clone();
    let Some(heritage) = inherited_state.as_ref().and_then(|one| one.downcast_ref::<Heritage>())
    else {
        stack.shard.lock().ok()?.reject(accepted);
        return None;
    };
    let mut socket = Socket::new(descriptor, nonblocking, &stack.config);
    let mut stream = Stream::new(heritage.settings.clone(), heritage.family);
    stream.phase = Phase::Connected;
    stream.linger = heritage.linger;
    stream.send_timeout = heritage.send_timeout;
    stream.low_water = heritage.low_water;
    stream.inherited = heritage.inherited.clone();
    socket.options = heritage.options.clone();
    socket.state = State::Offloaded;
    socket.local = Some(key.local_endpoint());
    socket.peer = Some(key.remote_endpoint());
    socket.stream = Some(Box::new(stream));
    let mut state = stack.shard.lock().ok()?;
    let id = state.attach(socket, 0);
    state.adopt(accepted, id);
    drop(state);
    let inherited = heritage.inherited.clone();
    let peer = SocketName::new(key.remote_endpoint(), heritage.family);
    Some(Adopted { id, peer, inherited })
}

#[cfg(test)]
mod tests;
