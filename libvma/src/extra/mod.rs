//! The Extra API: what a program asks of the library beyond the sockets API (`vma_extra.h`).
//!
//! Here is the state behind the functions. Their C face, the table that a program gets, is `preload::extra`; layouts and
//! constants are in `libvma_dev::extra`. Rules that are added at run time are in `config::rules`, dumps of a descriptor in
//! `process::dump`.

mod callbacks;
mod held;
mod notes;
mod pool;
mod threads;

pub use callbacks::{Callback, Callbacks, Packet, Verdict};
pub use held::{Amount, Held, Origin, Owner};
pub use notes::Notes;
pub use pool::{Buffer, LARGE};
pub use threads::Threads;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libvma_dev::extra::{RingAllocLogic, function};

use crate::log::{Level, line_if_enabled};
use crate::shard::SocketId;

/// The functions that work. The other slots of the table return an error.
pub const SUPPORTED: u64 = function::REGISTER_RECV_CALLBACK
    | function::RECVFROM_ZCOPY
    | function::FREE_PACKETS
    | function::ADD_CONF_RULE
    | function::THREAD_OFFLOAD
    | function::DUMP_FD_STATS;

/// The state of the Extra API in a process.
#[derive(Default)]
pub struct Extra {
    /// Threads that chose whether their sockets are served.
    pub threads: Threads,
    /// The callbacks that judge packets.
    pub callbacks: Callbacks,
    /// Values that the program has noted at its sockets.
    pub notes: Notes,
    /// Packets that the program has.
    pub held: Held,
}

impl Extra {
    /// A socket of the program is no more. Packets that the program holds stay.
    pub fn forget(&self, id: SocketId) {
        self.callbacks.remove(id);
        self.notes.remove(id);
    }
}

/// A function of SocketXtreme was called. The user learns of it once.
pub fn refuse_socketxtreme() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    /// `VMA_SOCKETXTREME` of the process, as it was at the first of these calls: programs poll by one.
    static ENABLED: OnceLock<bool> = OnceLock::new();
    let enabled = ENABLED
        .get_or_init(|| std::env::var("VMA_SOCKETXTREME").is_ok_and(|value| value.trim() == "1"));
    let level = if TOLD.swap(true, Ordering::Relaxed) { Level::Debug } else { Level::Warning };
    if *enabled {
        line_if_enabled(
            level,
            format_args!("VMA_SOCKETXTREME=1 has no effect: this library has no socketXtreme"),
        );
    } else {
        line_if_enabled(
            level,
            format_args!(
                "socketXtreme was not enabled during runtime. Set VMA_SOCKETXTREME to use. Ignoring..."
            ),
        );
    }
}

/// Is this a value of SO_VMA_RING_ALLOC_LOGIC? Its first word says which fields count, of which there are four; one must.
pub fn is_ring_logic(value: &[u8]) -> bool {
    const FIELDS: u32 = 0xF;
    value.len() == size_of::<RingAllocLogic>()
        && value.first_chunk().is_some_and(|word| u32::from_ne_bytes(*word) & FIELDS != 0)
}
