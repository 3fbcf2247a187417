//! libvma.conf: which sockets of which program the library serves.
//!
//! A file is a list of sections, each for the programs and application ids it names; a section is a
//! list of rules. The first section that fits a program speaks for it, and in it the first rule that
//! fits an address. Nobody said otherwise: the library serves the socket.
//!
//! Here is what the library and `vma_conf` must agree on: the text ([`parse()`] and `Display`, which
//! are inverse), and what it decides. Reading files and acting on the answer is not done here.

mod decide;
mod parse;
mod pattern;
#[cfg(test)]
mod tests;

use core::fmt;
use std::net::{IpAddr, SocketAddrV4};

use crate::ipv6_loopback::named;

pub use decide::{Moment, Protocol, Query, Ruling};
pub use parse::{Parsed, Problem, parse};

/// What holds without a file: everything is offloaded but the resolver's sockets.
pub const BUILT_IN: &str = "application-id * *\nuse os udp_connect *:53\n";

/// A whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    pub sections: Vec<Section>,
}

/// The rules of the programs that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// A shell pattern for the program's short name.
    pub program: String,
    /// `*`, or what VMA_APPLICATION_ID must be.
    pub id: String,
    pub rules: Vec<Rule>,
}

/// One `use` line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub target: Target,
    pub role: Role,
    pub first: End,
    /// Only looked at for `tcp_client` and `udp_connect`: the local side.
    pub second: Option<End>,
    /// Where it stands.
    pub line: u32,
}

/// Who shall serve the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Os,
    Vma,
    /// `*`: whoever can, which for some roles is the kernel ([`Moment::is_kernels`]).
    Any,
    /// Accepted and never in force.
    Sdp,
    /// Accepted and never in force.
    Sa,
}

/// What the socket is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    TcpServer,
    TcpClient,
    UdpReceiver,
    UdpSender,
    UdpConnect,
}

/// One side of a socket; None is `*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    pub network: Option<Network>,
    /// The first and the last.
    pub ports: Option<(u16, u16)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    pub address: IpAddr,
    /// At most the bits of the address, 32 or 128.
    pub prefix: u8,
}

impl Network {
    /// 0.0.0.0/0 has the addresses of IPv6, too.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(address)) => {
                let shift = 32 - u32::from(self.prefix.min(32));
                let mask = u32::MAX.checked_shl(shift).unwrap_or(0);
                own.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V6(own), IpAddr::V6(address)) => {
                let shift = 128 - u32::from(self.prefix.min(128));
                let mask = u128::MAX.checked_shl(shift).unwrap_or(0);
                own.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V4(_), IpAddr::V6(_)) => self.prefix == 0,
            (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl End {
    /// The address may be the stand-in of one of IPv6.
    pub fn contains(&self, address: SocketAddrV4) -> bool {
        let ports = self.ports.is_none_or(|(first, last)| (first..=last).contains(&address.port()));
        ports && self.network.is_none_or(|network| network.contains(named(address).ip()))
    }

    /// `*:*`.
    pub fn is_anything(&self) -> bool {
        self.network.is_none() && self.ports.is_none()
    }
}

impl Target {
    pub const ALL: [Target; 5] = [Target::Os, Target::Vma, Target::Sdp, Target::Sa, Target::Any];

    pub fn word(self) -> &'static str {
        match self {
            Target::Os => "os",
            Target::Vma => "vma",
            Target::Any => "*",
            Target::Sdp => "sdp",
            Target::Sa => "sa",
        }
    }
}

impl Role {
    pub const ALL: [Role; 5] =
        [Role::TcpServer, Role::TcpClient, Role::UdpReceiver, Role::UdpSender, Role::UdpConnect];

    pub fn word(self) -> &'static str {
        match self {
            Role::TcpServer => "tcp_server",
            Role::TcpClient => "tcp_client",
            Role::UdpReceiver => "udp_receiver",
            Role::UdpSender => "udp_sender",
            Role::UdpConnect => "udp_connect",
        }
    }

    /// The local side of the socket counts, too.
    pub fn looks_at_second(self) -> bool {
        matches!(self, Role::TcpClient | Role::UdpConnect)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network {
            None => f.write_str("*")?,
            Some(Network { address: IpAddr::V4(address), prefix: 32 }) => write!(f, "{address}")?,
            Some(Network { address: IpAddr::V4(address), prefix }) => {
                write!(f, "{address}/{prefix}")?;
            }
            Some(Network { address: IpAddr::V6(address), prefix: 128 }) => {
                write!(f, "[{address}]")?;
            }
            Some(Network { address: IpAddr::V6(address), prefix }) => {
                write!(f, "[{address}]/{prefix}")?;
            }
        }
        match self.ports {
            None => f.write_str(":*"),
            Some((first, last)) if first == last => write!(f, ":{first}"),
            Some((first, last)) => write!(f, ":{first}-{last}"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "use {} {} {}", self.target, self.role, self.first)?;
        match self.second {
            Some(second) => write!(f, ":{second}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "application-id {} {}", self.program, self.id)?;
        self.rules.iter().try_for_each(|rule| writeln!(f, "{rule}"))
    }
}

impl fmt::Display for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sections.iter().try_for_each(|section| write!(f, "{section}"))
    }
}
