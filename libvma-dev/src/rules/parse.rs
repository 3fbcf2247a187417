//! From text to rules, by recursive descent.
//!
//! A line holds any number of statements; none goes over a line's end. The line in which something
//! is wrong loses what follows the mistake; every other line stays in force.

use core::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::{End, Network, Role, Rule, RuleSet, Section, Target};

/// What a text says, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    pub rules: RuleSet,
    pub problems: Vec<Problem>,
}

/// Something that is not understood; both numbers start at 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub line: u32,
    pub column: u32,
    pub text: String,
}

impl fmt::Display for Problem {
    /// To stand behind a file's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.text)
    }
}

/// Reads a whole file.
pub fn parse(text: &str) -> Parsed {
    let mut parsed = Parsed::default();
    let mut section = None;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (line, number) in text.split('\n').zip(1..) {
        let mut cursor = Cursor { line, at: 0, number };
        while !cursor.is_done() {
            if let Err(text) = statement(&mut cursor, &mut parsed.rules, &mut section) {
                let column = cursor.column();
                parsed.problems.push(Problem { line: number, column, text });
                break;
            }
        }
    }
    parsed
}

/// `current` is the section that rules go into.
fn statement(
    cursor: &mut Cursor<'_>,
    rules: &mut RuleSet,
    current: &mut Option<usize>,
) -> Result<(), String> {
    if cursor.eat("application-id") {
        let program = cursor.word("the name of a program")?;
        let id = cursor.word("an application id, or *")?;
        *current = Some(open(rules, program, id));
        return Ok(());
    }
    if cursor.eat("use") {
        let rule = rule(cursor)?;
        let at = *current.get_or_insert_with(|| open(rules, "*", "*"));
        if let Some(section) = rules.sections.get_mut(at) {
            section.rules.push(rule);
        }
        return Ok(());
    }
    if cursor.eat("log") {
        return log(cursor);
    }
    Err(cursor.expected("application-id, use or log"))
}

/// A section with the same two words goes on; another one is added.
fn open(rules: &mut RuleSet, program: &str, id: &str) -> usize {
    let known = rules.sections.iter().position(|one| one.program == program && one.id == id);
    known.unwrap_or_else(|| {
        rules.sections.push(Section { program: program.into(), id: id.into(), rules: Vec::new() });
        rules.sections.len() - 1
    })
}

fn rule(cursor: &mut Cursor<'_>) -> Result<Rule, String> {
    let target = Target::ALL.into_iter().find(|target| cursor.eat(target.word()));
    let target = target.ok_or_else(|| cursor.expected("os, vma or *"))?;
    let role = Role::ALL.into_iter().find(|role| cursor.eat(role.word()));
    let role = role.ok_or_else(|| {
        cursor.expected("tcp_server, tcp_client, udp_receiver, udp_sender or udp_connect")
    })?;
    let first = end(cursor)?;
    let second = if cursor.eat(":") { Some(end(cursor)?) } else { None };
    Ok(Rule { target, role, first, second, line: cursor.number })
}

fn end(cursor: &mut Cursor<'_>) -> Result<End, String> {
    let network = if cursor.eat("*") { None } else { Some(network(cursor)?) };
    cursor.expect(":")?;
    let ports = if cursor.eat("*") { None } else { Some(ports(cursor)?) };
    Ok(End { network, ports })
}

fn network(cursor: &mut Cursor<'_>) -> Result<Network, String> {
    if cursor.eat("[") {
        return ipv6_network(cursor);
    }
    let mut octets = [0u8; 4];
    for (at, octet) in octets.iter_mut().enumerate() {
        if at > 0 {
            cursor.expect(".")?;
        }
        let what = if at == 0 {
            "an IPv4 address, an IPv6 address in brackets or *"
        } else {
            "a number of an IPv4 address"
        };
        *octet = cursor.number(what, 255)? as u8;
    }
    let prefix = if cursor.eat("/") { cursor.number("the length of a prefix", 32)? } else { 32 };
    Ok(Network { address: Ipv4Addr::from(octets).into(), prefix: prefix as u8 })
}

/// Behind the bracket, which keeps the colons of the address from those of the rule.
fn ipv6_network(cursor: &mut Cursor<'_>) -> Result<Network, String> {
    cursor.skip_blanks();
    let rest = cursor.rest();
    let len = rest.find(|it: char| !it.is_ascii_hexdigit() && !matches!(it, ':' | '.'));
    let text = &rest[..len.unwrap_or(rest.len())];
    let address: Ipv6Addr = text.parse().map_err(|_| format!("{text:?} is no IPv6 address"))?;
    if let Some(mapped) = address.to_ipv4_mapped() {
        return Err(format!("{address} is an IPv4 address: {mapped}"));
    }
    cursor.at += text.len();
    cursor.expect("]")?;
    let prefix = if cursor.eat("/") { cursor.number("the length of a prefix", 128)? } else { 128 };
    Ok(Network { address: address.into(), prefix: prefix as u8 })
}

fn ports(cursor: &mut Cursor<'_>) -> Result<(u16, u16), String> {
    let first = cursor.number("a port or *", 65535)? as u16;
    if !cursor.eat("-") {
        return Ok((first, first));
    }
    cursor.skip_blanks();
    let before = cursor.at;
    let last = cursor.number("the last port", 65535)? as u16;
    if last < first {
        cursor.at = before;
        return Err(format!("the range of ports {first}-{last} is empty"));
    }
    Ok((first, last))
}

/// Accepted for old files; how to log is said by VMA_TRACELEVEL and VMA_LOG_FILE.
fn log(cursor: &mut Cursor<'_>) -> Result<(), String> {
    loop {
        if cursor.eat("destination") {
            if cursor.eat("ystderr") || cursor.eat("stderr") || cursor.eat("syslog") {
                continue;
            }
            if !(cursor.eat("yfile") || cursor.eat("file")) {
                return Err(cursor.expected("stderr, syslog or file"));
            }
            cursor.word("the name of a file")?;
        } else if cursor.eat("min-level") {
            cursor.number("a level", i64::from(i32::MAX))?;
        } else {
            return Ok(());
        }
    }
}

/// A place in a line.
struct Cursor<'a> {
    line: &'a str,
    at: usize,
    number: u32,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a str {
        self.line.get(self.at..).unwrap_or_default()
    }

    fn column(&self) -> u32 {
        let before = self.line.get(..self.at).unwrap_or_default();
        before.chars().count() as u32 + 1
    }

    /// A carriage return at the end counts as one: files come from everywhere.
    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r']).len();
    }

    /// Nothing but a comment is left.
    fn is_done(&mut self) -> bool {
        self.skip_blanks();
        self.rest().is_empty() || self.rest().starts_with('#')
    }

    /// Words need no blank between them, as they never did.
    fn eat(&mut self, word: &str) -> bool {
        self.skip_blanks();
        let found = self.rest().starts_with(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        if self.eat(word) { Ok(()) } else { Err(self.expected(word)) }
    }

    /// Whatever stands up to the next blank, be it a `#`.
    fn word(&mut self, what: &str) -> Result<&'a str, String> {
        self.skip_blanks();
        let rest = self.rest();
        let len = rest.find([' ', '\t', '\r']).unwrap_or(rest.len());
        if len == 0 {
            return Err(self.expected(what));
        }
        self.at += len;
        Ok(&rest[..len])
    }

    fn number(&mut self, what: &str, most: i64) -> Result<i64, String> {
        self.skip_blanks();
        let rest = self.rest();
        let len = rest.find(|it: char| !it.is_ascii_digit()).unwrap_or(rest.len());
        let digits = &rest[..len];
        if digits.is_empty() {
            return Err(self.expected(what));
        }
        if len > 1 && digits.starts_with('0') {
            return Err(format!("{digits} begins with a zero"));
        }
        match digits.parse::<i64>() {
            Ok(value) if value <= most => {
                self.at += len;
                Ok(value)
            }
            _ => Err(format!("{digits} is more than {most}")),
        }
    }

    /// What should stand here, and what does.
    fn expected(&mut self, what: &str) -> String {
        self.skip_blanks();
        let rest = self.rest();
        let len = rest.find([' ', '\t', '\r', ':']).unwrap_or(rest.len());
        let end = if len == 0 { rest.chars().next().map_or(0, char::len_utf8) } else { len };
        match &rest[..end] {
            "" => format!("expected {what} before the end of the line"),
            found => format!("expected {what}, found {found:?}"),
        }
    }
}
