//! The text, what it means, and that both ways agree.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

use proptest::prelude::*;

use super::*;

fn at(text: &str) -> SocketAddrV4 {
    text.parse().expect("an address")
}

fn query(moment: Moment, first: &str) -> Query {
    Query { moment, first: at(first), also: None, second: None }
}

fn rules(text: &str) -> RuleSet {
    let parsed = parse(text);
    assert_eq!(parsed.problems, [], "{text}");
    parsed.rules
}

fn kernels(rules: &RuleSet, moment: Moment, first: &str) -> bool {
    let query = query(moment, first);
    rules.decide("prog", "VMA_DEFAULT_APPLICATION_ID", &query).is_kernels(moment)
}

fn problem(text: &str) -> String {
    let problems = parse(text).problems;
    assert_eq!(problems.len(), 1, "{text}: {problems:?}");
    problems[0].to_string()
}

// covers: CONF-02, CONF-03, CONF-18
#[test]
fn statements_need_neither_blanks_nor_lines_of_their_own() {
    let one = rules("useostcp_client*:80");
    assert_eq!(one.to_string(), "application-id * *\nuse os tcp_client *:80\n");
    let two = rules("use os tcp_client 1. 2 .3.4 : 5 use vma udp_sender *:* # and so on");
    assert_eq!(two.sections[0].rules.len(), 2);
    assert_eq!(
        rules("log\nlog min-level 3 destination yfile /x destination file y"),
        RuleSet::default()
    );
    assert_eq!(rules("application-id a b\r\nuse os tcp_server *:*\r\n").sections[0].rules.len(), 1);
    assert_eq!(rules("application-id #x #y").sections[0].program, "#x");
}

#[test]
fn a_mistake_is_pointed_at_and_costs_its_own_line_only() {
    let text = "use os tcp_server *:1\n  use os tcp_sever *:2\nuse os tcp_server *:3\n";
    let parsed = parse(text);
    assert_eq!(parsed.rules.sections[0].rules.len(), 2);
    assert_eq!(parsed.rules.sections[0].rules[1].line, 3);
    assert_eq!(parsed.problems[0].line, 2);
    assert_eq!(parsed.problems[0].column, 10);
    assert!(parsed.problems[0].text.contains("found \"tcp_sever\""), "{parsed:?}");
}

// covers: CONF-16, CONF-17
#[test]
fn what_is_wrong_is_said() {
    for (text, said) in [
        (
            "use os",
            "1:7: expected tcp_server, tcp_client, udp_receiver, udp_sender or udp_connect before the end of the line",
        ),
        ("use os tcp_client 1.2.3.400:1", "1:25: 400 is more than 255"),
        ("use os tcp_client 1.2.3.4/33:1", "1:27: 33 is more than 32"),
        ("use os tcp_client *:70000", "1:21: 70000 is more than 65535"),
        ("use os tcp_client *:007", "1:21: 007 begins with a zero"),
        ("use os tcp_client *:9-8", "1:23: the range of ports 9-8 is empty"),
        (
            "use os tcp_client ::1:8",
            "1:19: expected an IPv4 address, an IPv6 address in brackets or *, found \":\"",
        ),
        ("use os tcp_client *", "1:20: expected : before the end of the line"),
        ("application-id x", "1:17: expected an application id, or * before the end of the line"),
        ("log destination pipe", "1:17: expected stderr, syslog or file, found \"pipe\""),
        ("bind all", "1:1: expected application-id, use or log, found \"bind\""),
        (
            "use os tcp_client *:99999999999999999999",
            "1:21: 99999999999999999999 is more than 65535",
        ),
    ] {
        assert_eq!(problem(text), said, "{text}");
    }
}

// covers: CONF-04, CONF-21
#[test]
fn the_first_section_that_fits_decides_alone() {
    let rules = rules(
        "application-id prog *\nuse vma tcp_client *:80\n\
         application-id * *\nuse os tcp_client *:*\nuse os udp_sender *:*\n",
    );
    assert!(!kernels(&rules, Moment::Connect, "1.2.3.4:80"));
    // No rule of the first section: not even then is the second one asked.
    assert!(!kernels(&rules, Moment::Connect, "1.2.3.4:81"));
    let other = query(Moment::Connect, "1.2.3.4:80");
    assert!(rules.decide("another", "x", &other).is_kernels(Moment::Connect));
}

// covers: CONF-07
#[test]
fn the_application_id_is_a_text_and_a_star_fits_all() {
    let rules = rules("application-id prog 05\nuse os tcp_client *:*\n");
    let query = query(Moment::Connect, "1.2.3.4:80");
    for (id, decides) in [("05", true), ("5", false), ("*", true), ("", false)] {
        assert_eq!(rules.decide("prog", id, &query).is_kernels(Moment::Connect), decides, "{id}");
    }
    assert_eq!(rules.decide("program", "05", &query), Ruling::NoSection);
}

// covers: CONF-19, CONF-20
#[test]
fn the_first_rule_that_fits_wins() {
    let rules = rules(
        "use vma tcp_client 10.1.0.0/16:*\nuse sdp tcp_client *:80\nuse os tcp_client 10.0.0.0/8:80-90\n",
    );
    assert!(!kernels(&rules, Moment::Connect, "10.1.9.9:80"));
    assert!(kernels(&rules, Moment::Connect, "10.2.9.9:90"));
    assert!(!kernels(&rules, Moment::Connect, "10.2.9.9:91"));
    assert!(!kernels(&rules, Moment::Connect, "11.2.9.9:80"));
    assert!(!kernels(&rules, Moment::Listen, "10.2.9.9:80"));
}

// covers: CONF-12, CONF-15
#[test]
fn the_local_side_counts_where_there_are_two() {
    let rules = rules(
        "use os tcp_client *:*:192.168.0.0/16:*\nuse os tcp_server *:*:1.1.1.1:1\nuse vma udp_connect 0.0.0.0/0:*\n",
    );
    let ask = |second: Option<&str>| {
        let query = Query {
            moment: Moment::Connect,
            first: at("1.2.3.4:5"),
            also: None,
            second: second.map(at),
        };
        rules.decide("prog", "*", &query).is_kernels(Moment::Connect)
    };
    assert!(ask(Some("192.168.7.7:1")));
    assert!(!ask(Some("10.0.0.1:1")));
    assert!(!ask(None));
    // A server has one side: the second end is read and not looked at.
    assert!(kernels(&rules, Moment::Listen, "9.9.9.9:9"));
}

#[test]
fn a_star_leaves_to_the_kernel_what_cannot_be_changed_later() {
    let rules = rules(
        "use * tcp_server *:*\nuse * tcp_client *:*\nuse * udp_receiver *:*\nuse * udp_sender *:*\nuse * udp_connect *:*\n",
    );
    for (moment, is_kernels) in [
        (Moment::Listen, false),
        (Moment::Connect, true),
        (Moment::Bind, true),
        (Moment::Join, false),
        (Moment::Send, false),
        (Moment::UdpConnect, true),
    ] {
        assert_eq!(kernels(&rules, moment, "1.2.3.4:5"), is_kernels, "{moment:?}");
    }
}

// covers: CONF-05
#[test]
fn sockets_are_left_from_birth_only_if_both_directions_are() {
    let leaves = |text: &str, protocol| rules(text).leaves_sockets("prog", "x", protocol);
    let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
    assert!(leaves("use os tcp_server *:*\nuse os tcp_client *:*", tcp));
    assert!(!leaves("use os tcp_server *:*\nuse os tcp_client *:*", udp));
    assert!(!leaves("use os tcp_server *:*", tcp));
    assert!(!leaves("use os tcp_server *:*\nuse vma tcp_client *:80\nuse os tcp_client *:*", tcp));
    assert!(leaves("use os tcp_server *:*\nuse os tcp_client *:80\nuse os tcp_client *:*", tcp));
    // The first section disagrees with itself, so the second one is asked.
    let second = "application-id prog *\nuse os udp_sender *:*\napplication-id * *\nuse os udp_sender *:*\nuse os udp_receiver *:*";
    assert!(leaves(second, udp));
}

#[test]
fn without_a_file_only_the_resolver_is_the_kernels() {
    let rules = rules(BUILT_IN);
    assert!(kernels(&rules, Moment::UdpConnect, "8.8.8.8:53"));
    assert!(!kernels(&rules, Moment::UdpConnect, "8.8.8.8:54"));
    assert!(!kernels(&rules, Moment::Connect, "8.8.8.8:53"));
    assert_eq!(rules.to_string(), BUILT_IN);
}

// covers: CONF-01
#[test]
fn the_file_that_is_installed_says_what_holds_without_it() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../libvma/libvma.conf"));
    let installed = rules(&text.expect("the file"));
    assert_eq!(installed.to_string(), BUILT_IN);
}

#[test]
fn the_examples_in_that_file_are_right() {
    let text = include_str!("../../../libvma/libvma.conf");
    let examples = text.lines().skip_while(|line| *line != "# Examples:").skip(1);
    let examples: Vec<&str> = examples.map_while(|line| line.strip_prefix("#     ")).collect();
    assert_eq!(examples.len(), 5);
    let query = query(Moment::Join, "239.1.2.3:5050");
    assert!(
        rules(&examples.join("\n")).decide("sockperf", "test-1", &query).is_kernels(Moment::Join)
    );
}

fn any_end() -> impl Strategy<Value = End> {
    let of_ipv6 = (any::<u128>(), 0u8..=128).prop_map(|(bits, prefix)| {
        // Not an IPv4-mapped one.
        let address = Ipv6Addr::from_bits(bits | 1 << 127).into();
        Network { address, prefix }
    });
    let of_ipv4 = (any::<u32>(), 0u8..=32)
        .prop_map(|(bits, prefix)| Network { address: Ipv4Addr::from_bits(bits).into(), prefix });
    let network = prop_oneof![of_ipv4, of_ipv6];
    let ports = (any::<u16>(), any::<u16>()).prop_map(|(one, two)| (one.min(two), one.max(two)));
    (proptest::option::of(network), proptest::option::of(ports))
        .prop_map(|(network, ports)| End { network, ports })
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let target = proptest::sample::select(&Target::ALL[..]);
    let role = proptest::sample::select(&Role::ALL[..]);
    (target, role, any_end(), proptest::option::of(any_end()))
        .prop_map(|(target, role, first, second)| Rule { target, role, first, second, line: 0 })
}

fn any_rules() -> impl Strategy<Value = RuleSet> {
    let word = "[^ \\t\\r\\n\u{feff}]{1,12}";
    let section = (word, word, proptest::collection::vec(any_rule(), 0..6))
        .prop_map(|(program, id, rules)| Section { program, id, rules });
    proptest::collection::vec(section, 0..6).prop_map(|mut sections| {
        sections.dedup_by(|one, two| one.program == two.program && one.id == two.id);
        let mut seen: Vec<(String, String)> = Vec::new();
        sections.retain(|one| {
            let words = (one.program.clone(), one.id.clone());
            let new = !seen.contains(&words);
            seen.push(words);
            new
        });
        RuleSet { sections }
    })
}

fn without_lines(mut rules: RuleSet) -> RuleSet {
    rules.sections.iter_mut().flat_map(|one| &mut one.rules).for_each(|rule| rule.line = 0);
    rules
}

proptest! {
    #[test]
    fn printing_and_reading_again_changes_nothing(rules in any_rules()) {
        let parsed = parse(&rules.to_string());
        prop_assert_eq!(&parsed.problems, &[]);
        prop_assert_eq!(without_lines(parsed.rules), rules);
    }

    #[test]
    fn no_text_panics(text in "\\PC*", bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        parse(&text);
        parse(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn no_text_of_the_grammar_s_words_panics_and_what_is_read_prints_as_itself(
        words in proptest::collection::vec(proptest::sample::select(&[
            "application-id", "use", "os", "vma", "sa", "sdp", "*", "tcp_server", "udp_connect", ":",
            ".", "/", "-", "0", "1", "255", "65535", "07", "log", "min-level", "yfile", "\n", "#", " ", "é",
        ][..]), 0..40)
    ) {
        let parsed = parse(&words.concat());
        let again = parse(&parsed.rules.to_string());
        prop_assert_eq!(again.problems, vec![]);
        prop_assert_eq!(without_lines(again.rules), without_lines(parsed.rules));
    }
}

#[test]
fn rules_name_addresses_of_ipv6_in_brackets() {
    let text = "use os tcp_client [2001:db8::]/32:80-90\nuse os tcp_server [fd00:99::1]:22\n\
                use os tcp_client [fd00::1]:*:[fd00::2]:*\nuse vma tcp_client [::]/0:*\n";
    let parsed = parse(text);
    assert_eq!(parsed.problems, vec![]);
    assert_eq!(parsed.rules.to_string(), format!("application-id * *\n{text}"));
    let at = |text: &str, port| {
        SocketAddrV4::new(crate::ipv6_stand_ins::of(text.parse().unwrap()).unwrap(), port)
    };
    let is_kernels = |moment: Moment, first, second| {
        let query = Query { moment, first, also: None, second };
        parsed.rules.decide("program", "id", &query).is_kernels(moment)
    };
    let connect = |first, second| is_kernels(Moment::Connect, first, Some(second));
    let own = at("fd00::2", 5000);
    assert!(connect(at("2001:db8:77::1", 85), own) && !connect(at("2001:db8:77::1", 91), own));
    assert!(!connect(at("2001:db9::1", 85), own));
    assert!(connect(at("fd00::1", 7), own) && !connect(at("fd00::1", 7), at("fd00::3", 5000)));
    let listen = |first| is_kernels(Moment::Listen, first, None);
    assert!(listen(at("fd00:99::1", 22)) && !listen(at("fd00:99::2", 22)));
    assert!(!listen("10.0.0.1:22".parse().unwrap()));
}

#[test]
fn what_is_wrong_with_an_address_of_ipv6_is_told() {
    for (rule, told) in [
        ("use os tcp_server [fd00::1:80", "1:30: expected ] before the end of the line"),
        ("use os tcp_server [fd00:::1]:80", "1:20: \"fd00:::1\" is no IPv6 address"),
        ("use os tcp_server []:80", "1:20: \"\" is no IPv6 address"),
        ("use os tcp_server [fd00::1]/129:80", "1:29: 129 is more than 128"),
        ("use os tcp_server [fd00::1]", "1:28: expected : before the end of the line"),
        (
            "use os tcp_server [::ffff:10.0.0.1]:80",
            "1:20: ::ffff:10.0.0.1 is an IPv4 address: 10.0.0.1",
        ),
    ] {
        let parsed = parse(rule);
        let problems: Vec<_> = parsed.problems.iter().map(ToString::to_string).collect();
        assert_eq!(problems, [told], "{rule}");
        assert!(parsed.rules.sections.iter().all(|section| section.rules.is_empty()));
    }
}

/// Its stand-in is an address of 127.0.0.0/8.
#[test]
fn a_rule_that_names_addresses_is_not_for_the_loopback_address_of_ipv6() {
    let set = parse(
        "use os tcp_server 127.0.0.0/8:80\nuse os tcp_server 0.0.0.0/0:81\nuse os tcp_server *:82\n\
         use os tcp_client 127.0.0.0/8:*:*:*\nuse os tcp_client *:80:127.255.255.255:*\nuse os tcp_client *:81:*:*\n\
         use os udp_sender 127.0.0.0/8:*\nuse os udp_sender *:81\nuse os udp_receiver 127.255.255.255:*\n\
         use os udp_receiver *:81\nuse os udp_connect 127.0.0.0/8:*:*:*\nuse os udp_connect *:81:*:*\n",
    )
    .rules;
    let end = crate::ipv6_loopback::end;
    let is_kernels = |moment: Moment, port| {
        let query = Query { moment, first: end(port), also: None, second: Some(end(5000)) };
        set.decide("program", "id", &query).is_kernels(moment)
    };
    assert!(!is_kernels(Moment::Listen, 80));
    assert!(is_kernels(Moment::Listen, 81) && is_kernels(Moment::Listen, 82));
    assert!(!is_kernels(Moment::Connect, 80));
    assert!(is_kernels(Moment::Connect, 81));
    for moment in [Moment::Send, Moment::Bind, Moment::UdpConnect] {
        assert!(!is_kernels(moment, 80), "{moment:?}");
        assert!(is_kernels(moment, 81), "{moment:?}");
    }
}
