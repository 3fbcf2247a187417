//! What a process tells of itself while it runs: the file `<VMA_STATS_SHMEM_DIR>/vmastat.<pid>`.
//!
//! `layout` is the file, byte for byte; `file` reads it and asks for things. The library writes it
//! with the same types. Everything is little or big endian as the host is: the file never leaves it.
//!
//! ```text
//! Header   what this is, in which version, how large
//! Control  what readers ask for; the library looks at it some times a second
//! Snapshot the counters, all of one instant; `sequence` is odd while they are being written
//! ```
//!
//! Both sides use pread(2) and pwrite(2) only, so a file that is cut short is an error and never a
//! signal.

mod file;
mod layout;

pub use file::{File, Found, Problem, Request, Taken, find_all};
pub use layout::*;
