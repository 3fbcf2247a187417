//! That the unit takes nothing from the daemon that it needs, and leaves it nothing that it does not
//! need: what it does, done under systemd.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use packages::Run;

use crate::act::{install, run};
use crate::client::Agent;
use crate::machine::Machine;

const AGENT: &str = "/var/tmp/agent";
const NOBODY: &str = "65534";
/// Where an ordinary user's program is, in another network.
const BOX: &str = "10.99.0.2";
const MACHINE: &str = "10.99.0.1";

/// A machine with the daemon running, the agent at hand, and another network, "box", by a cable.
fn machine() -> Machine {
    let agent = Agent::compile();
    let machine = Machine::boot(|root| {
        install(root);
        root.bring(&agent.program(), "/var/tmp");
    });
    let cable = format!(
        "ip netns add box
        ip link add out type veth peer in netns box
        ip address add {MACHINE}/24 dev out; ip link set out up
        ip -n box address add {BOX}/24 dev in; ip -n box link set in up"
    );
    machine.shell(&cable).succeeds();
    machine.shell("systemctl start vma").succeeds();
    machine
}

/// Whether a user's process gets an answer.
fn answers(machine: &Machine, user: &str) -> bool {
    run(machine.command(AGENT).args(["ask", user])).out == "answered\n"
}

/// How the connection of a user's process in another network ends for the peer when it is killed.
fn end_of_killed(machine: &Machine) -> String {
    let peer = listening(machine.command(AGENT).args(["peer", "7000", "3"]));
    let process = ["netns", "exec", "box", AGENT, "die", NOBODY, BOX, MACHINE, "7000"];
    let death = machine.command("ip").args(process).output().unwrap();
    assert!(!death.status.success(), "{death:?}");
    ended(peer)
}

/// What root's process hears that wants a flow to go to a TAP.
fn answer_to_flow(machine: &Machine) -> String {
    machine.ip("tuntap add tap0 mode tap");
    machine.ip("link set tap0 up");
    let said = run(machine.command(AGENT).args(["flow", "out", "tap0", MACHINE, "7000"]));
    machine.ip("link delete tap0");
    said.out
}

/// Whether the daemon starts although a program made the folder before it.
fn takes_over_folder(machine: &Machine) -> bool {
    machine.shell("systemctl stop vma; rm -rf /tmp/vma; mkdir -m 777 /tmp/vma").succeeds();
    machine.shell(&format!("chown {NOBODY} /tmp/vma")).succeeds();
    starts(machine) && machine.shell("stat -c '%u %a' /tmp/vma").succeeds() == "0 1777\n"
}

fn starts(machine: &Machine) -> bool {
    machine.shell("systemctl stop vma; systemctl reset-failed vma || true").succeeds();
    run(machine.command("systemctl").args(["start", "vma"])).code == 0
}

// covers: INS-08, DMN-02
#[test]
fn the_confined_daemon_does_all_its_work() {
    let machine = machine();
    for user in [NOBODY, "0", "1000"] {
        assert!(answers(&machine, user), "{}", machine.journal());
    }
    assert_eq!(end_of_killed(&machine), "Connection reset by peer\n", "{}", machine.journal());
    assert_eq!(answer_to_flow(&machine), "done\n", "{}", machine.journal());
    assert!(takes_over_folder(&machine), "{}", machine.journal());
    let log = "log_target = 'file'\n";
    machine.shell(&format!("printf \"{log}\" >/etc/vma/vmad.toml")).succeeds();
    assert!(starts(&machine), "{}", machine.journal());
    machine.shell("grep -q Starting /var/log/vmad.log").succeeds();
}

// covers: INS-08
#[test]
fn the_confined_daemon_needs_each_of_its_capabilities() {
    let machine = machine();
    type Check = fn(&Machine) -> bool;
    let needs: [(&str, Check); 6] = [
        ("cap_net_raw", |machine| starts(machine)),
        ("cap_net_admin", |machine| starts(machine) && answer_to_flow(machine) == "done\n"),
        ("cap_sys_admin", |machine| starts(machine) && end_of_killed(machine).contains("reset")),
        ("cap_sys_ptrace", |machine| starts(machine) && end_of_killed(machine).contains("reset")),
        ("cap_dac_override", |machine| starts(machine) && answers(machine, NOBODY)),
        ("cap_chown", takes_over_folder),
    ];
    let mut names = needs.map(|(name, _)| name);
    names.sort_unstable();
    let has = machine.property("CapabilityBoundingSet");
    let mut has: Vec<_> = has.split_whitespace().collect();
    has.sort_unstable();
    assert_eq!(has, names);

    for (name, works) in needs {
        assert!(works(&machine), "with all capabilities: {}", machine.journal());
        let less = "/etc/systemd/system/vma.service.d/less.conf";
        let setting = format!("[Service]\\nCapabilityBoundingSet=~{}\\n", name.to_uppercase());
        machine
            .shell(&format!("mkdir -p $(dirname {less}); printf '{setting}' >{less}"))
            .succeeds();
        machine.shell("systemctl daemon-reload").succeeds();
        assert!(!works(&machine), "it does without {name}: {}", machine.journal());
        machine.shell(&format!("rm {less}; systemctl daemon-reload")).succeeds();
    }
}

// covers: DMN-03
#[test]
fn without_the_daemon_peers_hear_nothing_of_a_death() {
    let machine = machine();
    machine.shell("systemctl stop vma").succeeds();
    let peer = listening(machine.command(AGENT).args(["peer", "7001", "5"]));
    // It finds no daemon, and ends; its kernel forgets the connection as it does otherwise.
    let process = ["netns", "exec", "box", AGENT, "die", NOBODY, BOX, MACHINE, "7001"];
    let death = machine.command("ip").args(process).output().unwrap();
    assert!(String::from_utf8_lossy(&death.stderr).contains("vma_agent.sock"), "{death:?}");
    assert_eq!(ended(peer), "nothing happened\n");
}

type Peer = (Child, BufReader<ChildStdout>);

/// Starts the other end of a connection and waits until it listens.
fn listening(command: &mut Command) -> Peer {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("nsenter runs");
    let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("text");
    assert_eq!(line, "listening\n");
    (child, output)
}

/// How its connection ended.
fn ended((mut child, mut output): Peer) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("text");
    child.wait().expect("a child of ours");
    line
}
