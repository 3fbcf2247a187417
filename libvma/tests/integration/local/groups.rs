//! Sockets that share a port (SO_REUSEPORT), in two processes: the kernel says which of them gets a flow.

use std::collections::{BTreeMap, BTreeSet};

use super::{Local, Under};
use crate::harness::{PYTHON, Puppet, Watch, wait_for};

const FLOWS: usize = 24;

/// Opens the members of a process, and what tells all that they got: a list for each member, of flows.
const MEMBERS: &str = "
def member():
    s = socket(AF_INET, SOCK_DGRAM)
    s.setsockopt(SOL_SOCKET, SO_REUSEPORT, 1)
    s.bind(('127.0.0.1', 7000))
    return s
def got():
    return '|'.join(b' '.join(drain(s)).decode() for s in members)
";

/// Opens the flows of a client; two may have them at a time.
const FLOWS_OF_A_CLIENT: &str = "
def flow(port):
    s = socket(AF_INET, SOCK_DGRAM)
    s.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    s.bind(('127.0.0.1', port))
    s.connect(('127.0.0.1', 7000))
    return s
flows = [flow(20000 + n) for n in range(24)]
";

/// The flows of each member, by the number of its process and its number there, in the order of arrival.
type Got = BTreeMap<(usize, usize), Vec<String>>;

fn got(servers: &mut [Puppet; 2]) -> Got {
    let mut all = Got::new();
    for (process, server) in servers.iter_mut().enumerate() {
        let text = server.run("got()");
        for (member, flows) in text.trim_matches('\'').split('|').enumerate() {
            let flows = flows.split_whitespace().map(str::to_owned);
            all.insert((process, member), flows.collect());
        }
    }
    all
}

/// The member that got each flow's datagrams; panics if a datagram is missing, or if they are not all with one.
fn owners(got: &Got, datagrams: usize) -> Vec<(usize, usize)> {
    let owner = |flow: usize| {
        let of_flow = |text: &&String| text.split('.').next() == Some(&flow.to_string());
        let has = |(_, flows): &(_, &Vec<String>)| flows.iter().any(|text| of_flow(&text));
        let mut members = got.iter().filter(has);
        let (owner, flows) = members.next().unwrap_or_else(|| panic!("flow {flow} is lost"));
        assert_eq!(members.next(), None, "flow {flow} went to {owner:?}, too");
        let mine: Vec<_> = flows.iter().filter(of_flow).cloned().collect();
        let expected: Vec<_> = (0..datagrams).map(|n| format!("{flow}.{n}")).collect();
        assert_eq!(mine, expected, "{owner:?}");
        *owner
    };
    (0..FLOWS).map(owner).collect()
}

fn send(client: &mut Puppet, datagrams: usize) {
    client.run(&format!(
        "for n in range({datagrams}): [s.send(b'%d.%d' % (i, n)) for i, s in enumerate(flows)]"
    ));
}

struct Scene<'a> {
    servers: [Puppet; 2],
    /// A client without the library that has the same ports: where its flows go is the kernel's choice.
    plain: Puppet,
    client: Puppet,
    watch: Watch<'a>,
}

impl Scene<'_> {
    fn owners(&mut self, datagrams: usize) -> Vec<(usize, usize)> {
        send(&mut self.client, datagrams);
        owners(&got(&mut self.servers), datagrams)
    }

    /// Until the flows go where the kernel would send them, and the kernel carries none any more. Nothing is lost meanwhile.
    fn settle(&mut self) -> Vec<(usize, usize)> {
        send(&mut self.plain, 1);
        let chosen = owners(&got(&mut self.servers), 1);
        wait_for("all flows go past the kernel to where it would send them", || {
            let before = self.watch.moved().datagrams;
            let same = self.owners(1) == chosen;
            (same && self.watch.moved().datagrams == before).then_some(())
        });
        chosen
    }
}

#[test]
fn the_kernel_chooses_the_member_of_a_group_that_gets_a_flow() {
    let local = Local::new(Under::Both);
    let servers = [3, 2].map(|members| {
        let mut server = Puppet::start(local.server(PYTHON));
        server.run(MEMBERS);
        server.run(&format!("members = [member() for n in range({members})]"));
        server
    });
    let [plain, client] = [false, true].map(|with_library| {
        let mut client = Puppet::start(local.program(PYTHON, with_library));
        client.run(FLOWS_OF_A_CLIENT);
        client
    });
    let mut scene = Scene { servers, plain, client, watch: local.sandbox.watch() };
    let first = scene.settle();
    let members: BTreeSet<_> = first.iter().collect();
    assert!(members.len() >= 3, "{first:?}");
    let before = scene.watch.moved().datagrams;
    // No more than fit into the receive buffer of one.
    assert_eq!(scene.owners(10), first);
    assert_eq!(scene.watch.moved().datagrams, before);

    scene.servers[0].run("members.pop().close()");
    let second = scene.owners(1);
    assert!(!second.contains(&(0, 2)), "{second:?}");
    scene.settle();

    scene.servers[1].run("members.append(member())");
    let third = scene.settle();
    assert!(third.contains(&(1, 2)), "{third:?}");
}
