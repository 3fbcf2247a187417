//! Why something is the kernel's: one enum for logs, statistics and tests; and what the user can do about it.

use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::config::Exceptions;
use crate::config::rules::Place;
use crate::control::NotOffloadable;
use crate::log::{Level, line, log_line};

/// What the user can do about a reason.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    Privileges,
    Interface,
    Kernel,
    Descriptors,
    Ipv4,
    Flows,
    Option,
}

/// Remedies that have been told.
struct Told(AtomicU32);

/// One for all that the process tells.
static TOLD: Told = Told(AtomicU32::new(0));

impl Told {
    /// Not told yet? It is from now on.
    fn is_news(&self, remedy: Remedy) -> bool {
        let (told, bit) = (&self.0, 1 << remedy as u32);
        told.load(Ordering::Relaxed) & bit == 0 && told.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }
}

impl Remedy {
    /// Logs `what`: the first time in the process as a warning with the remedy, later at level DEBUG.
    pub fn tell(self, what: fmt::Arguments<'_>) {
        let remedy = match self {
            Remedy::Privileges => {
                "; start the program as root, or give it CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_IPC_LOCK, \
                 and let it keep them (installation.md, \"Privileges\")"
            }
            Remedy::Interface | Remedy::Kernel => "",
            Remedy::Descriptors => {
                "; let the program have more descriptors (ulimit -n, LimitNOFILE= of a systemd unit), at least 256"
            }
            Remedy::Ipv4 => {
                "; an IPv4 socket is served: many programs have an option -4, or take 0.0.0.0 as the address"
            }
            Remedy::Flows => {
                "; the interface has as many sockets as its table holds, or vmad does not grant the address and port"
            }
            Remedy::Option => {
                "; VMA_EXCEPTION_HANDLING=2 refuses such options, and many programs go on without them"
            }
        };
        if TOLD.is_news(self) {
            line(Level::Warning, format_args!("{what}{remedy}"));
        } else {
            log_line!(Debug, "{what}");
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyOs {
    /// Not one of our sockets (any more).
    NotOurs,
    /// Neither bound nor connected: nothing can have arrived.
    Unbound,
    /// A signal handler that got past the wrapper interrupted our own code on this thread.
    Reentered,
    /// netlink, or what else the control plane needs, is not to be had.
    NoControlPlane,
    /// No interface that the socket uses can be offloaded.
    NoInterface,
    Interface(NotOffloadable),
    /// Its interface is about to be attached, in the background.
    Attaching,
    /// The ring could not be opened; the log says why.
    RingRefused,
    /// TCP, at a hook where the kernel loses segments that were put together on the way.
    LongSegments,
    /// The kernel refused a flow rule.
    FlowRefused,
    /// Within the host.
    LocalDestination,
    /// Connections within the host, or UDP sockets, to that address have been short-lived.
    Short,
    Broadcast,
    /// The process of this host that it is for does not keep up with what others send it.
    LinkFull,
    /// Another process of the host is a member of the multicast group.
    LocalMembers,
    /// The kernel has no route, or one that only it can use.
    Route,
    /// The kernel is resolving the neighbour's address.
    Neighbour,
    /// The address or the flags of the call are such that only the kernel gives the right answer.
    Arguments,
    /// Ancillary data that changes how the message is sent.
    ControlMessage,
    /// An option that is not implemented.
    Option {
        level: i32,
        name: i32,
    },
    ShutDown,
    /// The descriptor was handed to another process.
    Passed,
    /// The interface that its packets went by is gone.
    InterfaceGone,
    /// The process ends, or starts another program in its place.
    ProcessEnds,
    /// An epoll instance that watches it is watched itself, or has two numbers.
    NestedEpoll,
    /// Its registrations in an epoll instance cannot be told apart.
    Ambiguous,
    /// A stdio stream was opened on it: libc reads that past us.
    Stream,
    /// An error waits in the shadow.
    PendingError,
    /// The process may not install connections: the kernel could never take it over.
    CannotBeGivenBack,
    /// libvma.conf says so.
    Rule(Place),
    /// Only IPv4 is offloaded: the socket takes IPv6 only, or connects by it.
    Ipv6,
}

impl WhyOs {
    /// Logs that `what` is the kernel's: as a warning, once in the process, if the user can change that.
    pub fn tell(self, what: fmt::Arguments<'_>) {
        if !self.tell_remedy(what) {
            log_line!(Debug, "{what} is served by the kernel: {self}");
        }
    }

    /// The same, for a socket that is still served in part: only if there is a remedy. False: there is none.
    pub fn tell_remedy(self, what: fmt::Arguments<'_>) -> bool {
        let Some(remedy) = self.remedy() else { return false };
        remedy.tell(format_args!("{what} is served by the kernel: {self}"));
        true
    }

    fn remedy(self) -> Option<Remedy> {
        match self {
            WhyOs::CannotBeGivenBack => Some(Remedy::Privileges),
            // That VMA_XDP does not name it, or is off, the user has said.
            WhyOs::Interface(NotOffloadable::NotAllowed) => Some(Remedy::Interface),
            WhyOs::LongSegments => Some(Remedy::Kernel),
            WhyOs::NoControlPlane => Some(Remedy::Descriptors),
            WhyOs::Ipv6 => Some(Remedy::Ipv4),
            WhyOs::FlowRefused => Some(Remedy::Flows),
            WhyOs::Option { .. } => Some(Remedy::Option),
            _ => None,
        }
    }

    /// An option that is not offloaded is told, and perhaps refused with the errno returned, as
    /// VMA_EXCEPTION_HANDLING says.
    pub fn judge(self, exceptions: Exceptions) -> Result<(), i32> {
        match exceptions {
            Exceptions::Debug => Ok(()),
            Exceptions::Error => {
                log_line!(Error, "a socket becomes the kernel's: {self}");
                // That line is the warning, too.
                TOLD.is_news(Remedy::Option);
                Ok(())
            }
            Exceptions::Refuse => {
                log_line!(Error, "an option of a socket is refused: {self}");
                Err(libc::EINVAL)
            }
            Exceptions::Abort => {
                log_line!(
                    Error,
                    "a socket ends the process, as VMA_EXCEPTION_HANDLING=3 says: {self}"
                );
                std::process::abort()
            }
        }
    }
}

impl fmt::Display for WhyOs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            WhyOs::NotOurs => "it is not offloaded",
            WhyOs::Unbound => "it is not bound",
            WhyOs::Reentered => "the call came from a signal handler",
            WhyOs::NoControlPlane => "netlink is not available",
            WhyOs::NoInterface => "no interface it uses can be offloaded",
            WhyOs::Interface(reason) => reason.text(),
            WhyOs::Attaching => "its interface is being attached",
            WhyOs::RingRefused => "the interface's ring could not be opened",
            WhyOs::LongSegments => {
                "TCP at the generic XDP hook needs Linux 6.6; the driver has no hook of its own, or VMA_XDP_MODE \
                 names the generic one"
            }
            WhyOs::FlowRefused => "its packets cannot be steered to the process",
            WhyOs::LocalDestination => "the destination is on this host",
            WhyOs::Short => "sockets for that address have been short-lived",
            WhyOs::Broadcast => "the destination is a broadcast address",
            WhyOs::LinkFull => "the receiving process does not keep up",
            WhyOs::LocalMembers => "another process of this host joined the group",
            WhyOs::Route => "the route is the kernel's",
            WhyOs::Neighbour => "the neighbour is being resolved",
            WhyOs::Arguments => "of the call's arguments",
            WhyOs::ControlMessage => "of its control messages",
            WhyOs::Option { level, name } => {
                return match option_names::known(*level, *name) {
                    Some(known) => write!(f, "it has {known}, which only the kernel serves"),
                    None => write!(f, "it has option {level}/{name}, which only the kernel serves"),
                };
            }
            WhyOs::ShutDown => "it was shut down",
            WhyOs::Passed => "it was passed to another process",
            WhyOs::InterfaceGone => "its interface is gone",
            WhyOs::ProcessEnds => "the process ends",
            WhyOs::NestedEpoll => "an epoll instance that watches it is watched itself",
            WhyOs::Ambiguous => "its epoll registrations cannot be told apart",
            WhyOs::Stream => "a stream was opened on it",
            WhyOs::PendingError => "an error is pending",
            WhyOs::Rule(place) => return write!(f, "of a rule ({place})"),
            WhyOs::Ipv6 => "it is an IPv6 socket",
            WhyOs::CannotBeGivenBack => "the process lacks CAP_NET_ADMIN to give it back later",
        };
        f.write_str(text)
    }
}

mod option_names;
#[cfg(test)]
mod tests;
