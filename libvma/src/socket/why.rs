//! Why something is the kernel's: one enum for logs, statistics and tests.

use crate::config::Exceptions;
use crate::config::rules::Place;
use crate::control::NotOffloadable;
use crate::log::log_line;

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
    /// The kernel refused a flow rule.
    FlowRefused,
    /// Within the host.
    LocalDestination,
    /// Within the host, where connections have been short.
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
}

impl WhyOs {
    /// An option that is not offloaded is told, and perhaps refused with the errno returned, as
    /// VMA_EXCEPTION_HANDLING says.
    pub fn judge(self, exceptions: Exceptions) -> Result<(), i32> {
        match exceptions {
            Exceptions::Debug => Ok(()),
            Exceptions::Error => {
                log_line!(Error, "{self}; the kernel serves the socket");
                Ok(())
            }
            Exceptions::Refuse => {
                log_line!(Error, "{self}");
                Err(libc::EINVAL)
            }
            Exceptions::Abort => {
                log_line!(Error, "{self}; the process ends, as VMA_EXCEPTION_HANDLING=3 says");
                std::process::abort()
            }
        }
    }
}

impl core::fmt::Display for WhyOs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let text = match self {
            WhyOs::NotOurs => "it is not offloaded",
            WhyOs::Unbound => "it is not bound",
            WhyOs::Reentered => "the call came from a signal handler",
            WhyOs::NoControlPlane => "netlink is not available",
            WhyOs::NoInterface => "no interface it uses can be offloaded",
            WhyOs::Interface(reason) => reason.text(),
            WhyOs::Attaching => "its interface is being attached",
            WhyOs::RingRefused => "the interface's ring could not be opened",
            WhyOs::FlowRefused => "the flow was refused",
            WhyOs::LocalDestination => "the destination is on this host",
            WhyOs::Short => "connections to that address within the host are short",
            WhyOs::Broadcast => "the destination is a broadcast address",
            WhyOs::LinkFull => "the receiving process does not keep up",
            WhyOs::LocalMembers => "another process of this host joined the group",
            WhyOs::Route => "the route is the kernel's",
            WhyOs::Neighbour => "the neighbour is being resolved",
            WhyOs::Arguments => "of the call's arguments",
            WhyOs::ControlMessage => "of its control messages",
            WhyOs::Option { level, name } => {
                return write!(f, "socket option {level}/{name} is not implemented");
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
            WhyOs::CannotBeGivenBack => "the process lacks CAP_NET_ADMIN to give it back later",
        };
        f.write_str(text)
    }
}
