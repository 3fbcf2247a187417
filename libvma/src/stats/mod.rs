//! How a process tells what it has counted. What is counted, and how it is gathered, is elsewhere
//! (`socket::report`, `process::statistics`); nothing here knows a socket.
//!
//! `publish` writes the file that vma_stats reads (`VMA_STATS_SHMEM_DIR`; its layout is
//! `libvma_dev::stats`), `control` finds out what readers of that file ask for, `text` is
//! `VMA_STATS_FILE`.

pub mod control;
pub mod publish;
mod text;

pub use text::{SocketCounters, StatsFile};
