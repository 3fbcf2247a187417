//! Connections to the accept queue of the kernel's listener: those that were established here, and that nobody has
//! accepted when this process ceases to listen, while others go on.
//!
//! The segments that came are put into the kernel as if they came now, by `lo`, unless rp_filter is strict there. For the first one a program at the tc
//! ingress hook gives the answer that a SYN cookie would (`bpf/establish.bpf.c`), so that the kernel makes the
//! connection and queues it. Linux 6.9 and later.

use std::sync::OnceLock;

use aya_obj::btf::{Btf, BtfKind};
use aya_obj::generated::bpf_insn;
use libvma_dev::ipv6_stand_ins::real;
use rustix::io::Errno;

use super::bpf::{self, Hook};
use super::flow::five;
use super::inject::Injector;
use super::program::{self, Sizes, load, take_map};
use crate::device::{Flow, OpenError};
use crate::sys::Fd;
use crate::sys::sysctl::Sysctl;

static ESTABLISH: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/establish.bpf.o"));

/// The kernel's function that takes a segment for the end of a handshake.
const ASSIGN: &str = "bpf_sk_assign_tcp_reqsk";
/// The number that stands in its place in the object.
const PLACEHOLDER: i32 = i32::MAX;
/// Code of a call, and the kind of function that it calls (BPF_PSEUDO_KFUNC_CALL).
const CALL: u8 = 0x85;
const KERNEL_FUNCTION: u8 = 2;

/// The number of `lo`, by which the kernel gets the segments (the reason stands in `bpf/establish.bpf.c`).
const LOOPBACK: u32 = 1;
/// Its address.
pub const LOOPBACK_MAC: [u8; 6] = [0; 6];

/// The options that both ends agreed upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// The largest segment that the peer takes.
    pub mss: u16,
    /// Of the peer's windows, and of ours.
    pub window_scales: Option<(u8, u8)>,
    pub sack: bool,
    /// Our time stamp of this moment, in milliseconds, and the peer's latest one.
    pub timestamps: Option<(u32, u32)>,
    /// Sequence number of the first byte that the peer has sent.
    pub first: u32,
}

/// Value of the map `connections`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Connection {
    peers_timestamp: u32,
    own_timestamp: u32,
    mss: u16,
    own_scale: u8,
    peers_scale: u8,
    ecn: u8,
    has_scales: u8,
    sack: u8,
    has_timestamps: u8,
    microseconds: u8,
    reserved: [u8; 3],
    /// In network byte order.
    first: [u8; 4],
}

// SAFETY: 4 + 4 + 2 + 7 + 3 + 4 bytes, alignment 4: no padding.
unsafe impl bpf::Plain for Connection {}
const _: () = assert!(size_of::<Connection>() == 24);

impl Connection {
    fn new(handshake: &Handshake) -> Connection {
        let (peers_scale, own_scale) = handshake.window_scales.unwrap_or_default();
        let (own_timestamp, peers_timestamp) = handshake.timestamps.unwrap_or_default();
        Connection {
            peers_timestamp,
            own_timestamp,
            mss: handshake.mss,
            own_scale,
            peers_scale,
            ecn: 0,
            has_scales: handshake.window_scales.is_some().into(),
            sack: handshake.sack.into(),
            has_timestamps: handshake.timestamps.is_some().into(),
            microseconds: 0,
            reserved: [0; 3],
            first: handshake.first.to_be_bytes(),
        }
    }
}

/// Key of the map `connections_of_ipv6`, in network byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EndsOfIpv6 {
    source: [u8; 16],
    destination: [u8; 16],
    source_port: [u8; 2],
    port: [u8; 2],
}

// SAFETY: bytes only, so no padding.
unsafe impl bpf::Plain for EndsOfIpv6 {}
const _: () = assert!(size_of::<EndsOfIpv6>() == 36);

impl EndsOfIpv6 {
    /// `None`: the flow is of IPv4.
    fn of(flow: Flow) -> Option<EndsOfIpv6> {
        let Flow::FiveTuple { source, source_port, destination, port, .. } = flow else {
            return None;
        };
        Some(EndsOfIpv6 {
            source: real(source)?.octets(),
            destination: real(destination)?.octets(),
            source_port: source_port.to_be_bytes(),
            port: port.to_be_bytes(),
        })
    }
}

/// The program, attached to an interface as long as this lives.
pub struct Establisher {
    // Detached before the rest goes.
    _links: [Fd; 2],
    _program: Fd,
    connections: Fd,
    connections_of_ipv6: Fd,
    injector: Injector,
}

impl Establisher {
    /// Takes tens of milliseconds.
    pub fn open(interface: u32) -> Result<Establisher, OpenError> {
        if is_source_checked() {
            return Err(OpenError::Program("rp_filter is strict on lo".into()));
        }
        let function = kernel_function()?;
        let sizes = Sizes { chunks: 0, slots: 0 };
        let (program, mut maps) =
            load("establish", ESTABLISH, Hook::Establish, sizes, |instructions| {
                call_kernel_function(instructions, function)
            })?;
        let connections = take_map(&mut maps, "connections")?;
        let connections_of_ipv6 = take_map(&mut maps, "connections_of_ipv6")?;
        let injector = Injector::new().map_err(program::system("bpf(PROG_LOAD)"))?;
        let attach = |to| {
            bpf::link_create(&program, to, Hook::Establish)
                .map_err(program::system("bpf(LINK_CREATE)"))
        };
        let links = [attach(interface)?, attach(LOOPBACK)?];
        let _links = links;
        Ok(Establisher { _links, _program: program, connections, connections_of_ipv6, injector })
    }

    /// From now on the kernel takes no segment of this flow for a stranger's: that which begins with the first byte
    /// makes the connection, others are dropped before.
    pub fn expect(&self, flow: Flow, handshake: &Handshake) -> Result<(), Errno> {
        let connection = Connection::new(handshake);
        match EndsOfIpv6::of(flow) {
            Some(ends) => bpf::map_update(&self.connections_of_ipv6, &ends, &connection),
            None => bpf::map_update(&self.connections, &five(flow), &connection),
        }
    }

    /// The kernel did not take the connection.
    pub fn forget(&self, flow: Flow) {
        // ENOENT cannot hurt.
        let _ = match EndsOfIpv6::of(flow) {
            Some(ends) => bpf::map_delete(&self.connections_of_ipv6, &ends),
            None => bpf::map_delete(&self.connections, &five(flow)),
        };
    }

    /// A segment of the peer's, addressed to [`LOOPBACK_MAC`].
    pub fn put(&self, frame: &[u8]) -> Result<(), Errno> {
        self.injector.inject(LOOPBACK, frame)
    }
}

/// Its number. The kernel's table of types takes 10 ms to read, once.
fn kernel_function() -> Result<u32, OpenError> {
    static FOUND: OnceLock<Option<u32>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let types = Btf::from_sys_fs().ok()?;
        types.id_by_type_name_kind(ASSIGN, BtfKind::Func).ok()
    });
    found.ok_or_else(|| OpenError::Program(format!("the kernel has no {ASSIGN}() (Linux 6.9)")))
}

/// Does the kernel drop what comes by `lo` from other hosts?
fn is_source_checked() -> bool {
    const STRICT: u32 = 1;
    let interfaces = Sysctl::below("/proc/sys/net/ipv4/conf");
    // The larger one counts.
    interfaces.number("all/rp_filter").max(interfaces.number("lo/rp_filter")) == Some(STRICT)
}

fn call_kernel_function(instructions: &mut [bpf_insn], id: u32) -> Result<(), OpenError> {
    let id = i32::try_from(id).map_err(program::refused)?;
    let calls = instructions.iter_mut().filter(|one| one.code == CALL && one.imm == PLACEHOLDER);
    let mut has_calls = false;
    for call in calls {
        call.set_src_reg(KERNEL_FUNCTION);
        call.imm = id;
        has_calls = true;
    }
    let no_call = || program::refused("no call of the kernel's function");
    if has_calls { Ok(()) } else { Err(no_call()) }
}
