//! Receive callbacks.

use core::ffi::{c_int, c_void};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use super::packet::{bytes, whole};
use super::{Free, Packet, Register, Vma, address, done};
use crate::extra::{Info, IoVec, Timespec, function, verdict};

/// The verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is over.
    Drop,
    /// Receive calls get it.
    Receive,
}

type Judge = dyn Fn(Arrival<'_>) -> Verdict + Send + Sync;

struct Callback {
    free: Free,
    /// If there are any, packets of others are dropped.
    sources: Vec<Ipv4Addr>,
    judge: Box<Judge>,
}

/// The library has the key of a callback, not its address: another thread may be about to call one that has just been taken back.
static CALLBACKS: RwLock<BTreeMap<usize, Arc<Callback>>> = RwLock::new(BTreeMap::new());
static NEXT_KEY: AtomicUsize = AtomicUsize::new(1);

/// Prepares the callback of a socket.
///
/// ```
/// use std::net::UdpSocket;
/// use libvma_dev::vma::{Verdict, Vma};
///
/// # fn main() -> std::io::Result<()> {
/// let socket = UdpSocket::bind("127.0.0.1:0")?;
/// if let Some(vma) = Vma::get() {
///     let socket = vma.filter(&socket).from([10, 0, 0, 1].into()).start(|arrival| {
///         match arrival.bytes().first() {
///             Some(b'Q') => Verdict::Receive,
///             _ => Verdict::Drop,
///         }
///     })?;
///     let mut buffer = [0; 2048];
///     println!("{} bytes that begin with Q", socket.recv(&mut buffer)?);
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a filter counts from `start` on"]
pub struct Filter<S> {
    vma: Vma,
    socket: S,
    sources: Vec<Ipv4Addr>,
}

impl Vma {
    /// A callback is to judge what comes for the socket before receive calls can get it.
    pub fn filter<S: AsFd>(&self, socket: S) -> Filter<S> {
        Filter { vma: *self, socket, sources: Vec::new() }
    }
}

impl<S: AsFd> Filter<S> {
    /// Packets of this sender are judged; those of senders that are not named are dropped. Without it all are judged.
    pub fn from(mut self, source: Ipv4Addr) -> Filter<S> {
        self.sources.push(source);
        self
    }

    /// From now on `judge` is called for each packet that comes through the library, inside a receive call, select(), poll() or
    /// epoll_wait() of any thread, and holds no lock of the library: it may use every socket. Of one socket one packet is judged
    /// at a time, so a blocking receive call on this very socket would wait for ever. If it panics the process ends.
    pub fn start(
        self,
        judge: impl Fn(Arrival<'_>) -> Verdict + Send + Sync + 'static,
    ) -> io::Result<Filtered<S>> {
        let Filter { vma, socket, sources } = self;
        if !vma.supports(function::REGISTER_RECV_CALLBACK | function::FREE_PACKETS) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        let callback = Callback { free: vma.free, sources, judge: Box::new(judge) };
        let mut callbacks = CALLBACKS.write().unwrap_or_else(PoisonError::into_inner);
        callbacks.insert(key, Arc::new(callback));
        drop(callbacks);
        let filtered = Filtered { register: vma.register, key, socket: Some(socket) };
        let context = core::ptr::without_provenance_mut(key);
        // SAFETY: `ask` takes any key, for as long as the process lives.
        done(unsafe { (vma.register)(filtered.number(), Some(ask), context) })?;
        Ok(filtered)
    }
}

/// A socket with a callback, which ends when this is dropped, or with the socket. A socket has one callback: a later one takes the
/// place of the one before, and the end of either leaves none.
pub struct Filtered<S: AsFd> {
    register: Register,
    key: usize,
    /// None when it was taken out.
    socket: Option<S>,
}

impl<S: AsFd> Filtered<S> {
    /// The socket without the callback.
    pub fn into_socket(mut self) -> S {
        self.end();
        let Some(socket) = self.socket.take() else { unreachable!("it is taken here only") };
        socket
    }

    fn number(&self) -> c_int {
        self.socket.as_ref().map_or(-1, |socket| socket.as_fd().as_raw_fd())
    }

    fn end(&self) {
        // SAFETY: no function, and nothing that is pointed to.
        unsafe { (self.register)(self.number(), None, core::ptr::null_mut()) };
        let mut callbacks = CALLBACKS.write().unwrap_or_else(PoisonError::into_inner);
        let gone = callbacks.remove(&self.key);
        drop(callbacks);
        // Without the lock: what the callback has may have something to do when it is dropped.
        drop(gone);
    }
}

impl<S: AsFd> Deref for Filtered<S> {
    type Target = S;

    fn deref(&self) -> &S {
        match &self.socket {
            Some(socket) => socket,
            None => unreachable!("it is taken with `self` only"),
        }
    }
}

impl<S: AsFd> Drop for Filtered<S> {
    fn drop(&mut self) {
        if self.socket.is_some() {
            self.end();
        }
    }
}

/// A packet that has come and is to be judged.
pub struct Arrival<'a> {
    parts: &'a [IoVec],
    info: Info,
    source: Option<SocketAddrV4>,
    destination: Option<SocketAddrV4>,
    free: Free,
    socket: c_int,
    held: &'a Cell<bool>,
}

impl<'a> Arrival<'a> {
    /// Its fragments, in order.
    pub fn parts(&self) -> impl Iterator<Item = &'a [u8]> {
        let parts = self.parts;
        // SAFETY: memory that is there until the callback returns, and that nobody writes to meanwhile.
        parts.iter().map(|part| unsafe { bytes(part.base.cast(), part.len) })
    }

    /// Its payload: a copy only if it has several fragments.
    pub fn bytes(&self) -> Cow<'a, [u8]> {
        whole(self.parts())
    }

    /// The sender.
    pub fn source(&self) -> Option<SocketAddrV4> {
        self.source
    }

    /// An address of this host, or a group.
    pub fn destination(&self) -> Option<SocketAddrV4> {
        self.destination
    }

    /// Packets that wait for receive calls, and their bytes, without this one.
    pub fn waiting(&self) -> (u32, u32) {
        (self.info.ready_packets, self.info.ready_bytes)
    }

    /// The time at which it came to the library, of a stream the first of its bytes; None if that is not known.
    pub fn software_stamp(&self) -> Option<SystemTime> {
        time(self.info.software_stamp)
    }

    /// The time at which the device received it, if it tells.
    pub fn hardware_stamp(&self) -> Option<SystemTime> {
        time(self.info.hardware_stamp)
    }

    /// The program keeps the packet; what the callback returns then does not matter. Waiting calls tell once that the socket can be
    /// read from, though receive calls do not get the packet.
    pub fn hold(self) -> Packet {
        self.held.set(true);
        let id = self.info.packet;
        // SAFETY: `ask` says that the packet is held, so it is the program's, and there until it is given back.
        unsafe { Packet::new(self.free, self.socket, id, self.parts.iter().copied()) }
    }
}

fn time(stamp: Timespec) -> Option<SystemTime> {
    let seconds = u64::try_from(stamp.seconds).ok()?;
    let nanoseconds = u32::try_from(stamp.nanoseconds).ok()?;
    let since = Duration::new(seconds, nanoseconds.min(999_999_999));
    (!since.is_zero()).then(|| SystemTime::UNIX_EPOCH + since)
}

/// Calls the callback whose key is the context.
///
/// # Safety
/// As the library calls a receive callback.
unsafe extern "C" fn ask(
    socket: c_int,
    count: usize,
    parts: *mut IoVec,
    info: *mut Info,
    context: *mut c_void,
) -> c_int {
    let callbacks = CALLBACKS.read().unwrap_or_else(PoisonError::into_inner);
    let callback = callbacks.get(&context.addr()).cloned();
    drop(callbacks);
    // It was taken back a moment ago.
    let Some(callback) = callback else { return verdict::RECV };
    // SAFETY: an array of the library that is there until the callback returns.
    let parts = unsafe { core::slice::from_raw_parts(parts, count) };
    // SAFETY: as above; the structure is packed.
    let info = unsafe { info.read_unaligned() };
    // SAFETY: addresses that are there until the callback returns.
    let source = address(unsafe { info.source.read_unaligned() });
    // SAFETY: as above.
    let destination = address(unsafe { info.destination.read_unaligned() });
    let is_from = |source: &SocketAddrV4| callback.sources.contains(source.ip());
    if !callback.sources.is_empty() && !source.as_ref().is_some_and(is_from) {
        return verdict::DROP;
    }
    let held = Cell::new(false);
    let arrival =
        Arrival { parts, info, source, destination, free: callback.free, socket, held: &held };
    match (callback.judge)(arrival) {
        _ if held.get() => verdict::HOLD,
        Verdict::Drop => verdict::DROP,
        Verdict::Receive => verdict::RECV,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extra::{self, SocketAddress};
    use std::net::UdpSocket;
    use std::sync::Mutex;

    /// Calls of the made-up library: the socket, whether with a callback, its context.
    static CALLS: Mutex<Vec<(c_int, bool, usize)>> = Mutex::new(Vec::new());

    unsafe extern "C" fn register(
        socket: c_int,
        callback: Option<extra::ReceiveCallback>,
        context: *mut c_void,
    ) -> c_int {
        CALLS.lock().unwrap().push((socket, callback.is_some(), context.addr()));
        0
    }

    unsafe extern "C" fn free(_: c_int, _: *mut extra::Packet, _: usize) -> c_int {
        0
    }

    unsafe extern "C" fn no_receive(
        _: c_int,
        _: *mut c_void,
        _: usize,
        _: *mut c_int,
        _: *mut c_void,
        _: *mut u32,
    ) -> c_int {
        -1
    }

    unsafe extern "C" fn no_rule(_: *const core::ffi::c_char) -> c_int {
        1
    }

    unsafe extern "C" fn no_offload(_: c_int, _: usize) -> c_int {
        -1
    }

    unsafe extern "C" fn no_dump(_: c_int, _: c_int) -> c_int {
        -1
    }

    unsafe extern "C" fn no_poll(
        _: c_int,
        _: *mut crate::extra::Completion,
        _: core::ffi::c_uint,
        _: c_int,
    ) -> c_int {
        -1
    }

    unsafe extern "C" fn no_free(_: *mut crate::extra::PacketDescriptor, _: c_int) -> c_int {
        -1
    }

    unsafe extern "C" fn no_rings(_: c_int, _: *mut c_int, _: c_int) -> c_int {
        0
    }

    fn library(supported: u64) -> Vma {
        Vma {
            register,
            receive: no_receive,
            free,
            poll: no_poll,
            free_delivered: no_free,
            rings: no_rings,
            add_rule: no_rule,
            offload: no_offload,
            dump: no_dump,
            supported,
        }
    }

    /// A packet comes, as the library would have it.
    fn comes(key: usize, source: [u8; 4], payload: &[u8]) -> c_int {
        let named = |ip: [u8; 4]| SocketAddress {
            family: super::super::AF_INET,
            port: 7u16.to_be(),
            address: u32::from_ne_bytes(ip),
            zero: [0; 8],
        };
        let (mut source, mut destination) = (named(source), named([10, 0, 0, 9]));
        let base = payload.as_ptr().cast_mut().cast();
        let mut part = IoVec { base, len: payload.len() };
        let mut info = Info {
            size: size_of::<Info>(),
            packet: core::ptr::without_provenance_mut(0x50),
            source: &mut source,
            destination: &mut destination,
            payload_len: payload.len(),
            ready_packets: 3,
            ready_bytes: 30,
            hardware_stamp: Timespec::default(),
            software_stamp: Timespec { seconds: 5, nanoseconds: 6 },
        };
        let context = core::ptr::without_provenance_mut(key);
        // SAFETY: locals, and the fragment of the caller.
        unsafe { ask(1, 1, &mut part, &mut info, context) }
    }

    #[test]
    fn a_callback_judges_until_it_is_taken_back() {
        let vma = library(u64::MAX);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let number = socket.as_raw_fd();
        let kept = Arc::new(Mutex::new(Vec::new()));
        let of_callback = Arc::clone(&kept);
        let filter = vma.filter(socket).from([10, 0, 0, 1].into());
        let filtered = filter
            .start(move |arrival| {
                assert_eq!(arrival.source(), "10.0.0.1:7".parse().ok());
                assert_eq!(arrival.destination(), "10.0.0.9:7".parse().ok());
                assert_eq!((arrival.waiting(), arrival.hardware_stamp()), ((3, 30), None));
                let stamp = SystemTime::UNIX_EPOCH + Duration::new(5, 6);
                assert_eq!(arrival.software_stamp(), Some(stamp));
                match arrival.bytes().first() {
                    Some(b'd') => Verdict::Drop,
                    Some(b'h') => {
                        of_callback.lock().unwrap().push(arrival.hold());
                        Verdict::Receive
                    }
                    _ => Verdict::Receive,
                }
            })
            .unwrap();
        let (_, _, key) = *CALLS.lock().unwrap().last().unwrap();
        assert_eq!(*CALLS.lock().unwrap(), [(number, true, key)]);
        let source = [10, 0, 0, 1];
        assert_eq!(comes(key, source, b"d"), verdict::DROP);
        assert_eq!(comes(key, source, b"r"), verdict::RECV);
        assert_eq!(comes(key, source, b"h2"), verdict::HOLD);
        assert_eq!(comes(key, [10, 0, 0, 2], b"r"), verdict::DROP);
        assert_eq!(kept.lock().unwrap().pop().unwrap().bytes(), &b"h2"[..]);
        assert_eq!(filtered.local_addr().unwrap().ip(), Ipv4Addr::LOCALHOST);
        let socket = filtered.into_socket();
        assert_eq!(socket.as_raw_fd(), number);
        assert_eq!(CALLS.lock().unwrap()[1..], [(number, false, 0)]);
        // One that was under way is told nothing of a callback that is gone.
        assert_eq!(comes(key, source, b"d"), verdict::RECV);
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[test]
    fn a_library_without_the_functions_is_told_of() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let vma = library(0);
        let refused = vma.filter(&socket).start(|_| Verdict::Drop).err().map(|error| error.kind());
        assert_eq!(refused, Some(io::ErrorKind::Unsupported));
        let refused = vma.receive(&socket, &mut [0; 64]).err().map(|error| error.kind());
        assert_eq!(refused, Some(io::ErrorKind::Unsupported));
        assert!(vma.add_rule("use").is_err() && vma.add_rule("a\0b").is_err());
    }
}
