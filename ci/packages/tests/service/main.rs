//! The daemon as a service: by the init script, on Debian, on systems with the helper functions of
//! others, with those of busybox alone; and by systemd, in a machine that it booted.

mod act;
mod client;
mod elsewhere;
mod machine;
mod sandbox;
mod script;
mod systemd;
mod unit;
