//! The kernel's half of a connection without its socket, in memory.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::shard::pipe::Leftover;

#[derive(Clone, Default)]
pub struct Rest(Arc<Mutex<Half>>);

#[derive(Default)]
pub struct Half {
    pub taken: Vec<u8>,
    /// Bytes that it takes at once; None: none any more.
    pub room: Option<usize>,
    pub armed: bool,
    pub reset: bool,
    pub shut: bool,
    pub closed: bool,
}

impl Rest {
    pub fn half(&self) -> MutexGuard<'_, Half> {
        self.0.lock().expect("one thread")
    }

    /// For a pipe.
    pub fn held(&self) -> Box<dyn Leftover> {
        Box::new(Held(self.clone()))
    }
}

struct Held(Rest);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.half().closed = true;
    }
}

impl Leftover for Held {
    fn write(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut half = self.0.half();
        let count = half.room?.min(bytes.len());
        half.taken.extend_from_slice(&bytes[..count]);
        Some(count)
    }

    fn arm(&mut self, resets: bool) {
        self.0.half().armed = resets;
    }

    fn reset(&mut self) {
        self.0.half().reset = true;
    }

    fn shut(&mut self) {
        self.0.half().shut = true;
    }

    fn discard(&mut self) {}

    fn descriptor(&self) -> i32 {
        -1
    }
}
