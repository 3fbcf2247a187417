//! A TAP: the way out of a process, and its bell.

#![allow(
    unsafe_code,
    reason = "ioctl(2) of /dev/net/tun, and of sockets; no crate of ours has a safe one"
)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::ioctl::{IntegerSetter, Ioctl, IoctlOutput, Opcode, Updater, ioctl};

/// TUNSETIFF and TUNSETPERSIST of <linux/if_tun.h>, SIOCGSKNS of <linux/sockios.h>, NS_GET_USERNS of <linux/nsfs.h>.
const SET_INTERFACE: Opcode = 0x4004_54ca;
const SET_PERSISTENT: Opcode = 0x4004_54cb;
const GET_NAMESPACE: Opcode = 0x894c;
const GET_OWNER: Opcode = 0xb701;

/// IFF_TAP, IFF_NO_PI. Not IFF_VNET_HDR: by that header a process could have the kernel write a checksum to any place of a
/// frame after it was looked at.
const FLAGS: i16 = 0x0002 | 0x1000;

/// `struct ifreq` as TUNSETIFF reads and writes it.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: i16,
    _rest: [u8; 22],
}

pub struct Tap {
    file: File,
    name: String,
}

impl Tap {
    /// Makes one in the network that this thread is in. It is gone when the last descriptor is closed.
    ///
    /// # Errors
    /// Of open(2) and ioctl(2): EPERM without CAP_NET_ADMIN.
    pub fn open() -> io::Result<Tap> {
        let file = File::options().read(true).write(true).open("/dev/net/tun")?;
        let mut request = InterfaceRequest {
            name: *b"vma%d\0\0\0\0\0\0\0\0\0\0\0",
            flags: FLAGS,
            _rest: [0; 22],
        };
        // SAFETY: TUNSETIFF reads and writes a struct ifreq, 40 bytes, which this is.
        let asked = unsafe { Updater::<SET_INTERFACE, _>::new(&mut request) };
        // SAFETY: as said of the request.
        unsafe { ioctl(&file, asked) }?;
        let len = request.name.iter().position(|byte| *byte == 0).unwrap_or_default();
        let name =
            String::from_utf8_lossy(request.name.get(..len).unwrap_or_default()).into_owned();
        rustix::io::ioctl_fionbio(&file, true)?;
        Ok(Tap { file, name })
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Tap {
    /// A process with a descriptor may have made the TAP persistent.
    fn drop(&mut self) {
        // SAFETY: TUNSETPERSIST takes a number, of which this is a pointer's width.
        let request = unsafe { IntegerSetter::<SET_PERSISTENT>::new_usize(0) };
        // SAFETY: as said of the request.
        let _ = unsafe { ioctl(&self.file, request) };
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A request without an argument that is answered by a new descriptor.
struct Fetch(Opcode);

// SAFETY: the requests below take no argument, read and write no memory of ours, and return a new descriptor.
unsafe impl Ioctl for Fetch {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        self.0
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(
        output: IoctlOutput,
        _: *mut rustix::ffi::c_void,
    ) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(output) })
    }
}

/// The network namespace that a socket belongs to.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN there.
pub fn namespace_of(socket: &OwnedFd) -> io::Result<File> {
    // SAFETY: SIOCGSKNS is such a request of a socket, which the caller has made sure of.
    let namespace = unsafe { ioctl(socket, Fetch(GET_NAMESPACE)) }?;
    Ok(namespace.into())
}

/// The user namespace that has a network namespace.
///
/// # Errors
/// EPERM if it is none that this process can see.
pub fn owner_of(namespace: &File) -> io::Result<File> {
    // SAFETY: NS_GET_USERNS is such a request of a file of nsfs.
    let owner = unsafe { ioctl(namespace, Fetch(GET_OWNER)) }?;
    Ok(owner.into())
}
