//! The program's receive callbacks (register_recv_callback).

use std::collections::HashMap;
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, Ordering};

use libvma_dev::extra::ReceiveCallback;

use crate::shard::SocketId;
use crate::sys::lock::Lock;

/// A callback's decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Drop,
    Receive,
    Hold,
}

/// A packet to be judged.
pub struct Packet<'a> {
    /// By which the program gives it back, if it keeps it.
    pub number: u64,
    pub payload: &'a mut [u8],
    pub source: SocketAddrV4,
    pub destination: SocketAddrV4,
    /// Packets and bytes that wait for receive calls.
    pub waiting: (u64, u64),
    /// CLOCK_REALTIME nanoseconds of its arrival; 0: not known.
    pub stamp: u64,
}

/// A callback of the program.
#[derive(Clone, Copy)]
pub struct Callback {
    pub function: ReceiveCallback,
    /// The program's pointer.
    pub context: usize,
    /// The number by which it was registered.
    pub descriptor: i32,
    /// Calls it: pointers are made at the C edge.
    pub call: fn(&Callback, &mut Packet<'_>) -> Verdict,
}

impl Callback {
    pub fn judge(&self, packet: &mut Packet<'_>) -> Verdict {
        (self.call)(self, packet)
    }
}

/// Of all sockets. The lock is never held while one of them runs.
#[derive(Default)]
pub struct Callbacks {
    /// There is one.
    any: AtomicBool,
    list: Lock<List>,
}

#[derive(Default)]
struct List {
    callbacks: HashMap<SocketId, Callback>,
    /// Those of stream sockets among them.
    streams: Vec<SocketId>,
}

impl Callbacks {
    /// Has any socket a callback? Asked by every receive call.
    #[inline]
    pub fn are_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub fn set(&self, id: SocketId, callback: Callback, is_stream: bool) {
        let Ok(mut list) = self.list.lock() else { return };
        list.callbacks.insert(id, callback);
        if is_stream && !list.streams.contains(&id) {
            list.streams.push(id);
        }
        self.any.store(true, Ordering::Relaxed);
    }

    pub fn remove(&self, id: SocketId) {
        if !self.are_any() {
            return;
        }
        let Ok(mut list) = self.list.lock() else { return };
        list.callbacks.remove(&id);
        list.streams.retain(|other| *other != id);
        self.any.store(!list.callbacks.is_empty(), Ordering::Relaxed);
    }

    pub fn get(&self, id: SocketId) -> Option<Callback> {
        self.list.lock().ok()?.callbacks.get(&id).copied()
    }

    /// One of the stream sockets that have a callback.
    pub fn stream(&self, at: usize) -> Option<SocketId> {
        self.list.lock().ok()?.streams.get(at).copied()
    }
}
