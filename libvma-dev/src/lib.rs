//! What two processes or two compilers must agree on about libvma: the statistics layout, the agent
//! protocol, the Extra API types. No exported C symbol lives here, so every tool may link it.
//!
//! That is the names and versions by which the parts find each other, the rules of libvma.conf,
//! which the library obeys and `vma_conf` explains, the file by which a process tells its counters
//! to `vma_stats`, the messages by which it tells its connections to `vmad`, those by which `vmad` grants it a ring, and the Extra API,
//! by which a program asks the library for more than the sockets API has (`include/mellanox/vma_extra.h`
//! is the same for C), and the address by which all of them know `::1`. [`vma`] is its safe face for programs.

pub mod agent;
pub mod extra;
pub mod grant;
pub mod ipv6_loopback;
pub mod ipv6_stand_ins;
pub mod rules;
pub mod stats;
pub mod vma;

/// The name the loader knows the library by.
pub const SONAME: &str = "libvma.so.9";

/// The version of this release, `X.Y.Z`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soname_carries_the_major_version() {
        let major = VERSION.split('.').next().expect("a version");
        assert_eq!(SONAME, format!("libvma.so.{major}"));
    }
}
