//! The steps of a transplantation, and of undoing it.

use core::ffi::c_int;
use std::net::SocketAddrV4;

use super::calls::{Queue, RepairOption, RepairWindow};
use super::forge::{self, Segment};
use super::{Error, REPAIR_OFF_SILENTLY, REPAIR_ON, Snapshot, State, WindowScale};
use super::{received_data, sent_data, total};
use crate::sys::shadow;
use crate::sys::sockaddr::Family;
use crate::sys::wait::{self, PollFd};

/// The socket installed into.
pub struct Target {
    pub fd: c_int,
    /// No socket filter is attached (socket(7), SO_ATTACH_FILTER), so one of ours may be.
    pub unfiltered: bool,
    /// The program's TCP_MAXSEG, 0 if it set none.
    pub segment_size: c_int,
}

impl Target {
    pub fn transplant(&self, snapshot: &Snapshot<'_>) -> Result<(), Error> {
        self.deafen();
        self.connect(snapshot)?;
        let buffers = self.raise_buffers(snapshot);
        let result = self.fill(snapshot).and_then(|()| self.start(snapshot));
        self.restore_buffers(buffers);
        result
    }

    /// Lets the socket receive nothing: a segment that came between two of the steps would be
    /// judged by half a state.
    pub fn deafen(&self) {
        if !self.unfiltered {
            return;
        }
        // One instruction: accept 0 bytes of the packet.
        let mut program =
            [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
        let program = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
        // Without it there is merely no protection against such a segment.
        let _ = self.set("SO_ATTACH_FILTER", libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program);
    }

    pub fn hear(&self) {
        if self.unfiltered {
            shadow::set_int_option(self.fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
        }
    }

    /// ESTABLISHED with empty queues, the options and nothing sent.
    fn connect(&self, snapshot: &Snapshot<'_>) -> Result<(), Error> {
        // Whether it takes IPv6 only does not matter.
        match shadow::local_name(self.fd).map(|bound| bound.port()) {
            Some(0) => self.bind(snapshot.local)?,
            Some(port) if port == snapshot.local.port() => {}
            _ => return Err(Error { call: "bind", errno: libc::EINVAL }),
        }
        // The sequence numbers can be set before the connect only.
        let unread = total(snapshot.unread) as u32;
        let receive = received_data(snapshot).wrapping_sub(unread);
        self.choose(Queue::Send)?;
        self.set("TCP_QUEUE_SEQ", libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, &sent_data(snapshot))?;
        self.choose(Queue::Receive)?;
        self.set("TCP_QUEUE_SEQ", libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, &receive)?;

        // The MSS option of repair mode bounds the kernel's MSS, but the kernel has computed it in
        // the connect already, from a default of 536; TCP_MAXSEG comes in time.
        let segment_size = c_int::from(snapshot.segment_size).clamp(SMALLEST_MAXSEG, MOST_MAXSEG);
        self.set_int("TCP_MAXSEG", libc::IPPROTO_TCP, libc::TCP_MAXSEG, segment_size)?;
        let connected = self.connect_to(snapshot.remote);
        let connected = connected.or_else(|error| match error.errno {
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL | libc::ENODEV => {
                self.beyond_routes(|| self.connect_to(snapshot.remote))
            }
            _ => Err(error),
        });
        self.set_int("TCP_MAXSEG", libc::IPPROTO_TCP, libc::TCP_MAXSEG, self.segment_size)?;
        connected?;
        // A socket that is bound to the port only got its address from the routes just now.
        if shadow::local_address(self.fd) != Some(snapshot.local) {
            return Err(Error { call: "connect", errno: libc::EADDRNOTAVAIL });
        }
        self.negotiate(snapshot)
    }

    /// Also to an address that is gone.
    pub fn bind(&self, local: SocketAddrV4) -> Result<(), Error> {
        let bind = || self.bind_to(local);
        bind().or_else(|error| match error.errno {
            libc::EADDRNOTAVAIL => self.beyond_routes(bind),
            _ => Err(error),
        })
    }

    /// Does what the kernel refuses while the local address, or every route to the peer, is gone: not
    /// so for a socket that may have any address, nor for one that is bound to a device, whose link
    /// it then takes the peer to be on.
    fn beyond_routes(&self, call: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let transparent = match shadow::family(self.fd) {
            Family::Ipv4 => (libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1),
            // Of a mapped address, too: the kernel keeps one flag for both.
            Family::Ipv6 => (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1),
        };
        let options = [transparent, (libc::SOL_SOCKET, BIND_TO_INDEX, LOOPBACK_INDEX)];
        let before = options.map(|(level, name, value)| {
            let before = shadow::int_option(self.fd, level, name).unwrap_or(0);
            shadow::set_int_option(self.fd, level, name, value);
            before
        });
        let result = call();
        for ((level, name, _), before) in options.into_iter().zip(before) {
            shadow::set_int_option(self.fd, level, name, before);
        }
        result
    }

    /// What the SYN segments negotiated.
    fn negotiate(&self, snapshot: &Snapshot<'_>) -> Result<(), Error> {
        let set = |kind: u32, value: u32| {
            let option = RepairOption { kind, value };
            self.set("TCP_REPAIR_OPTIONS", libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, &option)
        };
        set(OPTION_SEGMENT_SIZE, u32::from(snapshot.segment_size))?;
        // Set also without the option, to 0: the connect has chosen a shift count of its own, which
        // would make the kernel offer a fraction of its window.
        let none = WindowScale { send: 0, receive: 0 };
        let scale = snapshot.window_scale.unwrap_or(none);
        set(OPTION_WINDOW_SCALE, u32::from(scale.send) | u32::from(scale.receive) << 16)?;
        if snapshot.sack {
            set(OPTION_SACK_PERMITTED, 0)?;
        }
        if snapshot.timestamps.is_some() {
            set(OPTION_TIMESTAMPS, 0)?;
        }
        Ok(())
    }

    /// The queues, the windows and the clock.
    fn fill(&self, snapshot: &Snapshot<'_>) -> Result<(), Error> {
        self.choose(Queue::Receive)?;
        self.write("receive queue", snapshot.unread)?;
        // What repair mode puts into the send queue counts as sent.
        self.choose(Queue::Send)?;
        self.write("send queue", &snapshot.unacknowledged)?;
        self.choose(Queue::None)?;

        let receive_next = received_data(snapshot);
        let window = RepairWindow {
            // So that any segment updates the window, as the kernel has it after a window probe.
            update_sequence: receive_next.wrapping_sub(1),
            send_window: snapshot.send_window,
            largest_send_window: snapshot.largest_send_window.max(snapshot.send_window),
            // The FIN, if it is still to be forged, must fit into it.
            receive_window: snapshot
                .receive_window
                .saturating_add(u32::from(snapshot.state.has_received_fin())),
            receive_update: receive_next,
        };
        self.set("TCP_REPAIR_WINDOW", libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &window)?;

        if let Some(timestamps) = snapshot.timestamps {
            // Bit 0 means microseconds to the kernel (since 6.7). TSval must not go back (RFC 7323
            // section 5.3), so it is rounded up.
            let value = timestamps.value.wrapping_add(timestamps.value & 1);
            self.set("TCP_TIMESTAMP", libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, &value)?;
        }
        Ok(())
    }

    /// Ends repair mode and does what the wire shall see.
    fn start(&self, snapshot: &Snapshot<'_>) -> Result<(), Error> {
        self.hear();
        let state = snapshot.state;
        if state == State::TimeWait {
            return self.start_waiting(snapshot);
        }
        if state == State::Closed {
            return self.end(snapshot);
        }
        // In CLOSING our FIN went first.
        let closing = state == State::Closing;
        let last = if state.forges_fin() { Segment::Fin } else { Segment::Acknowledgment };
        if !closing && (last == Segment::Fin || snapshot.timestamps.is_some()) {
            self.forge(snapshot, last)?;
        }
        // Without a window probe: that is for [`super::probe`], when its answer will arrive.
        self.set_int("TCP_REPAIR", libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_OFF_SILENTLY)?;
        self.write("send", &snapshot.unsent)?;
        if state.has_sent_fin() {
            self.shut_down(libc::SHUT_WR)?;
        }
        if closing {
            self.forge(snapshot, Segment::Fin)?;
        }
        Ok(())
    }

    /// FIN-WAIT-2 without a word to the peer: what the kernel sends into the send queue of repair mode,
    /// it does not transmit, and a forged segment acknowledges it. From there the peer's FIN leads to
    /// TIME-WAIT, in which the socket is closed and a timer of the kernel has the rest.
    fn start_waiting(&self, snapshot: &Snapshot<'_>) -> Result<(), Error> {
        self.choose(Queue::Send)?;
        self.shut_down(libc::SHUT_WR)?;
        self.choose(Queue::None)?;
        self.forge(snapshot, Segment::Acknowledgment)?;
        self.set_int("TCP_LINGER2", libc::IPPROTO_TCP, libc::TCP_LINGER2, WAIT_SECONDS)?;
        if snapshot.is_held {
            self.forge(snapshot, Segment::Fin)?;
        }
        self.set_int("TCP_REPAIR", libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_OFF_SILENTLY)
    }

    /// CLOSED. What was received stays readable.
    fn end(&self, snapshot: &Snapshot<'_>) -> Result<(), Error> {
        self.forge(snapshot, Segment::Reset)?;
        self.set_int("TCP_REPAIR", libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_OFF_SILENTLY)?;
        if !snapshot.failed {
            // Reading it clears it.
            let _ = shadow::int_option(self.fd, libc::SOL_SOCKET, libc::SO_ERROR);
        }
        Ok(())
    }

    /// The kernel learns TS.Recent and the peer's FIN from a segment of our making.
    fn forge(&self, snapshot: &Snapshot<'_>, segment: Segment) -> Result<(), Error> {
        // Bound to a device, the socket would not be found for a segment from the loopback.
        let device = shadow::int_option(self.fd, libc::SOL_SOCKET, BIND_TO_INDEX).unwrap_or(0);
        if device != 0 {
            shadow::set_int_option(self.fd, libc::SOL_SOCKET, BIND_TO_INDEX, 0);
        }
        let sent = forge::send(snapshot, segment);
        let (fin, reset) = (segment == Segment::Fin, segment == Segment::Reset);
        let seen = (fin || reset) && sent.is_ok() && self.wait_for_end();
        if device != 0 {
            shadow::set_int_option(self.fd, libc::SOL_SOCKET, BIND_TO_INDEX, device);
        }
        if reset && !seen {
            if snapshot.failed {
                return Err(sent.err().unwrap_or(Error { call: "reset", errno: libc::ETIMEDOUT }));
            }
            self.shut_down(libc::SHUT_RDWR)?;
        }
        if fin && !seen {
            // No loopback, a firewall, no CAP_NET_RAW: the program sees the same end of the data.
            // The kernel acknowledges one less than it should, which the peer takes for an old
            // acknowledgment, and it will wait for a second FIN in vain, `tcp_fin_timeout` long.
            self.shut_down(libc::SHUT_RD)?;
        }
        Ok(())
    }

    /// The loopback usually delivers within the call that sends.
    fn wait_for_end(&self) -> bool {
        const LIMIT: u64 = 20_000_000;
        let mut one = [PollFd { fd: self.fd, events: libc::POLLRDHUP, revents: 0 }];
        wait::ppoll(&mut one, Some(LIMIT), None) == Ok(1)
    }

    /// Makes room for the queues, and in the receive queue for all that the peer may send.
    fn raise_buffers(&self, snapshot: &Snapshot<'_>) -> Buffers {
        // A little more: the kernel counts its own structures too, twice the payload at most here.
        const MORE: usize = 1 << 17;
        let before = Buffers {
            locks: shadow::int_option(self.fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK),
            send: shadow::int_option(self.fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0),
            receive: shadow::int_option(self.fd, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0),
        };
        let send = total(&snapshot.unacknowledged) + total(&snapshot.unsent);
        let receive = total(snapshot.unread) + snapshot.receive_window as usize;
        for (name, size, before) in [
            (libc::SO_SNDBUFFORCE, send, before.send),
            (libc::SO_RCVBUFFORCE, receive, before.receive),
        ] {
            // The kernel doubles it.
            let size = (size + MORE).min(c_int::MAX as usize / 2) as c_int;
            if before / 2 < size {
                shadow::set_int_option(self.fd, libc::SOL_SOCKET, name, size);
            }
        }
        before
    }

    /// A size that the program chose is its own again. A receive buffer that the kernel sizes stays
    /// as large as the window that the peer was offered, and goes on growing.
    fn restore_buffers(&self, before: Buffers) {
        let locks = before.locks.unwrap_or(0);
        shadow::set_int_option(self.fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, before.send / 2);
        if locks & LOCK_RECEIVE != 0 {
            let size = before.receive / 2;
            shadow::set_int_option(self.fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, size);
        }
        shadow::set_int_option(self.fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK, locks);
    }

    /// Takes everything out again, without a word to the peer.
    pub fn uproot(&self) {
        shadow::set_int_option(self.fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_ON);
        let _ = self.disconnect();
        // Reading it clears the ECONNABORTED that a connection in repair leaves behind.
        let _ = shadow::int_option(self.fd, libc::SOL_SOCKET, libc::SO_ERROR);
        let silently = REPAIR_OFF_SILENTLY;
        shadow::set_int_option(self.fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, silently);
        self.hear();
    }
}

/// The buffers as the kernel or the program sized them.
struct Buffers {
    locks: Option<c_int>,
    send: c_int,
    receive: c_int,
}

/// A peer whose last acknowledgment was lost repeats its FIN 200 ms later, then after 400, 800 and so on:
/// five more may be lost.
const WAIT_SECONDS: c_int = 10;

const OPTION_SEGMENT_SIZE: u32 = 2;
const OPTION_WINDOW_SCALE: u32 = 3;
const OPTION_SACK_PERMITTED: u32 = 4;
const OPTION_TIMESTAMPS: u32 = 8;

/// What TCP_MAXSEG takes (`TCP_MIN_MSS`, `MAX_TCP_WINDOW`).
const SMALLEST_MAXSEG: c_int = 88;
const MOST_MAXSEG: c_int = 32767;
/// SO_BINDTOIFINDEX
pub const BIND_TO_INDEX: c_int = 62;
/// LOOPBACK_IFINDEX: the loopback interface of each network namespace.
const LOOPBACK_INDEX: c_int = 1;
/// SOCK_RCVBUF_LOCK, as SO_BUF_LOCK has it.
const LOCK_RECEIVE: c_int = 2;
