//! Messages and their answers, and everything that is refused.

use std::path::Path;
use std::time::{Duration, Instant};

use super::harness::{Place, hex, read, wait_until};

#[test]
fn an_init_is_acknowledged_with_itself() {
    let place = Place::new("init");
    let daemon = place.start("");
    let mut client = place.client("");
    assert_eq!(client.say("init"), client.acknowledgement());
    daemon.says(&format!("[DEBUG ] [{}] put into the storage", client.pid()));
    // Once more, as after a lost link.
    assert_eq!(client.say("init"), client.acknowledgement());
    // Less is understood, too.
    assert_eq!(client.say("init ver=2"), client.acknowledgement());
    daemon.stop();
}

#[test]
fn a_newer_client_is_answered_but_not_registered() {
    let place = Place::new("newer");
    let daemon = place.start("");
    let mut client = place.client("");
    assert_eq!(client.say("init ver=4"), client.acknowledgement());
    daemon.says("[ERROR ] Protocol message mismatch (VMA_AGENT_VER = 3)");
    assert_eq!(daemon.count("put into the storage"), 0);
    assert!(client.gets_no_answer("flow status=1"), "it is unknown");
    daemon.stop();
}

#[test]
fn a_process_of_another_user_is_served() {
    let place = Place::new("user");
    let daemon = place.start("");
    let mut client = place.client("--user 65534");
    assert_eq!(client.say("init"), client.acknowledgement());
    daemon.stop();
}

#[test]
fn states_are_kept_until_the_connection_or_the_process_ends() {
    let place = Place::new("states");
    let daemon = place.start("");
    let mut client = place.client("");
    let pid = client.pid();
    client.say("state");
    daemon.says(&format!("[{pid}] is not in the storage"));
    client.say("init");
    client.say("state fd=7 state=4");
    daemon.says(&format!("[{pid}] update fid: 7 type: 1 state: ESTABLISHED"));
    client.say("state fd=7 state=7");
    daemon.says(&format!("[{pid}] update fid: 7 type: 1 state: CLOSE_WAIT"));
    client.say("state fd=7 state=0");
    daemon.says(&format!("[{pid}] remove fid: 7 type: 1 state: CLOSED"));
    client.say("exit");
    daemon.says(&format!("[{pid}] remove from the storage"));
    client.say("state fd=8 state=4");
    client.say("exit");
    assert!(client.gets_no_answer("flow status=1"));
    assert_eq!(daemon.count("update fid: 8"), 0, "after EXIT nothing counts");
    assert_eq!(daemon.count("remove from the storage"), 1);
    assert_eq!(daemon.count("[WARN  ]"), 0, "a late message is no attack");
    daemon.stop();
}

#[test]
fn a_flow_is_answered_only_if_asked_and_only_to_who_is_known() {
    let place = Place::new("flow");
    let daemon = place.start("");
    let mut client = place.client("");
    assert!(client.gets_no_answer("flow status=1"), "unknown");
    client.say("init");
    let failed = format!("84030100{}", hex(client.pid()));
    assert_eq!(client.say("flow kind=9 status=1"), failed, "no such kind");
    assert_eq!(client.say("flow action=3 status=1"), failed, "no such action");
    client.say("flow kind=9 status=0");
    assert!(client.gets_no_answer("hear"));
    // There is no interface of number 9999.
    assert_eq!(client.say("flow status=1"), failed);
    daemon.says("its flow could not be set");
    daemon.stop();
}

#[test]
fn a_flow_of_who_may_not_steer_packets_is_refused() {
    let place = Place::new("steer");
    let daemon = place.start("");
    let mut client = place.client("--user 65534");
    client.say("init");
    assert_eq!(client.say("flow status=1"), format!("84030100{}", hex(client.pid())));
    daemon.says("without CAP_NET_ADMIN it may not lead packets to a TAP");
    daemon.stop();
}

#[test]
fn what_is_no_message_is_refused_and_the_daemon_goes_on() {
    let place = Place::new("malformed");
    let daemon = place.start("");
    let mut client = place.client("");
    client.say("init");
    let pid = hex(client.pid());
    for (datagram, why) in [
        ("0103".to_owned(), "2 bytes where the message has 8"),
        (format!("01030000{pid}"), "8 bytes where the message has 12"),
        (format!("02030000{pid}{}", "00".repeat(17)), "25 bytes where the message has 26"),
        (format!("03030000{pid}00"), "9 bytes where the message has only 8"),
        (format!("04030100{pid}"), "8 bytes where the message has 30"),
        (format!("05030000{pid}"), "unknown message 0x05"),
        (format!("81030000{pid}54980000"), "unknown message 0x81"),
        ("0303000000000000".to_owned(), "no process has the id 0"),
        ("03030000ffffffff".to_owned(), "no process has the id -1"),
        (format!("03030000{pid}{}", "00".repeat(92)), "100 bytes are no message"),
        (format!("03030000{pid}{}", "00".repeat(9000)), "9008 bytes are no message"),
    ] {
        assert_eq!(client.say(&format!("raw {datagram}")), "sent");
        daemon.says(&format!("refused a message of process {} of user 0: {why}", client.pid()));
    }
    assert!(client.gets_no_answer("hear"));
    client.say("state type=2");
    daemon.says("state of a socket of type 2, not of a stream");
    client.say("state state=11");
    daemon.says("unknown TCP state 11");
    assert_eq!(client.say("init"), client.acknowledgement());
    daemon.stop();
}

#[test]
fn nobody_speaks_for_another_process_not_even_root() {
    let place = Place::new("other");
    let daemon = place.start("");
    let mut victim = place.client("--user 65534");
    victim.say("init");
    let other = victim.pid();
    for options in ["--user 65533", "--user 65534", ""] {
        let mut liar = place.client(options);
        let refused = format!(
            "of user {}: it speaks of process {other}",
            match options {
                "" => "0",
                options => &options[7..],
            }
        );
        assert!(liar.gets_no_answer(&format!("init pid={other}")));
        daemon.says(&refused);
        for command in ["state", "exit", "flow"] {
            let before = daemon.count(&refused);
            liar.say(&format!("{command} pid={other}"));
            wait_until(command, || daemon.count(&refused) == before + 1);
        }
        // Nor if it is known itself.
        assert_eq!(liar.say("init"), liar.acknowledgement());
        let before = daemon.count(&refused);
        liar.say(&format!("exit pid={other}"));
        wait_until("exit", || daemon.count(&refused) == before + 1);
    }
    let gone = format!("[{other}] remove from the storage");
    assert_eq!(daemon.count(&gone), 0, "the victim is still known");
    daemon.stop();
}

#[test]
fn connections_that_are_none_of_the_process_network_are_refused() {
    let place = Place::new("foreign");
    let daemon = place.start("");
    let mut client = place.client("--user 65534");
    client.say("init");
    client.say("state local=192.0.2.1:80");
    daemon.says("192.0.2.1 is no address of its network");
    client.say("state local=10.9.9.1:0");
    daemon.says("fid: 5: a port is 0");
    client.say("state peer=255.255.255.255:1");
    daemon.says("the peer's address is that of no host");
    client.say("state local=[2001:db8::1]:80 peer=[2001:db8::2]:4000");
    daemon.says("2001:db8::1 is no address of its network");
    client.say("state local=[::1]:0 peer=[2001:db8::2]:4000");
    wait_until("all refusals", || daemon.count("fid: 5: a port is 0") == 2);
    client.say("state local=[::1]:80 peer=[ff02::1]:4000");
    client.say("state local=[::1]:80 peer=[fe80::1]:4000");
    client.say("state local=[::1]:80 peer=[::ffff:10.9.9.2]:4000");
    wait_until("all refusals", || daemon.count("the peer's address is that of no host") == 4);
    assert_eq!(daemon.count("update fid"), 0);
    client.say("state fd=6 local=[::1]:80 peer=[2001:db8::2]:4000");
    daemon.says("update fid: 6 type: 1 state: ESTABLISHED");
    // Before it is connected it need not know them.
    client.say("state local=0.0.0.0:0 peer=0.0.0.0:0 state=2");
    daemon.says("update fid: 5 type: 1 state: SYN_SENT");
    daemon.stop();
}

#[test]
fn a_flood_is_logged_in_few_lines_and_others_are_served() {
    let place = Place::new("flood");
    let daemon = place.start("");
    let mut flood = place.client("--user 65534");
    let start = Instant::now();
    assert_eq!(flood.say("flood 3000"), "sent");
    let mut client = place.client("");
    assert_eq!(client.say("init"), client.acknowledgement());
    let told = || daemon.count("unknown message 0x3f");
    let left_out = || -> usize {
        let log = daemon.log();
        let numbers = log.lines().filter_map(|line| {
            let words = line.strip_prefix("[WARN  ] refused ")?;
            words.split_once(" more messages in 5 s")?.0.parse::<usize>().ok()
        });
        numbers.sum()
    };
    wait_until("each is told or counted", || told() + left_out() == 3000);
    let told = told();
    let periods = start.elapsed().as_secs() as usize / 5 + 1;
    assert!(told <= 20 * periods, "{told} lines in {periods} periods");
    assert!(start.elapsed() >= Duration::from_secs(4), "it is told when the time is over");
    daemon.stop();
}

#[test]
fn more_processes_and_sockets_than_allowed_are_refused() {
    let place = Place::new("limits");
    let daemon = place.start("-p 2 -f 2");
    let mut first = place.client("");
    let mut second = place.client("");
    let mut third = place.client("");
    assert_eq!(first.say("init"), first.acknowledgement());
    assert_eq!(second.say("init"), second.acknowledgement());
    assert!(third.gets_no_answer("init"));
    daemon.says("2 processes are served, which is the limit");
    assert_eq!(first.say("init"), first.acknowledgement(), "a known one comes again");
    second.say("exit");
    assert_eq!(third.say("init"), third.acknowledgement());
    for fd in 5..8 {
        third.say(&format!("state fd={fd}"));
    }
    daemon.says("2 of its connections are known, which is the limit (fid: 7)");
    third.say("state fd=5 state=0");
    third.say("state fd=7");
    daemon.says("update fid: 7");
    daemon.stop();
}

#[test]
fn answers_go_only_to_a_socket_of_the_sender() {
    let place = Place::new("address");
    let daemon = place.start("");
    let mut nameless = place.client("--no-address");
    assert!(nameless.gets_no_answer("init"));
    daemon.says("it cannot be answered: its socket has no path");

    // Its name leads to somebody else's socket.
    let mut thief = place.client("--user 65534");
    let target = place.path("victim");
    let victim = std::os::unix::net::UnixDatagram::bind(&target).expect("a socket");
    victim.set_nonblocking(true).expect("no error");
    let name = place.path(&format!("notify/vma_agent.{}.sock", thief.pid()));
    std::fs::remove_file(&name).expect("it is there");
    std::os::unix::fs::symlink(&target, &name).expect("a link");
    assert!(thief.gets_no_answer("init"));
    daemon.says("it cannot be answered");
    assert!(victim.recv(&mut [0; 64]).is_err(), "nothing was sent there");
    daemon.stop();
}

/// Linux 6.16 can keep descriptors out.
#[test]
fn a_descriptor_whose_close_waits_does_not_hold_the_daemon_up() {
    let place = Place::new("linger");
    let daemon = place.start("");
    let (mut hostile, mut client) = (place.client(""), place.client(""));
    match hostile.say("linger").as_str() {
        "refused" => assert_eq!(client.say("init"), client.acknowledgement()),
        said => {
            let release = read(Path::new("/proc/sys/kernel/osrelease"));
            let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
            let kernel = (numbers.next(), numbers.next());
            assert!(kernel < (Some(6), Some(16)), "{said} on Linux {release}");
        }
    }
    hostile.kill();
    daemon.stop();
}
