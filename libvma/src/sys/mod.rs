//! The edge to the kernel: descriptors, memory, waiting, clocks, the lock.
//!
//! Everything here goes straight to the kernel (`rustix`, raw system calls): the library exports
//! `close`, `poll`, `read` ... itself and must not meet its own symbols again. Nothing here knows
//! what a socket or a ring is. The few libc functions used are ones the library does not export.

pub mod above;
pub mod cancel;
pub mod errand;
pub mod fd;
pub mod fork_cell;
pub mod fork_gate;
pub mod heap;
pub mod kernel_start;
pub mod late_close;
pub mod load;
pub mod lock;
pub mod locked_memory;
pub mod loopback_end;
pub mod machine;
pub mod netlink;
pub mod output;
pub mod random;
pub mod release;
pub mod repair;
pub mod rights;
pub mod shadow;
pub mod shared_page;
pub mod sockaddr;
pub mod sysctl;
pub mod thread;
pub mod time;
pub mod unix_socket;
pub mod user;
pub mod wait;

pub use fd::Fd;
