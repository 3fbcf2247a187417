//! The memory of a ring that has ended: the kernel has it as long as somebody has a descriptor or a mapping of its maps.

use std::io::ErrorKind;

use aya::maps::{MapError, MapInfo};

pub struct Remains {
    pub uid: u32,
    /// The numbers of the maps that the process got.
    pub maps: Vec<u32>,
    pub memory: u64,
}

impl Remains {
    /// Is there any of it still? Without CAP_SYS_ADMIN nobody can tell: it counts as there.
    pub fn are_kept(&self) -> bool {
        self.maps.iter().any(|map| match MapInfo::from_id(*map) {
            Err(MapError::SyscallError(error)) => error.io_error.kind() != ErrorKind::NotFound,
            _ => true,
        })
    }
}
