//! All that is known of a socket, as lines of text under the names that people look for.
//!
//! The names are those of the original product's engine. A line that has no counterpart here is not
//! there; a queue of segments is, as the bytes that would be in it, cut into segments.

use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::Shown;
use libvma_dev::stats::{BLOCKING, Counters, read_text};
use libvma_engine::tcp::connection::Transplant;
use libvma_engine::tcp::{Connection, Info, Settings, State as TcpState};

use super::report::kernels;
use super::report::traffic::KernelsId;
use super::stream::{Phase, Stream};
use super::{Socket, SocketId, Stack, State, clock};
use crate::shard::tcp::Body;
use crate::sys::loopback_end;

/// The lines about a socket of ours; none if it is gone.
pub fn lines(stack: &Stack, id: SocketId, descriptor: i32) -> Vec<String> {
    let held = stack.extra.amounts().1.get(&id).copied().unwrap_or_default();
    let Ok(mut state) = stack.shard.lock() else { return Vec::new() };
    let Some((counters, limit)) = super::counters(&mut state, id) else { return Vec::new() };
    let facts = state.connection(id).map(|connection| Facts::of(connection));
    let Some((endpoint, socket)) = state.socket(id) else { return Vec::new() };
    let queued = endpoint.datagrams();
    let mut lines = general(descriptor, socket);
    activity(&mut lines, &counters, limit);
    if held.packets > 0 {
        lines.push(format!(
            "Rx zero copy buffers : {} KB / {} [bytes/packets]",
            held.bytes / 1024,
            held.packets
        ));
    }
    match &socket.stream {
        None => {
            let options = &socket.options;
            lines.push(format!("Rx ready list size : {queued}"));
            // SOF_TIMESTAMPING_RX_SOFTWARE and SOF_TIMESTAMPING_SOFTWARE.
            let flags = if options.timestamping_software { 1 << 3 | 1 << 4 } else { 0 };
            lines.push(format!(
                "Socket timestamp : m_b_rcvtstamp {}, m_b_rcvtstampns {}, m_n_tsing_flags {flags}",
                options.timestamp, options.timestamp_ns
            ));
        }
        Some(stream) => {
            let tcp = facts.as_ref().map(|facts| facts.info.state);
            lines.push(format!("Socket state : {}", socket_state(stream, socket, tcp)));
            lines.push(format!("Connection state : {}", connection_state(stream, tcp)));
            if matches!(stream.phase, Phase::Listening { .. }) {
                lines.push("PCB state : LISTEN".to_owned());
            }
            if let Some(facts) = &facts {
                facts.lines(&mut lines);
            }
        }
    }
    lines
}

/// The lines about a socket of the kernel's; none if it is gone.
pub fn lines_of_kernels(stack: &Stack, id: KernelsId, descriptor: i32) -> Vec<String> {
    let Some(told) = kernels::tell(stack, id) else { return Vec::new() };
    let shown = |address: [u8; 4], port| Shown(SocketAddrV4::new(address.into(), port));
    let protocol = if id.is_stream() { "PROTO_TCP" } else { "PROTO_UDP" };
    let mut lines = vec![
        format!("Fd number : {descriptor}"),
        format!("Bind info : {}", shown(told.local, told.local_port)),
        format!("Connection info : {}", shown(told.peer, told.peer_port)),
        format!("Protocol : {protocol}"),
        "Is closed : SOCKINFO_OPENED".to_owned(),
        format!("Is blocking : {}", told.flags & BLOCKING != 0),
        "Is offloaded : false".to_owned(),
        format!("Served by the kernel because : {}", read_text(&told.reason)),
    ];
    activity(&mut lines, &told.counters, told.ready_limit as usize);
    lines
}

fn general(descriptor: i32, socket: &Socket) -> Vec<String> {
    let is_stream = socket.stream.is_some();
    let shown = |address: Option<SocketAddrV4>| {
        Shown(address.unwrap_or(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))).to_string()
    };
    let ask = if is_stream { loopback_end::shown } else { loopback_end::shown_of_datagrams };
    let local = socket.local.or_else(|| ask(socket.shadow()));
    let protocol = if is_stream { "PROTO_TCP" } else { "PROTO_UDP" };
    let mut lines = vec![
        format!("Fd number : {descriptor}"),
        format!("Bind info : {}", shown(local)),
        format!("Connection info : {}", shown(socket.peer)),
        format!("Protocol : {protocol}"),
        "Is closed : SOCKINFO_OPENED".to_owned(),
        format!("Is blocking : {}", !socket.nonblocking),
        format!("Is offloaded : {}", socket.state == State::Offloaded),
    ];
    if let State::Os(why) = socket.state {
        lines.push(format!("Served by the kernel because : {why}"));
    }
    lines
}

fn activity(lines: &mut Vec<String>, c: &Counters, limit: usize) {
    let before = lines.len();
    let share =
        |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    let mut traffic = |name: &str, bytes: u64, packets: u64, eagains: Option<u64>, errors: u64| {
        if bytes + packets + eagains.unwrap_or(0) + errors == 0 {
            return;
        }
        let bytes = bytes / 1024;
        lines.push(match eagains {
            Some(eagains) => format!(
                "{name} : {bytes} KB / {packets} / {eagains} / {errors} \
                 [bytes/packets/eagains/errors]"
            ),
            None => format!("{name} : {bytes} KB / {packets} / {errors} [bytes/packets/errors]"),
        });
    };
    let tx_errors = c.tx_errors + c.tx_dropped;
    traffic("Tx Offload", c.tx_bytes, c.tx_packets, Some(c.tx_eagain), tx_errors);
    traffic("Tx OS info", c.tx_os_bytes, c.tx_os_packets, None, c.tx_os_errors);
    if c.tx_dummy_packets > 0 {
        lines.push(format!("Tx Dummy messages : {}", c.tx_dummy_packets));
    }
    let mut traffic = |name: &str, bytes: u64, packets: u64, eagains: u64, errors: u64| {
        if bytes + packets + eagains + errors > 0 {
            lines.push(format!(
                "{name} : {} KB / {packets} / {eagains} / {errors} [bytes/packets/eagains/errors]",
                bytes / 1024
            ));
        }
    };
    traffic("Rx Offload", c.rx_bytes, c.rx_packets, c.rx_eagain, c.rx_errors);
    if c.rx_packets > 0 {
        let bytes = share(c.rx_dropped_bytes, c.rx_bytes + c.rx_dropped_bytes);
        let packets = share(c.rx_dropped_packets, c.rx_packets + c.rx_dropped_packets);
        lines.push(format!(
            "Rx byte : max {} / dropped {} ({bytes:.2}%) / limit {limit}",
            c.rx_ready_bytes_max, c.rx_dropped_bytes
        ));
        lines.push(format!(
            "Rx pkt : max {} / dropped {} ({packets:.2}%)",
            c.rx_ready_packets_max, c.rx_dropped_packets
        ));
    }
    let os = [c.rx_os_bytes, c.rx_os_packets, c.rx_os_eagain, c.rx_os_errors];
    if os.iter().any(|count| *count > 0) {
        let [bytes, packets, eagains, errors] = os;
        lines.push(format!(
            "Rx OS info : {} KB / {packets} / {eagains} / {errors} [bytes/packets/eagains/errors]",
            bytes / 1024
        ));
    }
    let polls = c.rx_poll_hits + c.rx_poll_misses;
    if polls > 0 {
        lines.push(format!(
            "Rx poll : {} / {} ({:.2}%) [miss/hit]",
            c.rx_poll_misses,
            c.rx_poll_hits,
            share(c.rx_poll_hits, polls)
        ));
    }
    if lines.len() == before {
        lines.push("Socket activity : Rx and Tx where not active".to_owned());
    }
}

fn socket_state(stream: &Stream, socket: &Socket, tcp: Option<TcpState>) -> &'static str {
    match (stream.phase, tcp) {
        (Phase::Fresh, _) if socket.local.is_some() => "TCP_SOCK_BOUND",
        (Phase::Fresh, _) => "TCP_SOCK_INITED",
        (Phase::Listening { .. }, _) => "TCP_SOCK_ACCEPT_READY",
        (Phase::Connecting, None | Some(TcpState::SynSent | TcpState::Closed)) => {
            "TCP_SOCK_ASYNC_CONNECT"
        }
        (_, Some(TcpState::CloseWait)) => "TCP_SOCK_CONNECTED_WR",
        (_, Some(TcpState::FinWait1 | TcpState::FinWait2)) => "TCP_SOCK_CONNECTED_RD",
        (_, Some(state)) if !state.is_synchronized() => "TCP_SOCK_BOUND",
        _ => "TCP_SOCK_CONNECTED_RDWR",
    }
}

fn connection_state(stream: &Stream, tcp: Option<TcpState>) -> &'static str {
    match (stream.phase, tcp) {
        (Phase::Fresh | Phase::Listening { .. }, _) => "TCP_CONN_INIT",
        (Phase::Connecting, Some(TcpState::SynSent) | None) => "TCP_CONN_CONNECTING",
        (_, Some(TcpState::Closed)) => "TCP_CONN_ERROR",
        _ => "TCP_CONN_CONNECTED",
    }
}

/// What a connection says of itself.
struct Facts {
    info: Info,
    numbers: Transplant,
    settings: Settings,
    queued: u32,
    unacknowledged: u32,
    unsent: u32,
}

impl Facts {
    fn of(connection: &Connection<Body>) -> Facts {
        let now = clock::now();
        Facts {
            info: connection.info(now),
            numbers: connection.transplant(now),
            settings: connection.settings().clone(),
            queued: connection.queued(),
            unacknowledged: connection.unacknowledged(),
            unsent: connection.unsent(),
        }
    }

    fn lines(&self, lines: &mut Vec<String>) {
        let (info, numbers) = (&self.info, &self.numbers);
        let most = self.settings.receive_buffer.most;
        let (rcv_nxt, snd_nxt) = (numbers.rcv_nxt.raw(), numbers.snd_nxt.raw());
        lines.push(format!(
            "Receive buffer : m_rcvbuff_current {}, m_rcvbuff_max {}, m_rcvbuff_non_tcp_recved 0",
            self.queued, info.receive_limit
        ));
        lines.push(format!("PCB state : {}", state_name(info.state)));
        lines.push(format!("PCB flags : 0x{:x}", self.flags()));
        lines.push(format!(
            "Segment size : mss {}, advtsd_mss {}",
            info.snd_mss, info.advertised_mss
        ));
        if info.window_scaling {
            let (rcv, snd) = (info.rcv_scale, info.snd_scale);
            lines.push(format!("Window scaling : ENABLED, rcv_scale {rcv}, snd_scale {snd}"));
        } else {
            lines.push("Window scaling : DISABLED".to_owned());
        }
        let window = |bytes: u32, scale: u8| match info.window_scaling {
            true => format!("{bytes} ({})", bytes >> scale),
            false => bytes.to_string(),
        };
        let receive = |bytes| window(bytes, info.rcv_scale);
        lines.push(format!(
            "Receive window : rcv_wnd {}, rcv_ann_wnd {}, rcv_wnd_max {}, rcv_wnd_max_desired {}",
            receive(info.rcv_wnd),
            receive(info.rcv_wnd),
            receive(info.receive_limit),
            receive(most)
        ));
        lines.push(format!(
            "Send window : snd_wnd {}, snd_wnd_max {}",
            window(info.snd_wnd, info.snd_scale),
            window(numbers.max_snd_wnd, info.snd_scale)
        ));
        lines.push(format!("Congestion : cwnd {}", info.cwnd));
        lines.push(format!(
            "Receiver data : rcv_nxt {rcv_nxt}, rcv_ann_right_edge {}",
            rcv_nxt.wrapping_add(info.rcv_wnd)
        ));
        // Whatever updated the window last acknowledged all that is acknowledged.
        lines.push(format!(
            "Sender data : snd_nxt {snd_nxt}, snd_wl1 {}, snd_wl2 {}",
            numbers.snd_wl1.raw(),
            numbers.snd_una.raw()
        ));
        let limit = self.settings.send_buffer.limit;
        lines.push(format!(
            "Send buffer : snd_buf {}, max_snd_buff {limit}",
            limit.saturating_sub(self.unacknowledged)
        ));
        // No timer runs while nothing is under way.
        let waits = if info.unacknowledged > 0 { info.since_sent.as_millis() as i64 } else { -1 };
        lines.push(format!(
            "Retransmission : rtime {waits}, rto {}, nrtx {}",
            info.rto.as_millis(),
            info.retransmits
        ));
        queue(lines, "unsent", snd_nxt, self.unsent, info.snd_mss);
        queue(lines, "unacked", numbers.snd_una.raw(), info.unacknowledged, info.snd_mss);
        lines.push(format!("Acknowledge : lastack {}", numbers.snd_una.raw()));
    }

    /// As the original engine's names have them: TF_INFR, TF_TIMESTAMP, TF_FIN, TF_NODELAY,
    /// TF_WND_SCALE.
    fn flags(&self) -> u32 {
        let each = [
            (self.info.is_recovering, 0x4),
            (self.info.timestamps, 0x8),
            (self.numbers.writing_ended, 0x20),
            (self.settings.nodelay, 0x40),
            (self.info.window_scaling, 0x100),
        ];
        each.into_iter().filter(|(holds, _)| *holds).fold(0, |flags, (_, flag)| flags | flag)
    }
}

/// The first and the last segment of so many bytes.
fn queue(lines: &mut Vec<String>, name: &str, start: u32, len: u32, mss: u32) {
    if len == 0 {
        return lines.push(format!("First {name} : NULL"));
    }
    let mss = mss.max(1);
    let mut segment = |which: &str, seqno: u32, len: u32| {
        let end = seqno.wrapping_add(len);
        lines.push(format!("{which} {name} : seqno {seqno}, len {len}, seqno + len {end}"));
    };
    segment("First", start, len.min(mss));
    let last = (len - 1) % mss + 1;
    segment("Last", start.wrapping_add(len - last), last);
}

fn state_name(state: TcpState) -> &'static str {
    match state {
        TcpState::Closed => "CLOSED",
        TcpState::SynSent => "SYN_SENT",
        TcpState::SynReceived => "SYN_RCVD",
        TcpState::Established => "ESTABLISHED",
        TcpState::FinWait1 => "FIN_WAIT_1",
        TcpState::FinWait2 => "FIN_WAIT_2",
        TcpState::CloseWait => "CLOSE_WAIT",
        TcpState::Closing => "CLOSING",
        TcpState::LastAck => "LAST_ACK",
        TcpState::TimeWait => "TIME_WAIT",
    }
}

#[cfg(test)]
mod tests;
