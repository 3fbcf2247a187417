//! libvma.conf as far as it concerns this process: read once, then only asked.
//!
//! The grammar and what a rule means are in `libvma_dev::rules`, which `vma_conf` shares.

use core::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::OnceLock;

use libvma_dev::rules::{self, End, Network, Query, Role, Rule, Section, Target};
pub use libvma_dev::rules::{Moment, Protocol};

use super::settings::Settings;
use crate::log::log_line;
use crate::sys;

/// Where a rule stands. Small, because every socket has room for it; the file's name is the
/// process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Line(u32),
    /// A parameter that is as good as a rule.
    TxOffload,
    RxOffload,
}

/// What the process reads its rules from.
static SOURCE: OnceLock<String> = OnceLock::new();

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(line) => {
                write!(f, "{}:{line}", SOURCE.get().map_or(BUILT_IN_NAME, |name| name))
            }
            Place::TxOffload => f.write_str("VMA_TX_OFFLOAD=0"),
            Place::RxOffload => f.write_str("VMA_RX_OFFLOAD=0"),
        }
    }
}

/// The rules for this program. By default there are none: everything is offloaded.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The section that speaks for it.
    section: Option<Section>,
    /// Of parameters from the time before there was a file; they go first.
    former: Vec<(Rule, Place)>,
    leaves_tcp: bool,
    leaves_udp: bool,
    asks_senders: bool,
}

/// What is in force if there is no file.
const BUILT_IN_NAME: &str = "built-in rules";

impl Rules {
    /// Reads the file that the settings name. Whatever is wrong with it is logged.
    pub fn load(settings: &Settings) -> Rules {
        let id = expand(settings.text("VMA_APPLICATION_ID"));
        let file = expand(settings.text("VMA_CONFIG_FILE"));
        let (text, name) = match read(&file, settings.is_given("VMA_CONFIG_FILE")) {
            Some(text) => (text, file),
            None => (rules::BUILT_IN.to_owned(), BUILT_IN_NAME.to_owned()),
        };
        let name = SOURCE.get_or_init(|| name);
        let mut rules = Rules::new(&text, name, &program_name(), &id);
        rules.add_former(settings);
        if rules.section.is_none() && settings.is_given("VMA_APPLICATION_ID") {
            log_line!(
                Warning,
                "match: requested VMA_APPLICATION_ID {id} does not exist in the configuration file"
            );
        }
        rules
    }

    fn new(text: &str, file: &str, program: &str, id: &str) -> Rules {
        let parsed = rules::parse(text);
        for problem in &parsed.problems {
            log_line!(Warning, "{file}:{problem}; the rest of the line is passed over");
        }
        let set = parsed.rules;
        let section = set.sections_for(program, id).next().cloned();
        let of_senders = |section: &Section| {
            section
                .rules
                .iter()
                .any(|rule| Moment::Send.is_kernels(rule.target) && rule.role == Role::UdpSender)
        };
        Rules {
            asks_senders: section.as_ref().is_some_and(of_senders),
            section,
            former: Vec::new(),
            leaves_tcp: set.leaves_sockets(program, id, Protocol::Tcp),
            leaves_udp: set.leaves_sockets(program, id, Protocol::Udp),
        }
    }

    fn add_former(&mut self, settings: &Settings) {
        let groups = Network { address: Ipv4Addr::new(224, 0, 0, 0), prefix: 4 };
        let first = End { network: Some(groups), ports: None };
        let rule = |role| Rule { target: Target::Os, role, first, second: None, line: 0 };
        if !settings.flag("VMA_TX_OFFLOAD") {
            self.former.push((rule(Role::UdpSender), Place::TxOffload));
            self.asks_senders = true;
        }
        if !settings.flag("VMA_RX_OFFLOAD") {
            self.former.push((rule(Role::UdpReceiver), Place::RxOffload));
        }
    }

    /// Is a new socket never to be offloaded?
    pub fn leave_all(&self, protocol: Protocol) -> bool {
        match protocol {
            Protocol::Tcp => self.leaves_tcp,
            Protocol::Udp => self.leaves_udp,
        }
    }

    /// Might a rule leave something that is sent to the kernel? Asked for every datagram.
    #[inline]
    pub fn ask_senders(&self) -> bool {
        self.asks_senders
    }

    /// The rule that leaves this to the kernel, if one does. `first` is the bound address of a
    /// server or receiver and the peer of everybody else, who have a local address as `second`.
    pub fn decide(
        &self,
        moment: Moment,
        first: SocketAddrV4,
        second: Option<SocketAddrV4>,
    ) -> Option<Place> {
        for (rule, place) in &self.former {
            if rule.role == moment.role() && rule.first.contains(first) {
                return Some(*place);
            }
        }
        let rule = self.section.as_ref()?.rule_for(&Query { moment, first, second })?;
        moment.is_kernels(rule.target).then_some(Place::Line(rule.line))
    }
}

/// The text of the file; None if there is none to be had. Said aloud only if it was asked for.
fn read(path: &str, named: bool) -> Option<String> {
    match sys::fd::is_regular(path) {
        Ok(true) => {}
        Ok(false) => {
            log_line!(
                Warning,
                "FAILED to read VMA configuration file. {path} is not a regular file."
            );
            return None;
        }
        Err(errno) => {
            no_file(path, named, errno);
            return None;
        }
    }
    match sys::fd::read_file(path) {
        Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Err(errno) => {
            no_file(path, named, errno);
            None
        }
    }
}

fn no_file(path: &str, named: bool, errno: rustix::io::Errno) {
    if named {
        log_line!(Warning, "FAILED to read VMA configuration file: {path}: {errno}");
    } else {
        log_line!(Debug, "FAILED to read VMA configuration file: {path}: {errno}");
    }
}

/// The first `%d` is the process id.
pub fn expand(text: &str) -> String {
    text.replacen("%d", &sys::thread::process_id().to_string(), 1)
}

/// The program as it was called, without its directory.
fn program_name() -> String {
    let bytes = sys::fd::read_file("/proc/self/cmdline").unwrap_or_default();
    let first = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = first.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddrV4 {
        text.parse().expect("an address")
    }

    // covers: CONF-09, CONF-10, CONF-13
    #[test]
    fn the_rule_that_decides_is_named_with_its_line() {
        let text = "application-id prog *\n# one\nuse os udp_sender 10.0.0.0/8:*\n";
        let rules = Rules::new(text, "some.conf", "prog", "x");
        assert!(rules.ask_senders());
        let place = rules.decide(Moment::Send, at("10.1.2.3:4"), None).expect("a rule");
        assert!(place.to_string().ends_with(":3"), "{place}");
        assert_eq!(rules.decide(Moment::Send, at("11.1.2.3:4"), None), None);
        assert_eq!(rules.decide(Moment::Connect, at("10.1.2.3:4"), None), None);
        assert!(!Rules::new(text, "some.conf", "another", "x").ask_senders());
    }

    #[test]
    fn nothing_is_kept_from_us_by_default() {
        let rules = Rules::default();
        assert_eq!(rules.decide(Moment::Listen, at("0.0.0.0:80"), None), None);
        assert!(!rules.leave_all(Protocol::Udp) && !rules.ask_senders());
    }

    #[test]
    fn parameters_of_2008_are_rules_for_multicast() {
        let off = |name: &str| Settings::read([(name.to_owned(), "0".to_owned())]);
        let mut rules = Rules::default();
        rules.add_former(&off("VMA_TX_OFFLOAD"));
        let place = rules.decide(Moment::Send, at("239.1.1.1:5"), None).expect("a rule");
        assert_eq!(place.to_string(), "VMA_TX_OFFLOAD=0");
        assert_eq!(rules.decide(Moment::Send, at("10.1.1.1:5"), None), None);
        let mut rules = Rules::default();
        rules.add_former(&off("VMA_RX_OFFLOAD"));
        assert!(rules.decide(Moment::Join, at("239.1.1.1:5"), None).is_some());
        assert!(!rules.ask_senders());
    }

    // covers: CONF-23
    #[test]
    fn a_file_that_is_none_leaves_the_built_in_rules() {
        let settings = Settings::read([("VMA_CONFIG_FILE".to_owned(), "/dev/zero".to_owned())]);
        let rules = Rules::load(&settings);
        assert!(rules.decide(Moment::UdpConnect, at("9.9.9.9:53"), None).is_some());
        assert_eq!(expand("/tmp/x.%d.%d"), format!("/tmp/x.{}.%d", std::process::id()));
    }
}
