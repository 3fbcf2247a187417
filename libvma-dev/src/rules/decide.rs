//! What the rules decide for a program and an address.

use std::net::SocketAddrV4;

use super::{Role, Rule, RuleSet, Section, Target, pattern};

/// The kind of a new socket, about which rules without an address already decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// When the rules are asked: a role, but joining a group is not binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Listen,
    Connect,
    Bind,
    Join,
    Send,
    UdpConnect,
}

/// What is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    pub moment: Moment,
    /// The bound address of a server or receiver; the peer of everybody else.
    pub first: SocketAddrV4,
    /// The other name of a listener on any address of both families: the stand-in of `::`.
    pub also: Option<SocketAddrV4>,
    /// The local address of `tcp_client` and `udp_connect`, as far as it is known.
    pub second: Option<SocketAddrV4>,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling<'a> {
    /// No section is for this program.
    NoSection,
    /// The section that is has no rule for the address.
    NoRule(&'a Section),
    By(&'a Section, &'a Rule),
}

impl Moment {
    pub fn role(self) -> Role {
        match self {
            Moment::Listen => Role::TcpServer,
            Moment::Connect => Role::TcpClient,
            Moment::Bind | Moment::Join => Role::UdpReceiver,
            Moment::Send => Role::UdpSender,
            Moment::UdpConnect => Role::UdpConnect,
        }
    }

    /// Does a rule with this target leave the matter to the kernel? `*` does where the library
    /// could not change its mind later.
    pub fn is_kernels(self, target: Target) -> bool {
        match target {
            Target::Os => true,
            Target::Any => matches!(self, Moment::Connect | Moment::Bind | Moment::UdpConnect),
            Target::Vma | Target::Sdp | Target::Sa => false,
        }
    }
}

impl Ruling<'_> {
    pub fn is_kernels(&self, moment: Moment) -> bool {
        matches!(self, Ruling::By(_, rule) if moment.is_kernels(rule.target))
    }
}

impl Rule {
    /// Is the rule for what is asked about?
    pub fn fits(&self, query: &Query) -> bool {
        if self.role != query.moment.role() || !self.is_in_force() {
            return false;
        }
        let second = match (self.second, query.second) {
            (Some(end), Some(local)) if self.role.looks_at_second() => end.contains(local),
            (Some(end), None) if self.role.looks_at_second() => end.is_anything(),
            _ => true,
        };
        let is_named = |address| self.first.contains(address);
        second && (is_named(query.first) || query.also.is_some_and(is_named))
    }

    fn is_in_force(&self) -> bool {
        matches!(self.target, Target::Os | Target::Vma | Target::Any)
    }

    fn is_restricted(&self) -> bool {
        !self.first.is_anything() || self.second.is_some_and(|second| !second.is_anything())
    }
}

impl Section {
    /// Is the section for this program?
    pub fn is_for(&self, program: &str, id: &str) -> bool {
        let id_fits = self.id == "*" || id == "*" || self.id == id;
        id_fits && pattern::matches(&self.program, program)
    }

    /// The first rule that fits.
    pub fn rule_for(&self, query: &Query) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.fits(query))
    }

    /// Leaves a role all its sockets to the kernel, whatever their addresses?
    fn leaves_all(&self, role: Role) -> bool {
        let mut others = false;
        for rule in self.rules.iter().filter(|rule| rule.role == role && rule.is_in_force()) {
            if !rule.is_restricted() {
                return rule.target == Target::Os && !others;
            }
            others |= rule.target != Target::Os;
        }
        false
    }
}

impl RuleSet {
    /// The sections for a program, the one that decides first.
    pub fn sections_for<'a>(
        &'a self,
        program: &'a str,
        id: &'a str,
    ) -> impl Iterator<Item = &'a Section> {
        self.sections.iter().filter(move |section| section.is_for(program, id))
    }

    pub fn decide<'a>(&'a self, program: &'a str, id: &'a str, query: &Query) -> Ruling<'a> {
        match self.sections_for(program, id).next() {
            None => Ruling::NoSection,
            Some(section) => match section.rule_for(query) {
                None => Ruling::NoRule(section),
                Some(rule) => Ruling::By(section, rule),
            },
        }
    }

    /// Is a new socket of the program never to be offloaded? Only if sending and receiving (or
    /// listening and connecting) are both the kernel's without any address being asked for.
    pub fn leaves_sockets(&self, program: &str, id: &str, protocol: Protocol) -> bool {
        let roles = match protocol {
            Protocol::Tcp => (Role::TcpServer, Role::TcpClient),
            Protocol::Udp => (Role::UdpReceiver, Role::UdpSender),
        };
        self.sections_for(program, id)
            .map(|section| (section.leaves_all(roles.0), section.leaves_all(roles.1)))
            .find(|(one, other)| one == other)
            .is_some_and(|(leaves, _)| leaves)
    }
}
