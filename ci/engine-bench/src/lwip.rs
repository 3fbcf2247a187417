//! lwIP, as Debian builds it. Its endpoints are run by `lwip.c`, on the raw API, whose callbacks
//! and macros are C's.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Contestant, MESSAGE_LEN, Setup};

unsafe extern "C" {
    fn lwip_open(mtu: u16, window: u32, checksums: c_int);
    fn lwip_connect(port: u16);
    fn lwip_close();
    fn lwip_round_trip(message: *const u8, reply: *mut u8, len: u16);
    fn lwip_bulk(source: *const u8, source_len: usize, sink: *mut u8, sink_len: usize, total: u64);
}

/// The one pair of endpoints there can be: lwIP's state is global, and not for two threads.
pub struct Lwip {
    _on_this_thread: PhantomData<*const ()>,
}

static IS_OPEN: AtomicBool = AtomicBool::new(false);

impl Contestant for Lwip {
    fn open(setup: &Setup) -> Lwip {
        assert!(!IS_OPEN.swap(true, Ordering::Acquire), "lwIP is in use");
        // SAFETY: nobody else calls lwIP until this value is dropped.
        unsafe {
            lwip_open(setup.mtu, setup.window, setup.checksums.into());
            for index in 0..setup.idle {
                lwip_connect(10_000 + index as u16);
            }
            lwip_connect(9_999);
        }
        Lwip { _on_this_thread: PhantomData }
    }

    fn round_trip(&mut self, message: &[u8; MESSAGE_LEN]) -> [u8; MESSAGE_LEN] {
        let mut reply = [0; MESSAGE_LEN];
        // SAFETY: lwIP is open and ours alone, and both buffers are as long as it says.
        unsafe { lwip_round_trip(message.as_ptr(), reply.as_mut_ptr(), MESSAGE_LEN as u16) };
        reply
    }

    fn bulk(&mut self, source: &[u8], sink: &mut [u8], total: u64) {
        let (from, to) = (source.as_ptr(), sink.as_mut_ptr());
        // SAFETY: as above.
        unsafe { lwip_bulk(from, source.len(), to, sink.len(), total) };
    }
}

impl Drop for Lwip {
    fn drop(&mut self) {
        // SAFETY: lwIP is open and ours alone.
        unsafe { lwip_close() };
        IS_OPEN.store(false, Ordering::Release);
    }
}
