//! Taking over a connection that the kernel has made: because its interface was being attached, because it was
//! accepted before a listener's flows were there, or by a worker that shares the listener.
//!
//! The connection's flow is installed, then the kernel's socket is read out by TCP_REPAIR and forgets its
//! connection, all under one holding of the shard's lock: segments that come meanwhile wait in the ring.
//! Only a connection that lives is worth it (`gate`).

use core::fmt;

use libvma_dev::ipv6_stand_ins;
use libvma_engine::tcp::State as TcpState;
use libvma_engine::tcp::connection::{Counters, Resumed};
use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::tcp::seq::Seq;

use super::candidate::Candidate;
use super::options::{self, Effect};
use super::route::{self, Way};
use super::{Guard, Inherited, Stack, WhyOs, system, watch};
use crate::config::rules::Moment;
use crate::control::netlink::{Protocol, RouteQuery};
use crate::log::log_line;
use crate::shard::tcp::{Resumption, five_tuple};
use crate::shard::{Flow, NextHop, SocketId, State};
use crate::socket::report::kernels;
use crate::socket::report::traffic::KernelsId;
use crate::socket::{Plane, Socket, attach};
use crate::sys::repair::{self, Counted, Measured, Origin, Taken};
use crate::sys::shadow;

/// What is to be taken over.
pub struct Plan {
    pub id: KernelsId,
    pub candidate: Candidate,
    /// The program's numbers of the socket.
    pub descriptors: Vec<i32>,
}

/// Why a connection stays the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// For now.
    Later(&'static str),
    Never(WhyOs),
    /// The kernel's state cannot be read out.
    Kernel(repair::Error),
}

impl Refusal {
    /// Is another attempt of no use?
    pub fn is_final(self) -> bool {
        match self {
            Refusal::Later(_) => false,
            Refusal::Never(_) => true,
            Refusal::Kernel(error) => !matches!(error.errno, libc::EAGAIN | libc::ENOTCONN),
        }
    }
}

impl From<WhyOs> for Refusal {
    fn from(why: WhyOs) -> Refusal {
        if attach::may_pass(why) {
            Refusal::Later("the interface is not there")
        } else {
            Refusal::Never(why)
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Later(why) => write!(f, "{why}, for now"),
            Refusal::Never(why) => why.fmt(f),
            Refusal::Kernel(error) => write!(f, "of {} (errno {})", error.call, error.errno),
        }
    }
}

/// What stands for the connection beyond its socket: descriptors and registrations in epoll instances.
pub trait Publisher {
    /// The connection can be taken over: they are the new socket's from here on. False, and nothing is changed,
    /// if that cannot be.
    fn publish(&mut self, state: &mut State<Socket>, id: SocketId) -> bool;

    /// It could not be taken over after all: they are the kernel's again.
    fn withdraw(&mut self, state: &mut State<Socket>, id: SocketId);
}

/// Takes a connection over.
pub fn take_over(stack: &Stack, plan: &Plan, publisher: &mut dyn Publisher) -> Result<(), Refusal> {
    let descriptor = *plan.descriptors.first().ok_or(WhyOs::NotOurs)?;
    let flags = shadow::status_flags(descriptor);
    if plan.candidate.is_shared() {
        return Err(Refusal::Never(WhyOs::Passed));
    }
    if flags & libc::O_ASYNC != 0 {
        return Err(Refusal::Never(WhyOs::Arguments));
    }
    if !repair::is_allowed() {
        return Err(Refusal::Never(WhyOs::CannotBeGivenBack));
    }
    if plan.candidate.is_of_many {
        let peer = shadow::peer_address(descriptor);
        find_guard(stack, peer.is_some_and(|peer| ipv6_stand_ins::is_one(*peer.ip())))?;
    }
    let local = shadow::local_address(descriptor);
    let ends = local.zip(shadow::peer_address(descriptor));
    let (local, peer) = ends.ok_or(Refusal::Later("it is not connected"))?;
    let key = FlowKey {
        local: *local.ip(),
        local_port: local.port(),
        remote: *peer.ip(),
        remote_port: peer.port(),
    };
    if plan.candidate.origin == Origin::Connected
        && let Some(place) = stack.config.rules.decide(Moment::Connect, peer, Some(local))
    {
        return Err(Refusal::Never(WhyOs::Rule(place)));
    }

    let nonblocking = flags & libc::O_NONBLOCK != 0;
    let socket = plan.candidate.socket(stack, &plan.descriptors, nonblocking, &key);
    let socket = socket.ok_or(WhyOs::NotOurs)?;
    let id = enable_tcp(stack)?.attach(socket, 0);
    let result = set_options(stack, id, plan.candidate.changes())
        .and_then(|()| move_connection(stack, plan, id, &key, publisher));
    if result.is_err()
        && let Ok(mut state) = stack.shard.lock()
    {
        state.detach(id);
    }
    result?;
    watch::taken_over(stack);
    log_line!(Debug, "fd {descriptor} is served from here on");
    stack.wake_internal_thread();
    Ok(())
}

/// A worker's connection is the kernel's until `vmad` or the parent would end it.
fn find_guard(stack: &Stack, is_ipv6: bool) -> Result<(), Refusal> {
    if stack.watch.is_guarded(is_ipv6) {
        return Ok(());
    }
    if stack.watch.is_guarded(false) {
        // The daemon is the original's, or an older one, which knows IPv4 only.
        return Err(Refusal::Never(WhyOs::Ipv6));
    }
    // The daemon's answer has changes of connections kept, for which there must be a place.
    enable_tcp(stack)?;
    watch::ask_for_guard(stack);
    Err(Refusal::Later("nobody would end it if this process were killed"))
}

/// A worker that only accepts has made no socket itself.
fn enable_tcp(stack: &Stack) -> Result<Guard<'_>, WhyOs> {
    let mut state = stack.shard.lock().map_err(|_| WhyOs::Reentered)?;
    state.enable_tcp(|| system::setup(stack));
    Ok(state)
}

/// What the program has set while the connection was the kernel's.
fn set_options(stack: &Stack, id: SocketId, changes: &[Inherited]) -> Result<(), Refusal> {
    for Inherited { level, name, value } in changes {
        let (level, name) = (*level, *name);
        let answer = options::before_set(stack, id, level, name, value);
        let foreign = answer.is_some_and(|answer| answer != 0)
            || matches!(options::after_set(stack, id, level, name, value), Effect::Os(_));
        if foreign {
            return Err(Refusal::Never(WhyOs::Option { level, name }));
        }
    }
    Ok(())
}

fn move_connection(
    stack: &Stack,
    plan: &Plan,
    id: SocketId,
    key: &FlowKey,
    publisher: &mut dyn Publisher,
) -> Result<(), Refusal> {
    let mut plane = stack.plane.lock().map_err(|_| WhyOs::Reentered)?;
    let plane = plane.as_mut().ok_or(WhyOs::NoControlPlane)?;
    let (way, hop) = find_way(stack, plane, id, key)?;
    let flow = match stack.config.tcp_3t_rules {
        true => crate::shard::tcp::three_tuple(key),
        false => five_tuple(key),
    };
    let gate = &kernels::traffic(stack, plan.id).ok_or(WhyOs::NotOurs)?.gate;
    let mut state = stack.shard.lock().map_err(|_| WhyOs::Reentered)?;
    if state.has_connection(key) {
        return Err(Refusal::Never(WhyOs::FlowRefused));
    }
    let exclusive = gate.close().ok_or(Refusal::Later("another call is at work on it"))?;
    let is_current = kernels::with_candidate(stack, plan.id, |now, descriptors| {
        descriptors == plan.descriptors && now.is_as(&plan.candidate)
    });
    if is_current != Some(true) {
        return Err(Refusal::Later("another call has changed it"));
    }
    state.set_own_addresses(plane.control.own_addresses());
    state.add_flow(way.ring, flow).map_err(|_| WhyOs::FlowRefused)?;
    state.end_exception(five_tuple(key));

    let has_classic_ecn = system::of(stack).has_classic_ecn();
    read_out(&mut state, plan, id, (key, way, hop, flow, has_classic_ecn), publisher)?;
    // TCP_INFO tells of the whole connection, the statistics what each of both has carried.
    state.zero_counters(id);
    if let Some(counters) = kernels::leave(stack, plan.id)
        && let Some((endpoint, _)) = state.socket(id)
    {
        endpoint.counters.add_kernels(&counters);
    }
    exclusive.end();
    // What came meanwhile, and what is to be sent.
    state.catch_up();
    state.run_tcp();
    Ok(())
}

/// The connection moves from the kernel's socket to ours.
fn read_out(
    state: &mut State<Socket>,
    plan: &Plan,
    id: SocketId,
    (key, way, hop, flow, has_classic_ecn): (&FlowKey, Way, NextHop, Flow, bool),
    publisher: &mut dyn Publisher,
) -> Result<(), Refusal> {
    let (_, socket) = state.socket(id).ok_or(WhyOs::NotOurs)?;
    let descriptor = socket.shadow();
    let (ttl, tos) = socket.options.wishes(ipv6_stand_ins::is_one(key.remote));
    let ttl = ttl.or(way.hop_limit).unwrap_or(super::connect::DEFAULT_TTL);
    let settings = socket.stream.as_ref().ok_or(WhyOs::NotOurs)?.settings.clone();
    let (max_segment, window_clamp) = (settings.max_segment, settings.window_clamp);
    let (mut is_made, mut is_published) = (false, false);
    let taken = repair::take(descriptor, plan.candidate.origin, |taken| {
        let resumption = Resumption {
            key: *key,
            hop: Some(hop),
            ttl,
            tos,
            settings,
            flows: vec![(way.ring, flow)],
            parts: parts(taken, has_classic_ecn),
            unread: &taken.unread,
            is_accepted: plan.candidate.origin == Origin::Accepted,
        };
        is_made = state.take_over_connection(id, resumption).is_ok();
        is_published = is_made && publisher.publish(state, id);
        is_published
    });
    let why = match taken {
        Ok(Some(taken)) => {
            if taken.reading_ended {
                state.with_connection(id, |connection, _, _| connection.shutdown_read());
            }
            if taken.is_incomplete {
                // The kernel may have acknowledged bytes that are not here: never a silent gap.
                state.abort_connection(id);
            }
            set_again(descriptor, max_segment, window_clamp);
            return Ok(());
        }
        Ok(None) => Refusal::Never(WhyOs::Ambiguous),
        Err(error) => Refusal::Kernel(error),
    };
    if is_published {
        publisher.withdraw(state, id);
    }
    // The connection's segments reach the kernel again; those that the ring has got are lost, as on the wire.
    state.except(five_tuple(key));
    if is_made {
        state.forget_connection(id);
    } else {
        state.remove_flow(way.ring, flow);
    }
    state.catch_up();
    Err(why)
}

/// What the kernel's socket forgets with its connection.
fn set_again(descriptor: i32, max_segment: Option<u16>, window_clamp: u32) {
    let set = |name, value| shadow::set_int_option(descriptor, libc::IPPROTO_TCP, name, value);
    if let Some(most) = max_segment {
        set(libc::TCP_MAXSEG, most.into());
    }
    if let Ok(clamp) = i32::try_from(window_clamp) {
        set(libc::TCP_WINDOW_CLAMP, clamp);
    }
}

/// What the engine goes on from.
fn parts(taken: &Taken, has_classic_ecn: bool) -> Resumed<'_> {
    let (sent, unsent) =
        taken.outgoing.split_at_checked(taken.sent).unwrap_or((&taken.outgoing, &[]));
    let Measured {
        smoothed_rtt,
        rtt_variation,
        least_rtt,
        congestion_window,
        slow_start_threshold,
    } = taken.measured;
    let counted: Counted = taken.counted;
    Resumed {
        state: match taken.state {
            repair::State::CloseWait => TcpState::CloseWait,
            _ => TcpState::Established,
        },
        snd_una: Seq::new(taken.send_unacknowledged),
        rcv_nxt: Seq::new(taken.receive_next),
        snd_wnd: taken.send_window,
        snd_wl1: Seq::new(taken.window_update),
        max_snd_wnd: taken.largest_send_window,
        rcv_wnd: taken.receive_window,
        peer_mss: taken.segment_size.into(),
        scales: taken.window_scale.map(|scale| (scale.send, scale.receive)),
        sack: taken.sack,
        timestamp: taken.timestamps.map(|stamps| stamps.value),
        recent_timestamp: taken.timestamps.map_or(0, |stamps| stamps.recent),
        ecn: taken.ecn && has_classic_ecn,
        owes_acknowledgment: taken.acknowledged != taken.receive_next,
        srtt: smoothed_rtt,
        rttvar: rtt_variation,
        min_rtt: least_rtt,
        cwnd: Some(congestion_window),
        ssthresh: slow_start_threshold,
        counters: Counters {
            segments_in: counted.segments_in,
            segments_out: counted.segments_out,
            bytes_acked: counted.bytes_acked,
            bytes_received: counted.bytes_received,
            retransmissions: counted.retransmissions,
            out_of_order: counted.out_of_order,
            ..Counters::default()
        },
        unacknowledged: [sent, &[]],
        unsent: [unsent, &[]],
    }
}

/// How segments of the connection leave, if an interface of ours leads there.
fn find_way(
    stack: &Stack,
    plane: &mut Plane,
    id: SocketId,
    key: &FlowKey,
) -> Result<(Way, NextHop), Refusal> {
    let query = {
        let mut state = stack.shard.lock().map_err(|_| WhyOs::Reentered)?;
        let (_, socket) = state.socket(id).ok_or(WhyOs::NotOurs)?;
        let options = &socket.options;
        if ipv6_stand_ins::is_one(key.remote) && options.sends_ipv6_by_kernel {
            return Err(WhyOs::Ipv6.into());
        }
        RouteQuery {
            src: Some(key.local),
            oif: options.device(),
            tos: options.wishes(ipv6_stand_ins::is_one(key.remote)).1,
            mark: options.mark,
            protocol: Some(Protocol::Tcp),
            sport: Some(key.local_port),
            dport: Some(key.remote_port),
            ..RouteQuery::to(key.remote)
        }
    };
    let way = route::find(stack, plane, &query)?;
    if way.source != key.local {
        return Err(Refusal::Never(WhyOs::Route));
    }
    Ok((way, way.hop.ok_or(Refusal::Later("the neighbour is being resolved"))?))
}

#[cfg(test)]
mod tests;
