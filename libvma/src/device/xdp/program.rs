//! Loading the steering program and attaching it to an interface.
//!
//! aya's object reader takes the ELF object apart and puts the maps' descriptors into the code;
//! creating and loading is done here. (aya's loader would first read the kernel's whole BTF, 10 ms
//! for an object that has none.)

use std::collections::HashSet;

use aya_obj::Object;
use aya_obj::generated::bpf_insn;
use rustix::io::Errno;

use super::Limits;
use super::bpf::{self, AtIngress, Hook};
use super::flow::FlowTable;
use super::flows::{Flows, GrantedFlows};
use super::grant::Grant;
use super::ingress::Maps;
use super::umem::CHUNK;
use crate::device::{Interface, OpenError};
use crate::sys::locked_memory::Raised;
use crate::sys::{Fd, thread, time};

static STEER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));
static INGRESS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ingress.bpf.o"));

/// Room for what the verifier says of a program it refuses.
const LOG: usize = 64 * 1024;

/// XDP_FLAGS_* of if_link.h.
const GENERIC: u32 = 1 << 1;
const NATIVE: u32 = 1 << 2;

/// Where on the receive path the program runs (`VMA_XDP_MODE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Tc on virtual interfaces: it was measured faster there than native, and the peer keeps its offloads. Before Linux
    /// 6.6 native on a veth, because generic loses packets longer than a chunk, such as a local peer's super-frames,
    /// which native has the peer cut; generic on other virtual ones (a bond takes a native program, but its frames come
    /// by the members, for which there is no socket; a tap's program does not see all of them). Elsewhere native where
    /// the driver has it.
    Auto,
    /// XDP, in the driver.
    Native,
    /// XDP, in the kernel's network stack.
    Generic,
    /// Not XDP: at the tc ingress hook (Linux 6.6).
    Tc,
}

impl Mode {
    /// What to try on an interface: these, best first, and then the last one.
    pub fn candidates(self, on: &Interface) -> (&'static [Mode], Mode) {
        match self {
            Mode::Auto if on.is_veth => (&[Mode::Tc, Mode::Native], Mode::Generic),
            Mode::Auto if on.is_virtual => (&[Mode::Tc], Mode::Generic),
            Mode::Auto => (&[Mode::Native], Mode::Generic),
            mode => (&[], mode),
        }
    }
}

/// Whether another process holds an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// A process that is alive steers packets to itself.
    Living,
    /// The ring of a process that has ended is about to be closed, perhaps beside one that is alive.
    Leaving,
    /// The kernel tells no names: either of them.
    Nameless,
    /// There is a program of which nothing is known.
    Possible,
    /// No program of a living process is there.
    None,
}

/// How long to wait for what a process that has ended holds, where a living one may hold it, too, which will not give
/// it up.
pub const SHORT_PATIENCE_NANOS: u64 = 100_000_000;

/// How much memory a program that writes to it shares with us.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub chunks: u32,
    /// A power of two.
    pub slots: u32,
}

/// The loaded program and its attachment. The last descriptor of the link is the attachment:
/// it ends with the process, whatever ends that.
pub struct Program {
    link: Option<Fd>,
    _program: Option<Fd>,
    /// Takes the program's place at the link when the process ends. Loaded at the beginning, because the process
    /// may give up the rights.
    left: Option<Fd>,
    /// The map that tells it of the interface; none if the daemon does.
    interface: Option<Fd>,
    /// The AF_XDP sockets that frames go to, if they go to sockets.
    sockets: Option<Fd>,
    pub flows: Flows,
    pub mode: Mode,
    /// The interface, to ask who else holds it.
    on: u32,
}

/// Value of the `interface` map.
#[repr(C)]
#[derive(Clone, Copy)]
struct InterfaceValue {
    mac: [u8; 6],
    mtu: u16,
    closed_to_strangers: u64,
}

// SAFETY: 6 + 2 + 8 bytes, alignment 8: no padding.
unsafe impl bpf::Plain for InterfaceValue {}

impl Program {
    /// Loads and attaches the program of a mode (generic if that is `Auto`). The maps are the memory
    /// that frames go to, if they do not go to sockets. Waits so long for another process that has the
    /// hook to end.
    pub fn attach(
        on: &Interface,
        mode: Mode,
        memory: Sizes,
        limits: Limits,
    ) -> Result<(Program, Option<Maps>), OpenError> {
        let (name, object, hook) = match mode {
            Mode::Tc => ("vma_ingress", INGRESS, Hook::Ingress),
            Mode::Native => ("steer", STEER, Hook::Xdp(NATIVE)),
            Mode::Auto | Mode::Generic => ("steer", STEER, Hook::Xdp(GENERIC)),
        };
        // The hook takes any number of programs, but every packet of the interface goes through those before
        // the one that it is for.
        let began = time::monotonic_nanos();
        let may_wait = |patience_nanos: u64| {
            let waits = time::monotonic_nanos() < began.saturating_add(patience_nanos);
            if waits {
                thread::nap_millis(2);
            }
            waits
        };
        let query = || bpf::programs_at_ingress(on.index).map_err(no_ingress);
        if hook == Hook::Ingress {
            let mut there = query()?;
            while sharers(there) >= limits.most_sharers {
                // Without names that of a dead process counts.
                let least = if there.ours.is_none() { SHORT_PATIENCE_NANOS } else { 0 };
                if !may_wait(limits.patience_nanos.max(least)) {
                    return Err(OpenError::Shared(limits.most_sharers));
                }
                there = query()?;
            }
        }
        let (program, mut maps) = load(name, object, hook, memory, |_| Ok(()))?;
        let mut map = |name: &str| take_map(&mut maps, name);
        let interface = map("interface")?;
        let flows =
            FlowTable::new(map("flows3")?, map("flows5")?, map("stand_ins")?, &map("epoch")?)
                .map_err(system("mmap of the epoch"))?;
        let (sockets, memory) = match hook {
            Hook::Xdp(_) => (Some(map("sockets")?), None),
            Hook::Ingress | Hook::Establish | Hook::Left => {
                let (chunks, slots) = (map("chunks")?, map("slots")?);
                let (control, bells) = (map("control")?, map("bells")?);
                (None, Some(Maps { chunks, slots, control, bells, waiters: map("waiters")? }))
            }
        };

        let link = loop {
            match bpf::link_create(&program, on.index, hook) {
                Ok(link) => break Some(link),
                Err(Errno::BUSY | Errno::EXIST) if may_wait(limits.patience_nanos) => {}
                Err(Errno::BUSY | Errno::EXIST) => return Err(OpenError::Busy),
                Err(errno) => return Err(system("bpf(LINK_CREATE)")(errno)),
            }
        };
        let mut program = Program {
            link,
            _program: Some(program),
            left: (hook == Hook::Ingress).then(load_left).flatten(),
            interface: Some(interface),
            sockets,
            flows: Flows::Own(flows),
            mode,
            on: on.index,
        };
        program.set_interface(on)?;
        Ok((program, memory))
    }

    /// A program that the daemon has loaded and attached.
    pub fn granted(on: &Interface, grant: Grant) -> Program {
        Program {
            link: None,
            _program: None,
            left: None,
            interface: None,
            sockets: None,
            flows: Flows::Granted(GrantedFlows::new(grant)),
            mode: Mode::Tc,
            on: on.index,
        }
    }

    /// How likely it is that a living process holds the interface, too.
    pub fn rival(&self) -> Rival {
        let own = u32::from(self.mode == Mode::Tc);
        match bpf::programs_at_ingress(self.on) {
            Err(_) => Rival::None,
            Ok(there) if there.all <= own => Rival::None,
            Ok(there) if there.left > 0 => Rival::Leaving,
            // Another program is likely a process of ours, but whether that is alive is not known.
            Ok(there) if there.ours.is_none() => Rival::Nameless,
            Ok(there) if there.ours > Some(own) => Rival::Living,
            Ok(_) => Rival::Possible,
        }
    }

    /// Nothing is steered any more.
    pub fn detach(&mut self) {
        if let Flows::Granted(granted) = &mut self.flows {
            granted.grant().end();
        }
        self.link = None;
    }

    /// The process ends: its own program steers nothing from now on, and other processes see that it is gone. What is
    /// left is the link, which takes long to close. None if the program is the daemon's, which steers on until the
    /// process has ended; an error if a program of its own does.
    pub fn leave(&self) -> Result<Option<&Fd>, Errno> {
        match (&self.link, &self.left) {
            (Some(link), Some(left)) => bpf::link_update(link, left).map(|()| Some(link)),
            (Some(_), None) => Err(Errno::OPNOTSUPP),
            (None, _) => Ok(None),
        }
    }

    /// Tells the program the interface's MAC address and MTU, and whether it is closed to strangers.
    pub fn set_interface(&mut self, on: &Interface) -> Result<(), OpenError> {
        let map = match (&self.interface, &mut self.flows) {
            (Some(map), _) => map,
            (None, Flows::Granted(granted)) => {
                return granted.grant().refresh().map_err(system("a request to vmad"));
            }
            (None, Flows::Own(_)) => return Ok(()),
        };
        let value = InterfaceValue {
            mac: on.mac,
            mtu: on.mtu.min(u32::from(u16::MAX)) as u16,
            closed_to_strangers: self.flows.is_closed_to_strangers().into(),
        };
        bpf::map_update(map, &0u32, &value).map_err(system("bpf(MAP_UPDATE_ELEM)"))
    }

    /// Frames of receive queue `queue` go to this socket from now on, if they go to sockets.
    pub fn set_socket(&self, queue: u32, socket: &Fd) -> Result<(), OpenError> {
        let Some(sockets) = &self.sockets else { return Ok(()) };
        bpf::map_update(sockets, &queue, &(socket.raw() as u32))
            .map_err(system("bpf(MAP_UPDATE_ELEM)"))
    }
}

/// The program that lets everything pass, by another name than the steering program's.
fn load_left() -> Option<Fd> {
    // r0 = TCX_NEXT (-1); exit.
    const NEXT: [u64; 2] = [0xffff_ffff_0000_00b7, 0x0000_0000_0000_0095];
    bpf::program_load(Hook::Left, &NEXT.map(u64::to_le), c"Dual MIT/GPL", &mut []).ok()
}

/// The maps of a program that has been loaded, by their names.
pub(super) type NamedMaps = Vec<(String, Fd)>;

/// Loads the program of that name out of an object; `prepare` may change its instructions.
pub(super) fn load(
    name: &str,
    object: &[u8],
    hook: Hook,
    memory: Sizes,
    prepare: impl FnOnce(&mut [bpf_insn]) -> Result<(), OpenError>,
) -> Result<(Fd, NamedMaps), OpenError> {
    let mut object = Object::parse(object).map_err(refused)?;
    let maps = make_maps(&object, memory)?;
    let relocated: Vec<_> = object.maps.clone().into_iter().collect();
    let numbers = relocated.iter().filter_map(|(name, map)| {
        let (_, fd) = maps.iter().find(|(known, _)| known == name)?;
        Some((name.as_str(), fd.raw(), map))
    });
    object.relocate_maps(numbers, &HashSet::new()).map_err(refused)?;
    object.relocate_calls(&HashSet::new()).map_err(refused)?;
    let key = object.programs.get(name).map(aya_obj::Program::function_key);
    let function = key.and_then(|key| object.functions.get_mut(&key));
    let function = function
        .ok_or_else(|| OpenError::Program(format!("the object holds no program `{name}`")))?;
    prepare(&mut function.instructions)?;
    let mut log = vec![0u8; LOG];
    let program = bpf::program_load(hook, &function.instructions, &object.license, &mut log)
        .map_err(|errno| refusal(errno, &log))?;
    Ok((program, maps))
}

pub(super) fn take_map(maps: &mut NamedMaps, name: &str) -> Result<Fd, OpenError> {
    let at = maps.iter().position(|(known, _)| known == name);
    at.map(|at| maps.swap_remove(at).1)
        .ok_or_else(|| OpenError::Program(format!("the object holds no map `{name}`")))
}

pub(super) fn system(call: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError::System { call, errno: errno.raw_os_error() }
}

/// How many programs of ours are at the tc ingress hook. If the kernel does not tell the programs' names, all
/// may be. Two processes that attach at the same time may not see each other.
fn sharers(there: AtIngress) -> u32 {
    there.ours.unwrap_or(there.all)
}

/// Why the kernel does not say what is attached to the tc ingress hook.
fn no_ingress(errno: Errno) -> OpenError {
    match errno {
        Errno::INVAL => OpenError::Program("mode tc needs Linux 6.6 (tcx)".into()),
        errno => system("bpf(PROG_QUERY)")(errno),
    }
}

/// Makes the maps that an object names.
fn make_maps(object: &Object, memory: Sizes) -> Result<NamedMaps, OpenError> {
    let mut maps = Vec::new();
    let mut raised = None;
    for (name, map) in &object.maps {
        let sizes = (map.key_size(), map.value_size());
        let entries = match name.as_str() {
            "chunks" if map.value_size() != CHUNK => return Err(refused("another chunk size")),
            "chunks" => memory.chunks,
            "slots" => memory.slots,
            _ => map.max_entries(),
        };
        let create = |entries| bpf::map_create(map.map_type(), sizes, entries, map.map_flags());
        let mut made = create(entries);
        if matches!(made, Err(Errno::PERM)) && raised.is_none() {
            raised = Raised::new();
            made = create(entries);
        }
        // A small one may be made: it is the size.
        if matches!(made, Err(Errno::PERM)) && create(1).is_ok() {
            return Err(OpenError::LockedMemory);
        }
        maps.push((name.clone(), made.map_err(system("bpf(MAP_CREATE)"))?));
    }
    Ok(maps)
}

/// The verifier allows more with CAP_PERFMON: Linux 5.10 wants it for any comparison of a packet's bounds.
fn lacks_perfmon() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None).is_ok_and(|sets| !sets.effective.contains(CapabilitySet::PERFMON))
}

pub(super) fn refused(error: impl core::fmt::Display) -> OpenError {
    OpenError::Program(error.to_string())
}

/// Why the kernel did not take the program: what the verifier said last, before its sum, if it said
/// anything.
fn refusal(errno: Errno, log: &[u8]) -> OpenError {
    let text = String::from_utf8_lossy(log);
    let mut lines = text.trim_end_matches('\0').lines().rev().map(str::trim);
    match lines.find(|line| !line.is_empty() && !line.starts_with("processed ")) {
        Some(line) if errno == Errno::ACCESS && lacks_perfmon() => OpenError::Program(format!(
            "{errno}: {line}; with CAP_PERFMON, too, the kernel may take it"
        )),
        Some(line) => OpenError::Program(format!("{errno}: {line}")),
        None => system("bpf(PROG_LOAD)")(errno),
    }
}

#[cfg(test)]
mod tests;
