//! Loading the steering program and attaching it to an interface.

use aya::EbpfLoader;
use aya::maps::Map;
use aya::programs::Xdp;

use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::bpf;
use super::flow::FlowTable;
use crate::device::{Interface, OpenError};
use crate::sys::Fd;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));

/// XDP_FLAGS_* of if_link.h.
const GENERIC: u32 = 1 << 1;
const NATIVE: u32 = 1 << 2;

/// Where on the receive path the program runs (`VMA_XDP_MODE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Generic on virtual interfaces (measured faster there, and the peer keeps its offloads),
    /// elsewhere native where the driver has it.
    Auto,
    Native,
    Generic,
}

/// The loaded program and its attachment. The last descriptor of the link is the attachment:
/// it ends with the process, whatever ends that.
pub struct Program {
    _link: Fd,
    _program: Fd,
    sockets: Fd,
    interface: Fd,
    pub flows: FlowTable,
    pub mode: Mode,
}

/// Value of the `interface` map.
#[repr(C)]
#[derive(Clone, Copy)]
struct InterfaceValue {
    mac: [u8; 6],
    mtu: u16,
}

// SAFETY: 6 + 2 bytes, alignment 2: no padding.
unsafe impl bpf::Plain for InterfaceValue {}

impl Program {
    pub fn attach(on: &Interface, mode: Mode) -> Result<Program, OpenError> {
        let mut loaded =
            EbpfLoader::new().load(OBJECT).map_err(|error| OpenError::Program(chain(&error)))?;
        let program: &mut Xdp = loaded
            .program_mut("steer")
            .and_then(|program| program.try_into().ok())
            .ok_or_else(|| OpenError::Program("the object holds no XDP program `steer`".into()))?;
        program.load().map_err(|error| OpenError::Program(chain(&error)))?;
        let program =
            keep(program.fd().map_err(|error| OpenError::Program(chain(&error)))?.as_fd())?;

        let mut map = |name: &str| -> Result<Fd, OpenError> {
            let map = loaded
                .take_map(name)
                .ok_or_else(|| OpenError::Program(format!("the object holds no map `{name}`")))?;
            match &map {
                Map::HashMap(data) | Map::Array(data) | Map::XskMap(data) => {
                    keep(data.fd().as_fd())
                }
                _ => Err(OpenError::Program(format!("map `{name}` is of another kind"))),
            }
        };
        let sockets = map("sockets")?;
        let interface = map("interface")?;
        let flows = FlowTable::new(map("flows3")?, map("flows5")?);

        let (link, mode) = link(&program, on, mode)?;
        let program = Program { _link: link, _program: program, sockets, interface, flows, mode };
        program.set_interface(on)?;
        Ok(program)
    }

    /// Tells the program the interface's MAC address and MTU.
    pub fn set_interface(&self, on: &Interface) -> Result<(), OpenError> {
        let value = InterfaceValue { mac: on.mac, mtu: on.mtu.min(u32::from(u16::MAX)) as u16 };
        bpf::map_update(&self.interface, &0u32, &value).map_err(system("bpf(MAP_UPDATE_ELEM)"))
    }

    /// Frames of receive queue `queue` go to this socket from now on.
    pub fn set_socket(&self, queue: u32, socket: &Fd) -> Result<(), OpenError> {
        bpf::map_update(&self.sockets, &queue, &(socket.raw() as u32))
            .map_err(system("bpf(MAP_UPDATE_ELEM)"))
    }
}

fn link(program: &Fd, on: &Interface, mode: Mode) -> Result<(Fd, Mode), OpenError> {
    let tries: &[(u32, Mode)] = match mode {
        Mode::Generic => &[(GENERIC, Mode::Generic)],
        Mode::Native => &[(NATIVE, Mode::Native)],
        Mode::Auto if on.is_virtual => &[(GENERIC, Mode::Generic)],
        Mode::Auto => &[(NATIVE, Mode::Native), (GENERIC, Mode::Generic)],
    };
    let mut last = Errno::OPNOTSUPP;
    for (flags, mode) in tries {
        match bpf::link_create(program, on.index, *flags) {
            Ok(link) => return Ok((link, *mode)),
            Err(Errno::BUSY | Errno::EXIST) => return Err(OpenError::Busy),
            Err(errno) => last = errno,
        }
    }
    Err(system("bpf(LINK_CREATE)")(last))
}

/// Our own descriptor of something the loader is about to drop.
fn keep(fd: BorrowedFd<'_>) -> Result<Fd, OpenError> {
    let copy = fcntl_dupfd_cloexec(fd, 3).map_err(system("fcntl(F_DUPFD_CLOEXEC)"))?;
    Fd::adopt(copy).map_err(system("fcntl(F_DUPFD_CLOEXEC)"))
}

fn system(call: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError::System { call, errno: errno.raw_os_error() }
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
