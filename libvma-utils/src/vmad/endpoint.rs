//! The daemon's sockets: one for datagrams with the credentials that the kernel vouches for, and answers that
//! cannot be led astray; one that processes connect to.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    Shutdown, SocketAddrUnix, SocketFlags, SocketType, UCred,
};
use rustix::process::umask;

use crate::notify_dir::NotifyDir;

/// SO_PASSRIGHTS: may descriptors come with a datagram? The daemon would have to close them, and closing may take as long as the
/// sender likes (SO_LINGER).
#[derive(Clone, Copy)]
struct PassRights;

const SO_PASSRIGHTS: i32 = 83;
nix::setsockopt_impl!(PassRights, libc::SOL_SOCKET, SO_PASSRIGHTS, bool, sockopt::SetBool);

/// Linux before 6.16 does not know the option.
pub fn let_descriptors_come(socket: &OwnedFd, may: bool) {
    let _ = setsockopt(socket, PassRights, &may);
}

pub struct Endpoint(Named);

/// The socket that processes connect to (SOCK_SEQPACKET).
pub struct Listener(Named);

/// A socket with a path, and mode 0777: every user's processes are served.
struct Named {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket's file.
    file: (u64, u64),
}

/// What was received, and from whom.
pub struct Datagram {
    /// As long as it was sent; the buffer holds no more than its own length of it.
    pub bytes: usize,
    /// It was longer than the buffer.
    pub truncated: bool,
    pub sender: Sender,
}

/// Who sent a datagram, by the kernel's word.
pub struct Sender {
    /// In the daemon's own pid namespace.
    pub pid: i32,
    pub uid: u32,
    /// Where its socket is bound, if in the file system.
    pub address: Option<PathBuf>,
}

impl Endpoint {
    /// # Errors
    /// If the path is somebody else's, and of the system calls.
    pub fn open(path: &Path) -> anyhow::Result<Endpoint> {
        Named::open(path, SocketType::DGRAM, |socket| {
            let_descriptors_come(socket, false);
            set_socket_passcred(socket, true)
        })
        .map(Endpoint)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
    }

    /// The next datagram; `None` if there is none.
    ///
    /// # Errors
    /// Of recvmsg(2). A datagram without credentials does not exist: the socket asks for them.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Datagram>> {
        // No room for descriptors: the kernel does not install those that somebody sends.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(buffer)];
        let received = match rustix::net::recvmsg(
            &self.0.socket,
            &mut parts,
            &mut control,
            RecvFlags::TRUNC,
        ) {
            // Interrupted: whoever waits for the socket comes back at once.
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            received => received?,
        };
        let credentials = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials),
            _ => None,
        });
        let Some(UCred { pid, uid, .. }) = credentials else {
            return Err(io::Error::other("a datagram without credentials"));
        };
        let address = received.address.and_then(|address| SocketAddrUnix::try_from(address).ok());
        let address = address.as_ref().and_then(SocketAddrUnix::path);
        let sender = Sender {
            pid: pid.as_raw_nonzero().get(),
            uid: uid.as_raw(),
            address: address.map(|path| OsStr::from_bytes(path.to_bytes()).into()),
        };
        let truncated = received.flags.contains(ReturnFlags::TRUNC);
        Ok(Some(Datagram { bytes: received.bytes, truncated, sender }))
    }

    /// Sends an answer. It goes to a socket of the sender itself only: who can move files could
    /// otherwise have the daemon write to a socket that is none of theirs.
    ///
    /// # Errors
    /// EAGAIN if the sender does not read its answers; what open(2) and sendto(2) say.
    pub fn reply(&self, sender: &Sender, notify_dir: &NotifyDir, answer: &[u8]) -> io::Result<()> {
        let Some(address) = &sender.address else {
            return Err(io::Error::other("its socket has no path"));
        };
        // The file is held from here on; no name is looked up twice.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = notify_dir.name_of(address);
        let file = match held {
            Some(name) => rustix::fs::openat(notify_dir.fd(), name, flags, Mode::empty())?,
            None if address.is_absolute() => rustix::fs::open(address, flags, Mode::empty())?,
            None => return Err(io::Error::other("its socket's path does not begin with /")),
        };
        let status = rustix::fs::fstat(&file)?;
        // Within the notify directory nobody can put a file of root; a process that began as root and
        // is another user now has one.
        let own = status.st_uid == sender.uid || (held.is_some() && status.st_uid == 0);
        if FileType::from_raw_mode(status.st_mode) != FileType::Socket || !own {
            return Err(io::Error::other("there is no socket of its own at its path"));
        }
        let held = SocketAddrUnix::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendto(&self.0.socket, answer, flags, &held)?;
        Ok(())
    }
}

impl Listener {
    /// # Errors
    /// As of [`Endpoint::open`].
    pub fn open(path: &Path) -> anyhow::Result<Listener> {
        Named::open(path, SocketType::SEQPACKET, |socket| {
            // Each connection inherits the option.
            let_descriptors_come(socket, false);
            rustix::net::listen(socket, BACKLOG)
        })
        .map(Listener)
    }

    /// No process can connect any more, and a thread that waits for one is woken.
    pub fn end(&self) {
        let _ = rustix::net::shutdown(&self.0.socket, Shutdown::Both);
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
    }

    /// The next connection; `None` if no process has connected.
    ///
    /// # Errors
    /// Of accept(2): EMFILE.
    pub fn accept(&self) -> rustix::io::Result<Option<OwnedFd>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.0.socket, flags) {
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            accepted => accepted.map(Some),
        }
    }
}

/// Processes that may call before the daemon looks.
const BACKLOG: i32 = 128;

impl Named {
    fn open(
        path: &Path,
        kind: SocketType,
        prepare: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>,
    ) -> anyhow::Result<Named> {
        remove_stale(path)?;
        let what = || format!("cannot make the socket {}", path.display());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).with_context(what)?;
        // There is no moment in which the file exists and may not be used.
        let before = umask(Mode::empty());
        let bound = SocketAddrUnix::new(path).and_then(|path| rustix::net::bind(&socket, &path));
        umask(before);
        bound.with_context(what)?;
        let file = identity(&fs::symlink_metadata(path).with_context(what)?);
        let named = Named { socket, path: path.to_owned(), file };
        prepare(&named.socket).with_context(what)?;
        Ok(named)
    }
}

impl Drop for Named {
    /// Removes the file, unless it is somebody else's by now.
    fn drop(&mut self) {
        let ours = |file: fs::Metadata| identity(&file) == self.file;
        if fs::symlink_metadata(&self.path).is_ok_and(ours) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(file: &fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Removes the socket of a daemon that was killed. Nothing else, and no socket that somebody serves.
fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let file = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.with_context(|| format!("cannot look at {shown}"))?,
    };
    if !file.file_type().is_socket() {
        bail!("{shown} exists and is no socket");
    }
    if is_served(path).with_context(|| format!("cannot try the socket {shown}"))? {
        bail!("the socket {shown} is in use by another program");
    }
    fs::remove_file(path).with_context(|| format!("cannot remove the old socket {shown}"))
}

/// Whether somebody has the socket open that is at this path. Nothing is sent.
pub fn is_served(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    match rustix::net::connect(&probe, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        // Of another type, or it takes datagrams from its own peer only.
        Ok(()) | Err(Errno::PROTOTYPE | Errno::PERM | Errno::AGAIN) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
