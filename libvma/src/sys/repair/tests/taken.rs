//! The state of a kernel connection, taken out by the getters of repair mode.

use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use super::*;

/// A connection that no socket has any more.
#[derive(Clone, Debug)]
pub struct Taken {
    pub local: SocketAddrV4,
    pub remote: SocketAddrV4,
    pub state: State,
    pub send_unacknowledged: u32,
    pub sent: Vec<u8>,
    pub unsent: Vec<u8>,
    pub send_window: u32,
    pub largest_send_window: u32,
    pub receive_next: u32,
    pub receive_window: u32,
    pub unread: Vec<u8>,
    pub segment_size: u16,
    pub window_scale: Option<WindowScale>,
    pub sack: bool,
    pub timestamps: Option<Timestamps>,
    pub failed: bool,
    pub is_held: bool,
}

impl Taken {
    /// Takes the state of `stream` and makes the socket vanish without a word. `peer` is the other
    /// end: the kernel does not tell TS.Recent, but the peer has the clock it came from.
    pub fn from(stream: TcpStream, peer: &TcpStream) -> Taken {
        let fd = stream.as_raw_fd();
        let get = |name| shadow::int_option(fd, libc::IPPROTO_TCP, name).unwrap() as u32;
        let set = |name, value| shadow::set_int_option(fd, libc::IPPROTO_TCP, name, value);
        let before = information(&stream);
        set(libc::TCP_REPAIR, REPAIR_ON);
        let mut window = [0u8; 20];
        shadow::option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &mut window).unwrap();
        let window: Vec<u32> =
            window.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect();

        let state = match before.tcpi_state {
            ESTABLISHED => State::Established,
            FIN_WAIT_1 => State::FinWait1,
            FIN_WAIT_2 => State::FinWait2,
            CLOSE_WAIT => State::CloseWait,
            CLOSING => State::Closing,
            LAST_ACK => State::LastAck,
            other => panic!("state {other}"),
        };
        set(libc::TCP_REPAIR_QUEUE, Queue::Receive as i32);
        let receive_next = get(libc::TCP_QUEUE_SEQ);
        let unread = peek(fd);
        set(libc::TCP_REPAIR_QUEUE, Queue::Send as i32);
        let send_end = get(libc::TCP_QUEUE_SEQ);
        let (queued, never_sent) = (outgoing(fd, SIOCOUTQ), outgoing(fd, SIOCOUTQNSD));
        let mut sent = peek(fd);
        // The kernel's numbers count a FIN.
        let fin = queued - sent.len();
        assert!(fin <= 1);
        let unsent = sent.split_off((queued - never_sent).min(sent.len()));

        let has = |bit| before.tcpi_options & bit != 0;
        let scale = before.tcpi_snd_rcv_wscale;
        let taken = Taken {
            local: shadow::local_address(fd).unwrap(),
            remote: shadow::peer_address(fd).unwrap(),
            state,
            send_unacknowledged: send_end.wrapping_sub(queued as u32),
            sent,
            unsent,
            send_window: window[1],
            largest_send_window: window[2],
            receive_next,
            receive_window: (window[4].wrapping_add(window[3])).wrapping_sub(receive_next),
            unread,
            segment_size: get(libc::TCP_MAXSEG) as u16,
            window_scale: has(4).then_some(WindowScale { send: scale & 15, receive: scale >> 4 }),
            sack: has(2),
            failed: false,
            is_held: false,
            timestamps: has(1)
                .then(|| Timestamps { value: get(libc::TCP_TIMESTAMP), recent: clock_of(peer) }),
        };
        // A close would say nothing either, but a process that another test just spawns may have
        // the descriptor too.
        Target { fd, unfiltered: false, segment_size: 0 }.uproot();
        taken
    }

    /// Plants it into `fd`, the bytes in pieces as a ring buffer and frames have them.
    pub fn install(&self, fd: c_int) -> Result<(), Error> {
        self.with_snapshot(|snapshot| install(fd, snapshot))
    }

    pub fn with_snapshot<T>(&self, action: impl FnOnce(&Snapshot<'_>) -> T) -> T {
        let unread: Vec<&[u8]> = self.unread.chunks(1448).collect();
        let (unacknowledged, unsent) = (halves(&self.sent), halves(&self.unsent));
        action(&Snapshot {
            local: self.local,
            remote: self.remote,
            state: self.state,
            send_unacknowledged: self.send_unacknowledged,
            unacknowledged,
            unsent,
            send_window: self.send_window,
            largest_send_window: self.largest_send_window,
            receive_next: self.receive_next,
            receive_window: self.receive_window,
            unread: &unread,
            segment_size: self.segment_size,
            window_scale: self.window_scale,
            sack: self.sack,
            timestamps: self.timestamps,
            failed: self.failed,
            is_held: self.is_held,
        })
    }

    pub fn installed(&self) -> TcpStream {
        let stream = fresh();
        self.install(stream.as_raw_fd()).unwrap();
        stream
    }
}

fn halves(bytes: &[u8]) -> [&[u8]; 2] {
    let (first, second) = bytes.split_at(bytes.len() / 3);
    [first, second]
}

/// TSval of the next segment of `stream`.
fn clock_of(stream: &TcpStream) -> u32 {
    let fd = stream.as_raw_fd();
    shadow::int_option(fd, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP).unwrap() as u32
}

/// What a queue holds, without taking it.
fn peek(fd: c_int) -> Vec<u8> {
    let mut bytes = vec![0u8; 1 << 22];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: `bytes` is writable for its length.
    let len = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) };
    bytes.truncate(usize::try_from(len).unwrap_or(0));
    bytes
}

/// Bytes in the send queue: all that are not acknowledged, or those never sent.
pub fn outgoing(fd: c_int, request: libc::c_ulong) -> usize {
    let mut count = MaybeUninit::<c_int>::zeroed();
    // SAFETY: both requests write one int.
    assert_eq!(unsafe { libc::ioctl(fd, request, count.as_mut_ptr()) }, 0);
    // SAFETY: zeroed, and an int.
    unsafe { count.assume_init() as usize }
}

pub const SIOCOUTQ: libc::c_ulong = 0x5411;
pub const SIOCOUTQNSD: libc::c_ulong = 0x894b;
