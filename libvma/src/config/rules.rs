//! libvma.conf as far as it concerns this process: read once, then only asked.
//!
//! The grammar and what a rule means are in `libvma_dev::rules`, which `vma_conf` shares.

use core::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libvma_dev::ipv6_stand_ins;
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
    /// The program added it, by the Extra API.
    Added,
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
            Place::Added => f.write_str("add_conf_rule()"),
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
    asks_senders: Flag,
    /// A section is for this program if it names both.
    program: String,
    id: String,
    /// Rules that the program added; the last one goes first.
    added: OnceLock<Box<Added>>,
}

/// A rule that the program added, and those that it added later. Only ever appended to, so that it is read without a lock.
#[derive(Clone, Debug)]
struct Added {
    rule: Rule,
    later: OnceLock<Box<Added>>,
}

/// A flag that is raised at run time.
#[derive(Debug, Default)]
struct Flag(AtomicBool);

impl Flag {
    #[inline]
    fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Clone for Flag {
    fn clone(&self) -> Flag {
        Flag(AtomicBool::new(self.is_raised()))
    }
}

impl From<bool> for Flag {
    fn from(raised: bool) -> Flag {
        Flag(AtomicBool::new(raised))
    }
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
        let of_senders = |section: &Section| section.rules.iter().any(leaves_senders);
        Rules {
            asks_senders: section.as_ref().is_some_and(of_senders).into(),
            section,
            former: Vec::new(),
            leaves_tcp: set.leaves_sockets(program, id, Protocol::Tcp),
            leaves_udp: set.leaves_sockets(program, id, Protocol::Udp),
            program: program.to_owned(),
            id: id.to_owned(),
            added: OnceLock::new(),
        }
    }

    fn add_former(&mut self, settings: &Settings) {
        let groups = [
            Network { address: Ipv4Addr::new(224, 0, 0, 0).into(), prefix: 4 },
            Network { address: Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), prefix: 8 },
        ];
        for first in groups.map(|groups| End { network: Some(groups), ports: None }) {
            let rule = |role| Rule { target: Target::Os, role, first, second: None, line: 0 };
            if !settings.flag("VMA_TX_OFFLOAD") {
                self.former.push((rule(Role::UdpSender), Place::TxOffload));
                self.asks_senders.raise();
            }
            if !settings.flag("VMA_RX_OFFLOAD") {
                self.former.push((rule(Role::UdpReceiver), Place::RxOffload));
            }
        }
    }

    /// Adds the rules of a text before all others, the last one first. A section in it is for the programs that it names; what
    /// stands before one is for this program. False, and nothing is added, if something is not understood.
    pub fn add(&self, text: &str) -> bool {
        let parsed = rules::parse(text);
        for problem in &parsed.problems {
            log_line!(Warning, "add_conf_rule():{problem}; nothing is added");
        }
        if !parsed.problems.is_empty() {
            return false;
        }
        let mut new: Vec<Rule> = parsed
            .rules
            .sections
            .into_iter()
            .filter(|section| section.is_for(&self.program, &self.id))
            .flat_map(|section| section.rules)
            .collect();
        new.sort_by_key(|rule| rule.line);
        for rule in new {
            self.append(rule);
        }
        true
    }

    fn append(&self, rule: Rule) {
        if leaves_senders(&rule) {
            self.asks_senders.raise();
        }
        let mut new = Box::new(Added { rule, later: OnceLock::new() });
        let mut end = &self.added;
        loop {
            match end.set(new) {
                Ok(()) => return,
                Err(refused) => new = refused,
            }
            match end.get() {
                Some(added) => end = &added.later,
                None => return,
            }
        }
    }

    /// The last rule of those added that fits.
    fn added_for(&self, query: &Query) -> Option<&Rule> {
        let mut found = None;
        let mut next = self.added.get();
        while let Some(added) = next {
            if added.rule.fits(query) {
                found = Some(&added.rule);
            }
            next = added.later.get();
        }
        found
    }

    /// Is a new socket never to be offloaded? A rule that was added may take one out.
    pub fn leave_all(&self, protocol: Protocol) -> bool {
        let leaves = match protocol {
            Protocol::Tcp => self.leaves_tcp,
            Protocol::Udp => self.leaves_udp,
        };
        leaves && self.added.get().is_none()
    }

    /// Might a rule leave something that is sent to the kernel? Asked for every datagram.
    #[inline]
    pub fn ask_senders(&self) -> bool {
        self.asks_senders.is_raised()
    }

    /// The rule that leaves this to the kernel, if one does. `first` is the bound address of a
    /// server or receiver and the peer of everybody else, who have a local address as `second`.
    pub fn decide(
        &self,
        moment: Moment,
        first: SocketAddrV4,
        second: Option<SocketAddrV4>,
    ) -> Option<Place> {
        self.ruling(&Query { moment, first, also: None, second })
    }

    /// The same of a listener, which may be of both families: bound to any address it is `::` and 0.0.0.0.
    pub fn decide_listener(&self, local: SocketAddrV4, is_ipv6: bool) -> Option<Place> {
        let also = (is_ipv6 && local.ip().is_unspecified())
            .then(|| SocketAddrV4::new(ipv6_stand_ins::ANY, local.port()));
        self.ruling(&Query { moment: Moment::Listen, first: local, also, second: None })
    }

    fn ruling(&self, query: &Query) -> Option<Place> {
        let moment = query.moment;
        if let Some(rule) = self.added_for(query) {
            return moment.is_kernels(rule.target).then_some(Place::Added);
        }
        for (rule, place) in &self.former {
            if rule.role == moment.role() && rule.first.contains(query.first) {
                return Some(*place);
            }
        }
        let rule = self.section.as_ref()?.rule_for(query)?;
        moment.is_kernels(rule.target).then_some(Place::Line(rule.line))
    }
}

/// May the rule leave a datagram to the kernel?
fn leaves_senders(rule: &Rule) -> bool {
    Moment::Send.is_kernels(rule.target) && rule.role == Role::UdpSender
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
    fn added_rules_go_first_the_last_one_ahead_of_all() {
        let text = "use os tcp_client 10.0.0.0/8:*\nuse os udp_receiver *:*\nuse os udp_sender *:*";
        let rules = Rules::new(text, "some.conf", "prog", "x");
        assert!(rules.leave_all(Protocol::Udp));
        let decide = |moment, to| rules.decide(moment, at(to), None);
        assert_eq!(decide(Moment::Connect, "10.0.0.1:5"), Some(Place::Line(1)));
        assert!(rules.add("use vma tcp_client 10.0.0.1:*"));
        assert!(!rules.leave_all(Protocol::Udp));
        assert_eq!(decide(Moment::Connect, "10.0.0.1:5"), None);
        assert_eq!(decide(Moment::Connect, "10.0.0.2:5"), Some(Place::Line(1)));
        assert!(rules.add("use vma tcp_client *:*\nuse os tcp_client 10.0.0.1:5"));
        assert_eq!(decide(Moment::Connect, "10.0.0.1:5"), Some(Place::Added));
        assert_eq!(decide(Moment::Connect, "10.0.0.2:5"), None);
        // Another program's.
        assert!(rules.add("application-id another *\nuse os tcp_client *:*"));
        assert_eq!(decide(Moment::Connect, "10.0.0.2:5"), None);
        // All of it, or nothing.
        assert!(!rules.add("use os tcp_client *:*\nuse what"));
        assert_eq!(decide(Moment::Connect, "10.0.0.2:5"), None);
    }

    // covers: CONF-11
    #[test]
    fn a_listener_of_both_families_has_the_names_of_both() {
        let of = |rule: &str| Rules::new(rule, "some.conf", "prog", "x");
        let any = at("0.0.0.0:80");
        for address in ["[::]", "[::]/0", "0.0.0.0", "*"] {
            let text = format!("use os tcp_server {address}:80");
            let rules = of(&text);
            assert!(rules.decide_listener(any, true).is_some(), "{address}");
            let of_ipv4 = rules.decide_listener(any, false);
            assert_eq!(of_ipv4.is_some(), !address.contains("::"), "{address}");
            assert!(rules.decide_listener(at("0.0.0.0:81"), true).is_none());
            let one = rules.decide_listener(at("10.0.0.1:80"), true);
            assert_eq!(one.is_some(), address == "*", "{address}");
        }
        // The first rule that fits decides, whichever name it fits.
        let rules = of("use vma tcp_server [::]:80\nuse os tcp_server 0.0.0.0:80");
        assert!(rules.decide_listener(any, true).is_none());
        assert!(rules.decide_listener(any, false).is_some());
    }

    #[test]
    fn an_added_rule_for_senders_is_asked() {
        let rules = Rules::new("", "some.conf", "prog", "x");
        assert!(!rules.ask_senders());
        assert!(rules.add("use os udp_sender 10.0.0.0/8:*"));
        assert!(rules.ask_senders());
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
