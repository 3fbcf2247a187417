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
mod xtreme;

pub use callbacks::{Callback, Callbacks, Packet, Verdict};
pub use held::{Amount, Held, Origin, Owner};
pub use notes::Notes;
pub use pool::{Buffer, LARGE};
pub use threads::Threads;
pub use xtreme::{After, Event, Lent, Role, Room, Unknown, Work, Xtreme};

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use libvma_dev::extra::{RingAllocLogic, function};

use crate::log::{Level, line_if_enabled};
use crate::shard::SocketId;

/// The functions that work in every program. The other slots of the table return an error.
pub const SUPPORTED: u64 = function::REGISTER_RECV_CALLBACK
    | function::RECVFROM_ZCOPY
    | function::FREE_PACKETS
    | function::ADD_CONF_RULE
    | function::THREAD_OFFLOAD
    | function::DUMP_FD_STATS;

/// The functions that work with `VMA_SOCKETXTREME=1` only.
pub const SUPPORTED_BY_XTREME: u64 = function::SOCKETXTREME_POLL
    | function::SOCKETXTREME_FREE_VMA_PACKETS
    | function::SOCKETXTREME_REF_VMA_BUFF
    | function::SOCKETXTREME_FREE_VMA_BUFF
    | function::GET_SOCKET_RINGS_NUM
    | function::GET_SOCKET_RINGS_FDS;

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
    /// Completions, and the packets that the program has of them.
    pub xtreme: Xtreme,
}

impl Extra {
    /// A socket of the program is no more. Packets that the program holds stay.
    pub fn forget(&self, id: SocketId) {
        self.callbacks.remove(id);
        self.notes.remove(id);
    }

    /// The amount that the program has in all, also of sockets that are closed, and of each socket. For statistics: it takes as long as
    /// there are packets.
    pub fn amounts(&self) -> (Amount, HashMap<SocketId, Amount>) {
        let (mut all, mut of_sockets) = self.held.amounts();
        self.xtreme.add_amounts(&mut all, &mut of_sockets);
        (all, of_sockets)
    }
}

/// A function of SocketXtreme was called in a program that is not in this mode. The user learns of it once.
pub fn refuse_socketxtreme() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let level = if TOLD.swap(true, Ordering::Relaxed) { Level::Debug } else { Level::Warning };
    line_if_enabled(
        level,
        format_args!(
            "socketXtreme was not enabled during runtime. Set VMA_SOCKETXTREME to use. Ignoring..."
        ),
    );
}

/// Is this a value of SO_VMA_RING_ALLOC_LOGIC? Its first word says which fields count, of which there are four; one must.
pub fn is_ring_logic(value: &[u8]) -> bool {
    const FIELDS: u32 = 0xF;
    value.len() == size_of::<RingAllocLogic>()
        && value.first_chunk().is_some_and(|word| u32::from_ne_bytes(*word) & FIELDS != 0)
}
