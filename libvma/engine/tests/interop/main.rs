//! The engine against other implementations of TCP: smoltcp, in simulated time, and the kernel of
//! this machine, over a TUN device in a network namespace (which needs root).

mod against_smoltcp;
mod host;
mod kernel;
mod kernel_failures;
mod time_lines;
mod tun;
