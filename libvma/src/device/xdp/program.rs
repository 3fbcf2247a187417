//! Loading the steering program and attaching it to an interface.
//!
//! aya's object reader takes the ELF object apart and puts the maps' descriptors into the code;
//! creating and loading is done here. (aya's loader would first read the kernel's whole BTF, 10 ms
//! for an object that has none.)

use std::collections::HashSet;

use aya_obj::Object;
use rustix::io::Errno;

use super::bpf;
use super::flow::FlowTable;
use crate::device::{Interface, OpenError};
use crate::sys::Fd;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));

/// Room for what the verifier says of a program it refuses.
const LOG: usize = 64 * 1024;

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
    link: Option<Fd>,
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
        let mut object = Object::parse(OBJECT).map_err(refused)?;
        let mut maps: Vec<(String, Fd)> = Vec::new();
        for (name, map) in &object.maps {
            let sizes = (map.key_size(), map.value_size());
            let kind = map.map_type();
            let made = bpf::map_create(kind, sizes, map.max_entries(), map.map_flags());
            maps.push((name.clone(), made.map_err(system("bpf(MAP_CREATE)"))?));
        }
        let relocated: Vec<_> = object.maps.clone().into_iter().collect();
        let numbers = relocated.iter().filter_map(|(name, map)| {
            let (_, fd) = maps.iter().find(|(known, _)| known == name)?;
            Some((name.as_str(), fd.raw(), map))
        });
        object.relocate_maps(numbers, &HashSet::new()).map_err(refused)?;
        object.relocate_calls(&HashSet::new()).map_err(refused)?;
        let function = object
            .programs
            .get("steer")
            .and_then(|program| object.functions.get(&program.function_key()))
            .ok_or_else(|| OpenError::Program("the object holds no program `steer`".into()))?;
        let mut log = vec![0u8; LOG];
        let program = bpf::program_load(&function.instructions, &object.license, &mut log)
            .map_err(|errno| refusal(errno, &log))?;

        let mut map = |name: &str| {
            let at = maps.iter().position(|(known, _)| known == name);
            at.map(|at| maps.swap_remove(at).1)
                .ok_or_else(|| OpenError::Program(format!("the object holds no map `{name}`")))
        };
        let sockets = map("sockets")?;
        let interface = map("interface")?;
        let flows = FlowTable::new(map("flows3")?, map("flows5")?, map("epoch")?);

        let (link, mode) = link(&program, on, mode)?;
        let link = Some(link);
        let program = Program { link, _program: program, sockets, interface, flows, mode };
        program.set_interface(on)?;
        Ok(program)
    }

    /// Nothing is steered any more.
    pub fn detach(&mut self) {
        self.link = None;
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

fn system(call: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError::System { call, errno: errno.raw_os_error() }
}

fn refused(error: impl core::fmt::Display) -> OpenError {
    OpenError::Program(error.to_string())
}

/// Why the kernel did not take the program: the verifier's last line, if it said anything.
fn refusal(errno: Errno, log: &[u8]) -> OpenError {
    let text = String::from_utf8_lossy(log);
    let said = text.trim_end_matches('\0').trim_end().lines().next_back();
    match said.filter(|line| !line.is_empty()) {
        Some(line) => OpenError::Program(format!("{errno}: {line}")),
        None => system("bpf(PROG_LOAD)")(errno),
    }
}
