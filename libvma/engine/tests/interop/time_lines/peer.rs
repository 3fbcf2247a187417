//! The kernel's socket of a time line, and its peer, which is the time line.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use libvma_engine::tcp::EcnField;
use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::wire::ipv4;
use libvma_engine::wire::tcp::{Flags, Header, Options, SackBlock, Timestamps};

use super::TimeLine;
use crate::host::{OURS, PORT, THEIRS, packet};
use crate::notation::{number, parse};
use crate::script::{IRS, ISS};
use crate::tun::Tun;

const TCP_RTO_MAX_MS: i32 = 44;
const TCP_RTO_MIN_US: i32 = 45;
const TCP_DELACK_MAX_US: i32 = 46;

/// RFC 3168 section 5.
const ECT_0: u8 = 2;
const CE: u8 = 3;

/// A segment that the kernel sent, or is to send.
pub struct Sent {
    /// In milliseconds from the start.
    pub at: f64,
    pub text: String,
    /// Its window, its ECN field and the time stamp that it echoes (`te=`), as words.
    pub more: Vec<String>,
}

/// The kernel's socket and its peer.
pub struct Peer {
    pub tun: Tun,
    /// None once the program has closed it.
    pub socket: Option<OwnedFd>,
    key: FlowKey,
    iss: Option<u32>,
    /// The first of the kernel's time stamps.
    stamp: u32,
    start: Instant,
    /// Its send buffer may be full.
    is_small: bool,
    /// The connection waits to be accepted.
    pub listens: bool,
    pub sent: Vec<Sent>,
}

impl Peer {
    pub fn new(tun: Tun, line: &TimeLine) -> Peer {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_INET, kind, 0) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the descriptor was just opened, and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let key = FlowKey { local: OURS, local_port: PORT, remote: THEIRS, remote_port: 0 };
        let (start, sent) = (Instant::now(), Vec::new());
        let is_small = line.has("sndbuf(");
        let (socket, listens) = (Some(socket), false);
        let peer = Peer { tun, socket, key, iss: None, stamp: 0, start, is_small, listens, sent };
        peer.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 1 << 20);
        let tcp = libc::IPPROTO_TCP;
        if line.has("nodelay: true") {
            peer.set(tcp, libc::TCP_NODELAY, 1);
        }
        if line.has("keep_alive()") {
            peer.set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
            peer.set(tcp, libc::TCP_KEEPIDLE, 10);
        }
        let millis = "Millis::from_millis(";
        for (setting, name, factor) in [
            ("least_rto: ", TCP_RTO_MIN_US, 1000),
            ("most_rto: ", TCP_RTO_MAX_MS, 1),
            ("most_ack_delay: ", TCP_DELACK_MAX_US, 1000),
        ] {
            let value = line.number_of(&format!("{setting}{millis}"));
            if let Some(value) = value.filter(|_| !line.has("of_the_host(")) {
                peer.set(tcp, name, value * factor);
            }
        }
        for (setting, name) in [("rcvbuf(", libc::SO_RCVBUF), ("sndbuf(", libc::SO_SNDBUF)] {
            if let Some(bytes) = line.number_of(setting) {
                peer.set(libc::SOL_SOCKET, name, bytes);
            }
        }
        if line.has("reset_on_close: true") {
            peer.linger_zero();
        }
        let name: &[u8] = if line.has("NewReno") { b"reno" } else { b"cubic" };
        peer.set_bytes(tcp, libc::TCP_CONGESTION, name);
        peer
    }

    pub fn fd(&self) -> i32 {
        self.socket.as_ref().expect("the socket is open").as_raw_fd()
    }

    fn set(&self, level: i32, name: i32, value: i32) {
        self.set_bytes(level, name, &value.to_ne_bytes());
    }

    fn set_bytes(&self, level: i32, name: i32, value: &[u8]) {
        let (pointer, len) = (value.as_ptr().cast(), value.len() as u32);
        // SAFETY: the pointer is to so many bytes.
        let result = unsafe { libc::setsockopt(self.fd(), level, name, pointer, len) };
        assert_eq!(result, 0, "option {name}: {}", std::io::Error::last_os_error());
    }

    pub fn linger_zero(&self) {
        let bytes = [1i32.to_ne_bytes(), 0i32.to_ne_bytes()].concat();
        self.set_bytes(libc::SOL_SOCKET, libc::SO_LINGER, &bytes);
    }

    /// Another port of the peer's than that of the time lines, so that connections do not follow each other.
    pub fn set_port(&mut self, port: u16) {
        self.key.local_port = port;
    }

    /// The socket listens. The first call of the program that follows accepts the connection.
    pub fn listen(&mut self) {
        self.set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
        let address = address(THEIRS, PORT);
        let len = size_of::<libc::sockaddr_in>() as u32;
        // SAFETY: the pointer is to an address of that size.
        let bound = unsafe { libc::bind(self.fd(), (&raw const address).cast(), len) };
        // SAFETY: no pointers.
        let listens = unsafe { libc::listen(self.fd(), 8) };
        assert_eq!((bound, listens), (0, 0), "{}", std::io::Error::last_os_error());
        self.key.remote_port = PORT;
        self.listens = true;
    }

    /// Accepts the connection if that is still to be done. False: there is none.
    pub fn accept_first(&mut self) -> bool {
        !self.listens || self.accept()
    }

    fn accept(&mut self) -> bool {
        let (address, len) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: no address is asked for.
        let fd = unsafe { libc::accept4(self.fd(), address, len, libc::SOCK_NONBLOCK) };
        if fd < 0 {
            return false;
        }
        // SAFETY: the descriptor was just opened, and nobody else has it.
        self.socket = Some(unsafe { OwnedFd::from_raw_fd(fd) });
        self.listens = false;
        true
    }

    fn connect(&mut self) {
        let address = address(OURS, self.key.local_port);
        let len = size_of::<libc::sockaddr_in>() as u32;
        // SAFETY: the pointer is to an address of that size.
        let result = unsafe { libc::connect(self.fd(), (&raw const address).cast(), len) };
        let error = std::io::Error::last_os_error();
        assert!(result == 0 || error.raw_os_error() == Some(libc::EINPROGRESS), "{error}");
    }

    /// A round trip of 10 ms, whose end is the time 0.
    pub fn handshake(&mut self, line: &TimeLine) {
        self.connect();
        self.wait_until(10.0);
        let mut answer = "SA 0+0 a1 mss=1460".to_owned();
        for (setting, option) in [
            ("sack", " sackok"),
            ("window_scaling: true", " ws=7"),
            ("timestamps: true", " ts=1000000/10000"),
        ] {
            if line.has(setting) {
                answer += option;
            }
        }
        self.send(&answer);
        self.start = Instant::now();
        self.receive();
        self.sent.clear();
    }

    fn millis(&self) -> f64 {
        self.start.elapsed().as_secs_f64() * 1000.0
    }

    pub fn wait_until(&mut self, at: f64) {
        loop {
            self.receive();
            let left = at - self.millis();
            if left <= 0.0 {
                return;
            }
            self.tun.wait_for(Duration::from_micros((left * 1000.0) as u64));
        }
    }

    /// Takes what the kernel has sent.
    pub fn receive(&mut self) {
        let mut buffer = [0; 2048];
        loop {
            match self.tun.read(&mut buffer) {
                Ok(len) => self.note(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("reading the TUN device: {error}"),
            }
        }
    }

    fn note(&mut self, bytes: &[u8]) {
        let Ok(ip) = ipv4::Header::parse(bytes, bytes.len()) else { return };
        let segment = &bytes[ip.header_len()..ip.total_len()];
        let Ok((header, len)) = Header::parse(segment, segment.len()) else { return };
        // Of another connection.
        if header.dst_port != self.key.local_port {
            return;
        }
        if self.iss.is_none() {
            self.iss = Some(header.seq);
            self.key.remote_port = header.src_port;
            self.stamp = header.options.timestamps.map_or(0, |stamps| stamps.value);
        }
        if header.src_port != self.key.remote_port {
            return;
        }
        let names = [
            (Flags::SYN, 'S'),
            (Flags::FIN, 'F'),
            (Flags::RST, 'R'),
            (Flags::ACK, 'A'),
            (Flags::URG, 'U'),
            (Flags::ECE, 'E'),
            (Flags::CWR, 'C'),
        ];
        let flags = names.iter().filter(|(flag, _)| header.flags.contains(*flag));
        let mut text: String = flags.map(|(_, name)| *name).collect();
        let seq = header.seq.wrapping_sub(self.iss.unwrap_or_default());
        text += &format!(" {seq}+{}", segment.len() - len);
        if header.flags.contains(Flags::ACK) {
            text += &format!(" a{}", header.ack.wrapping_sub(IRS));
        }
        for block in header.options.sack() {
            let relative = |number: u32| number.wrapping_sub(IRS);
            text += &format!(" [{}-{}]", relative(block.left), relative(block.right));
        }
        let is_capable = ip.tos & 3 != 0;
        let mut more =
            vec![format!("w={}", header.window), if is_capable { "ect" } else { "noect" }.into()];
        more.extend(header.options.timestamps.map(|stamps| format!("te={}", stamps.echo)));
        self.sent.push(Sent { at: self.millis(), text, more });
    }

    /// Sends a segment as its line has it.
    pub fn send(&mut self, text: &str) {
        let segment = parse(text);
        // A SYN for a listener comes before the kernel's.
        let iss = self.iss.unwrap_or_default();
        let mut options = Options {
            timestamps: segment.options.timestamps.map(|stamps| {
                // The engine's clock begins with 10 000.
                // 0 stands for none.
                let echo = match stamps.echo {
                    0 => 0,
                    echo => echo.wrapping_sub(10_000).wrapping_add(self.stamp),
                };
                Timestamps { echo, ..stamps }
            }),
            ..Options::default()
        };
        options.mss = segment.options.mss;
        options.window_scale = segment.options.window_scale;
        options.sack_permitted = segment.options.sack_permitted;
        for block in segment.options.sack() {
            let absolute = |number: u32| number.wrapping_sub(ISS).wrapping_add(iss);
            options
                .push_sack(SackBlock { left: absolute(block.left), right: absolute(block.right) });
        }
        let has_ack = segment.flags.contains(Flags::ACK);
        let header = Header {
            src_port: self.key.local_port,
            dst_port: self.key.remote_port,
            seq: IRS.wrapping_add(segment.seq),
            ack: if has_ack { iss.wrapping_add(segment.ack) } else { 0 },
            flags: segment.flags,
            window: segment.window,
            urgent: segment.urgent,
            options,
            ..Header::default()
        };
        // ECN's field does not matter to a connection without it.
        let ecn = match segment.ecn_field() {
            EcnField::Congestion => CE,
            EcnField::NotCapable => 0,
            EcnField::Capable => ECT_0,
        };
        let body: Vec<u8> = (0..segment.len).map(|at| segment.seq.wrapping_add(at) as u8).collect();
        let sent = packet(self.key, header, &body, ecn);
        self.tun.write(&sent);
    }

    /// A call of the program. Some: something was to be found that is not there.
    pub fn call(&mut self, what: &str) -> Option<String> {
        let words: Vec<&str> = what.split_whitespace().collect();
        let tcp = libc::IPPROTO_TCP;
        if what != "end" {
            assert!(self.accept_first(), "accept: {}", std::io::Error::last_os_error());
        }
        match words[..] {
            ["connect"] => self.connect(),
            ["write", len] => self.write(number(len), 0),
            ["write", len, "more"] => self.write(number(len), libc::MSG_MORE),
            ["write", len, _] => self.write(number(len), libc::MSG_OOB),
            ["read", len] => self.read(number(len)),
            ["shutdown"] => {
                // SAFETY: no pointers.
                unsafe { libc::shutdown(self.fd(), libc::SHUT_WR) };
            }
            ["close"] => self.socket = None,
            ["abort"] => {
                self.linger_zero();
                self.socket = None;
            }
            ["cork"] => self.set(tcp, libc::TCP_CORK, 1),
            ["uncork"] => self.set(tcp, libc::TCP_CORK, 0),
            ["nodelay"] => self.set(tcp, libc::TCP_NODELAY, 1),
            ["quickack"] => self.set(tcp, libc::TCP_QUICKACK, 1),
            ["pingpong"] => self.set(tcp, libc::TCP_QUICKACK, 0),
            ["error", error] => return self.check_error(error),
            // The window is not the same in Linux's terms, and a state is shown by what leaves.
            ["state" | "cwnd" | "ssthresh" | "queued" | "window", _] | ["end"] => {}
            _ => return Some(format!("no such call of the kernel: {what}")),
        }
        None
    }

    fn write(&self, len: u32, flags: i32) {
        let data = vec![7u8; len as usize];
        // SAFETY: the pointer is to so many bytes.
        let sent = unsafe { libc::send(self.fd(), data.as_ptr().cast(), data.len(), flags) };
        let full = std::io::Error::last_os_error().kind() == ErrorKind::WouldBlock;
        let expected = data.len() as isize;
        assert!(sent == expected || self.is_small && full, "{sent} of {expected} bytes");
    }

    fn read(&self, len: u32) {
        let mut data = vec![0u8; len as usize];
        // SAFETY: the pointer is to so many bytes.
        unsafe { libc::recv(self.fd(), data.as_mut_ptr().cast(), data.len(), 0) };
    }

    fn check_error(&self, expected: &str) -> Option<String> {
        let mut error = 0i32;
        let (pointer, mut len) = ((&raw mut error).cast(), size_of::<i32>() as u32);
        let (level, name) = (libc::SOL_SOCKET, libc::SO_ERROR);
        // SAFETY: the pointers are to integers of that size.
        unsafe { libc::getsockopt(self.fd(), level, name, pointer, &raw mut len) };
        let found = match error {
            0 => "none",
            libc::ECONNRESET => "Reset",
            libc::ECONNREFUSED => "Refused",
            libc::EPIPE => "BrokenPipe",
            libc::ETIMEDOUT => "TimedOut",
            _ => "another one",
        };
        (found != expected).then(|| format!("error {found} and not {expected}"))
    }
}

/// Of the kernel's socket, or its peer.
fn address(host: std::net::Ipv4Addr, port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(host).to_be() },
        sin_zero: [0; 8],
    }
}
