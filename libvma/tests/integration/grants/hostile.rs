//! Programs that ask `vmad` for rings by themselves, and for what is not theirs.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use rustix::process::Signal;

use super::wire::write;
use super::{Host, NOBODY, OTHER, rule, rule_of_two};
use crate::harness::{PYTHON, Puppet, Side, wait_for};

/// A program without the library that says to the daemon what it likes.
const ASK: &str = r#"
import array, struct
OPEN, ADD, REMOVE, REFRESH, STRANGER = 1, 2, 3, 4, 5
EPERM, EIO, EBADF, EACCES, ENODEV, EINVAL, EOPNOTSUPP, EDQUOT = 1, 5, 9, 13, 19, 22, 95, 122

def meet():
    c = socket(AF_UNIX, SOCK_SEQPACKET)
    c.settimeout(10)
    c.connect('/var/run/vma_grant.sock')
    return c

def hear(c):
    data, rights, _, _ = c.recvmsg(128, 64)
    fds = array.array('i')
    for _, _, some in rights:
        fds.frombytes(some)
    return (struct.unpack('=i', data[:4])[0] if data else 'the end'), list(fds)

def wide(address):
    return inet_pton(AF_INET6, address if ':' in address else '::ffff:' + address)

def message(kind, local=('::', 0), peer=('::', 0), interface=0, chunks=1024, slots=512, version=2):
    numbers = struct.pack('=5I', kind, version, interface, chunks, slots)
    whole = numbers + struct.pack('!HH', peer[1], local[1]) + wide(peer[0]) + wide(local[0])
    return whole[:32] if kind == OPEN else whole

def ask(c, kind, shown=None, **about):
    rights = [] if shown is None else [(SOL_SOCKET, SCM_RIGHTS, array.array('i', [shown]))]
    c.sendmsg([message(kind, **about)], rights)
    return hear(c)[0]

def granted(name):
    c = meet()
    assert ask(c, OPEN, interface=if_nametoindex(name)) == 0
    (_, _), (_, last) = hear(c), hear(c)
    global control
    control = last[0]
    return c, last[1]

def bound(address, port, kind=SOCK_DGRAM, share=None):
    s = socket(AF_INET, kind)
    if share: s.setsockopt(SOL_SOCKET, share, 1)
    s.bind((address, port))
    return s.detach()

def frame(mac, source, port, to=('10.99.0.2', 7000), protocol=17, length=8):
    udp = struct.pack('!HHHH', port, to[1], length, 0) + bytes(length - 8)
    head = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 20 + len(udp), 0, 0, 64, protocol, 0, inet_aton(source), inet_aton(to[0]))
    total = sum(struct.unpack('!10H', head))
    total = (total & 0xffff) + (total >> 16)
    head = head[:10] + struct.pack('!H', 0xffff - (total + (total >> 16)) & 0xffff) + head[12:]
    return bytes.fromhex('02000099000202000099' + mac) + bytes.fromhex('0800') + head + udp
"#;

/// Connections with more than their peer takes, and SO_LINGER: whoever closes one last waits.
const HOLD: &str = r#"
import time
kept = []

def lingering():
    l = socket()
    l.bind(('127.0.0.1', 0))
    l.listen()
    k = create_connection(l.getsockname())
    kept.append((l, l.accept()[0]))
    k.setblocking(False)
    try:
        while True: k.send(bytes(65536))
    except OSError:
        pass
    k.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack('=ii', 1, 600))
    return k

def show(c, k):
    try:
        # Behind what ends the connection, so that nobody takes it before it is closed here.
        c.sendmsg([bytes(3)])
        c.sendmsg([message(ADD)], [(SOL_SOCKET, SCM_RIGHTS, array.array('i', [k.fileno()]))])
    except OSError:
        k.setsockopt(SOL_SOCKET, SO_LINGER, bytes(8))
    k.close()

def hold():
    while True:
        c = meet()
        try:
            c.sendmsg([message(OPEN, interface=if_nametoindex('veth-a'), chunks=1, slots=1)])
            said, fds = hear(c)
        except OSError:
            return False
        if said != EDQUOT: break
        # The kernel takes a moment to free what was before.
        c.close()
        time.sleep(0.01)
    if said: return False
    for fd in fds + hear(c)[1] + hear(c)[1]: os.close(fd)
    show(c, lingering())
    c.close()
    return True
"#;

/// Where the datagrams came from that a socket has. (The kernel counts a datagram when it is read.)
pub(super) fn senders(socket: &UdpSocket) -> Vec<SocketAddr> {
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    std::iter::from_fn(|| socket.recv_from(&mut [0; 2000]).ok()).map(|(_, from)| from).collect()
}

impl Host {
    /// A program of that user that asks by itself.
    pub(super) fn asker(&self, user: u32) -> Puppet {
        let mut asker = Puppet::start(self.program(user, PYTHON).env("LD_PRELOAD", ""));
        asker.run(&format!("exec({ASK:?})"));
        asker
    }
}

/// A flow is led only to who shows the kernel's socket that has it.
#[test]
fn a_flow_takes_the_socket_that_has_it() {
    let host = Host::new(&rule(Side::A.device(), NOBODY));
    let mut other = Puppet::start(host.net.program(Side::A, PYTHON));
    other.run("s = udp(('10.99.0.1', 5000))");
    let mut asker = host.asker(NOBODY);
    asker.run("c, tap = granted('veth-a')");
    let flow = "local=('10.99.0.1', 5000)";
    for (wanted, asked) in [
        ("EBADF", format!("ADD, {flow}")),
        ("EACCES", format!("ADD, {flow}, shown=bound('10.99.0.1', 5001)")),
        ("EACCES", format!("ADD, {flow}, shown=bound('127.0.0.1', 5000)")),
        ("EACCES", format!("ADD, {flow}, shown=bound('10.99.0.1', 5000, SOCK_STREAM)")),
        ("EACCES", format!("ADD, {flow}, shown=os.open('/dev/null', 0)")),
        ("EACCES", format!("ADD, {flow}, shown=tap")),
        // Not its own address, those of groups, and of all.
        ("EOPNOTSUPP", "ADD, local=('10.99.0.2', 6000), shown=bound('', 6000)".into()),
        ("EOPNOTSUPP", "ADD, local=('10.99.0.255', 6001), shown=bound('', 6001)".into()),
        ("EOPNOTSUPP", "ADD, local=('224.1.1.1', 6002), shown=bound('', 6002)".into()),
        ("EOPNOTSUPP", "ADD, local=('0.0.0.0', 6003), shown=bound('', 6003)".into()),
        ("EOPNOTSUPP", "ADD, local=('127.0.0.1', 6004), shown=bound('', 6004)".into()),
        ("EINVAL", "77".into()),
        ("2", format!("REMOVE, {flow}")),
    ] {
        assert_eq!(asker.run(&format!("ask(c, {asked}) - {wanted}")), "0", "{asked}");
    }
    // Connected: to that peer only.
    asker.run("f = socket(AF_INET, SOCK_DGRAM)");
    asker.run("f.bind(('10.99.0.1', 6005))");
    asker.run("f.connect(('10.99.0.2', 9))");
    let flow = "local=('10.99.0.1', 6005), shown=f.fileno()";
    assert_eq!(asker.run(&format!("ask(c, ADD, {flow}, peer=('10.99.0.2', 10))")), "13");
    assert_eq!(asker.run(&format!("ask(c, ADD, {flow}, peer=('10.99.0.2', 9))")), "0");
    // A datagram for another program's socket comes to that program.
    let peer = host.net.socket(Side::B);
    peer.send_to(b"for another", Side::A.at(5000)).unwrap();
    assert_eq!(other.run("s.recv(100)"), "b'for another'");
}

/// The kernel says for each frame whose it is: the daemon holds no socket, and no port longer than its process does.
#[test]
fn a_datagram_is_whose_the_kernel_says_now() {
    let host = Host::new(&rule(Side::A.device(), NOBODY));
    let peer = host.net.socket(Side::B);
    let mut other = Puppet::start(host.net.program(Side::A, PYTHON));
    let mut asker = host.asker(NOBODY);
    asker.run("c, tap = granted('veth-a')");
    // Its frames, for which there is no room: no chunk was put into a slot.
    asker.run("import mmap; m = mmap.mmap(control, 4096)");
    let lost = |asker: &mut Puppet| asker.run("struct.unpack_from('=Q', m, 192)[0]");
    let flow = "ADD, local=('10.99.0.1', 5000)";
    let took = |other: &mut Puppet| {
        peer.send_to(b"whose?", Side::A.at(5000)).unwrap();
        other.run("s.recv(100)") == "b'whose?'"
    };
    // As long as the socket is there it is the ring's.
    asker.run("p = bound('10.99.0.1', 5000, share=SO_REUSEADDR)");
    assert_eq!(asker.run(&format!("ask(c, {flow}, shown=p)")), "0");
    let watch = host.net.watch(Side::A);
    peer.send_to(b"the ring's", Side::A.at(5000)).unwrap();
    wait_for("it comes by the ring", || (lost(&mut asker) == "1").then_some(()));
    watch.still();
    // A socket with the same port that is bound later gets the datagrams from then on.
    other.run("s = socket(AF_INET, SOCK_DGRAM); s.settimeout(15)");
    other.run("s.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1); s.bind(('10.99.0.1', 5000))");
    assert!(took(&mut other));
    // Two of one ring: the second is the kernel's.
    asker.run("q = bound('10.99.0.1', 5000, share=SO_REUSEADDR)");
    let second = format!("ask(c, {flow}, peer=('10.99.0.2', 9), shown=q)");
    assert_eq!(asker.run(&second), libc::EADDRINUSE.to_string());
    asker.run("os.close(q)");
    other.run("s.close()");
    // A closed one is nobody's, and its port free at once, whatever the daemon was told.
    asker.run("os.close(p)");
    other.run("s = udp(('10.99.0.1', 5000)); s.settimeout(15)");
    assert!(took(&mut other));
    other.run("s.close()");
    // Nor has the ring what its process has connected to somebody else, or given the port of.
    asker.run(
        "f = socket(AF_INET, SOCK_DGRAM); f.bind(('10.99.0.1', 0)); port = f.getsockname()[1]",
    );
    assert_eq!(asker.run("ask(c, ADD, local=('10.99.0.1', port), shown=f.fileno())"), "0");
    asker.run("import ctypes; ctypes.CDLL(None).connect(f.fileno(), bytes(16), 16)");
    assert_eq!(asker.run("f.getsockname()[1]"), "0", "it has lost it");
    let port = asker.run("port");
    other.run(&format!("s = udp(('10.99.0.1', {port})); s.settimeout(15)"));
    peer.send_to(b"not the ring's", Side::A.at(port.parse().unwrap())).unwrap();
    assert_eq!(other.run("s.recv(100)"), "b\"not the ring's\"");
    assert_eq!(lost(&mut asker), "1");
    // Nor does anything leave from there.
    let target = host.net.socket_at(Side::B, Side::B.at(7000));
    asker.run("os.write(tap, frame('0001', '10.99.0.1', port))");
    asker.run("os.write(tap, frame('0001', '10.99.0.1', 5000))");
    assert_eq!(senders(&target), []);
}

/// Closing what a process has sent along may take as long as it likes: it is the process's own connection that waits.
#[test]
fn descriptors_whose_close_waits_hold_nobody_up() {
    let mut host = Host::new(&format!("max_rings = 4\n{}", rule_of_two()));
    let mut asker = host.asker(NOBODY);
    asker.run(&format!("exec({HOLD:?})"));
    // Before there is a ring nobody takes a descriptor (Linux 6.16).
    asker.run("e = meet(); k = lingering()");
    let sent = "e.sendmsg([bytes(32)], [(SOL_SOCKET, SCM_RIGHTS, array.array('i', [k.fileno()]))])";
    assert!(asker.raises(sent).contains("Operation not permitted"));
    asker.run("k.setsockopt(SOL_SOCKET, SO_LINGER, bytes(8)); e.close()");
    // Shown for a flow, and queued at a connection that ends.
    asker.run("c, tap = granted('veth-a')");
    asker.run("show(c, lingering())");
    // Each thread that waits keeps a place of the user's, of which there are so many.
    asker.run("held = sum(hold() for _ in range(24))");
    let held: usize = asker.run("held").parse().unwrap();
    assert!((10..=20).contains(&held), "{held}");
    let threads = format!("/proc/{}/task", host.daemon.id());
    let threads = || std::fs::read_dir(&threads).unwrap().count();
    assert!(threads() <= 2 + 2 * 20, "{}", threads());
    wait_for("no ring is held", || (host.taps() == 0).then_some(()));
    let mut other = Puppet::start(host.program(OTHER, PYTHON));
    other.run("s = udp(('10.99.0.1', 5000))");
    assert_eq!(host.echoes(&mut other, 50), (0, 0));
    other.finish();
    asker.kill();
    let mut program = host.puppet(NOBODY);
    program.run("s = udp(('10.99.0.1', 5000))");
    assert_eq!(host.echoes(&mut program, 50), (0, 0));
    // The daemon does what else it has to do, and ends when it is told.
    host.daemon.signal(Signal::TERM);
    host.daemon.wait_for_end();
}

/// A datagram in fragments of which a later one comes first: nobody knows whose it is, and the kernel puts it together.
#[test]
fn fragments_for_others_reach_them_in_any_order() {
    let host = Host::new(&rule(Side::A.device(), NOBODY));
    let mut other = Puppet::start(host.net.program(Side::A, PYTHON));
    other.run("s = udp(('10.99.0.1', 5000)); s.settimeout(15)");
    let mut asker = host.asker(NOBODY);
    asker.run("c, tap = granted('veth-a')");
    asker.run("p = bound('10.99.0.1', 6000)");
    assert_eq!(asker.run("ask(c, ADD, local=('10.99.0.1', 6000), shown=p)"), "0");
    let mut sender = Puppet::start(host.net.program(Side::B, PYTHON));
    sender.run("r = socket(AF_INET, SOCK_RAW, IPPROTO_RAW)");
    sender.run(
        "whole = struct.pack('!HHHH', 7000, 5000, 24, 0) + bytes(range(16)); \
         part = lambda at, more: struct.pack('!BBHHHBBH4s4s', 0x45, 0, 32, 77, at | more << 13, 64, 17, 0, \
         inet_aton('10.99.0.2'), inet_aton('10.99.0.1')) + whole[8 * at:8 * at + 12]",
    );
    sender.run("cut = lambda at, more: r.sendto(part(at, more)[:20 + (8 if more else 24)], ('10.99.0.1', 0))");
    sender.run("[cut(2, 0), cut(1, 1), cut(0, 1)]");
    assert_eq!(other.run("s.recv(100) == bytes(range(16))"), "True");
}

/// A frame that is written to a TAP leaves only as the kernel would have sent it for the sockets that were shown.
#[test]
fn nothing_is_sent_that_the_program_could_not_have_the_kernel_send() {
    let host = Host::new(&rule(Side::A.device(), NOBODY));
    let peer = host.net.socket_at(Side::B, Side::B.at(7000));
    let mut wire = host.wire();
    let mut asker = host.asker(NOBODY);
    asker.run("c, tap = granted('veth-a')");
    asker.run("p = bound('10.99.0.1', 6000)");
    let own = "frame('0001', '10.99.0.1', 6000)";
    write(&mut asker, own);
    assert_eq!(asker.run("ask(c, ADD, local=('10.99.0.1', 6000), shown=p)"), "0");
    for forged in [
        "frame('0001', '10.99.0.1', 6001)",
        "frame('0001', '10.99.0.9', 6000)",
        "frame('0003', '10.99.0.1', 6000)",
        "frame('0001', '10.99.0.1', 6000, protocol=6)",
        "frame('0001', '10.99.0.1', 6000, length=1481)",
        "frame('0001', '10.99.0.1', 6000)[:13]",
        "frame('0001', '10.99.0.1', 6000)[:30]",
        // Said to be longer than it is, and fragments.
        "frame('0001', '10.99.0.1', 6000)[:20] + bytes.fromhex('2000') + frame('0001', '10.99.0.1', 6000)[22:]",
        "frame('0001', '10.99.0.1', 6000)[:16] + bytes.fromhex('05dc') + frame('0001', '10.99.0.1', 6000)[18:]",
        "frame('0001', '10.99.0.1', 6000)[:20] + bytes.fromhex('0009') + frame('0001', '10.99.0.1', 6000)[22:]",
        // A header with options, and of another version.
        "frame('0001', '10.99.0.1', 6000)[:14] + bytes.fromhex('46') + frame('0001', '10.99.0.1', 6000)[15:]",
        "frame('0001', '10.99.0.1', 6000)[:14] + bytes.fromhex('65') + frame('0001', '10.99.0.1', 6000)[15:]",
        // Of a VLAN.
        "frame('0001', '10.99.0.1', 6000)[:12] + bytes.fromhex('81000005') + frame('0001', '10.99.0.1', 6000)[12:]",
        "bytes(60)",
        "bytes(4000)",
    ] {
        write(&mut asker, forged);
    }
    write(&mut asker, own);
    let own_bytes = asker.run(&format!("{own}.hex()"));
    assert_eq!(wire.until(&own_bytes), [&*own_bytes], "its own and nothing else");
    assert_eq!(senders(&peer), [Side::A.at(6000).into()]);
    // Not after the flow was given up, nor after the ring has ended or the daemon.
    assert_eq!(asker.run("ask(c, REMOVE, local=('10.99.0.1', 6000))"), "0");
    write(&mut asker, own);
    assert_eq!(senders(&peer), []);
    assert_eq!(asker.run("ask(c, ADD, local=('10.99.0.1', 6000), shown=p)"), "0");
    host.daemon.signal(Signal::KILL);
    wait_for("the daemon is gone", || {
        write(&mut asker, own);
        (asker.run("hear(c)[0]") == "'the end'").then_some(())
    });
    senders(&peer);
    asker.run(&format!("os.write(tap, {own})"));
    assert_eq!(senders(&peer), []);
    // Nor into the host itself.
    asker.run("os.write(tap, frame('0001', '10.99.0.9', 6001, to=('10.99.0.1', 6000)))");
    let said = asker.raises("socket(fileno=os.dup(p)).recv(9, MSG_DONTWAIT)");
    assert!(said.contains("temporarily unavailable"), "{said}");
}

/// Limits of one user, and requests that are none.
#[test]
fn a_user_has_limits_and_rubbish_ends_the_connection() {
    let limits = "max_rings = 2\nmax_ring_flows = 1\nmax_ring_memory_mib = 5\n";
    let mut host = Host::new(&format!("{limits}{}", rule(Side::A.device(), NOBODY)));
    let mut asker = host.asker(NOBODY);
    asker.run("c, tap = granted('veth-a')");
    let of_1 = "interface=if_nametoindex('veth-a')";
    for (wanted, asked) in [
        ("114", format!("c, OPEN, {of_1}")),
        ("EINVAL", format!("meet(), OPEN, {of_1}, chunks=1000")),
        ("EINVAL", format!("meet(), OPEN, {of_1}, chunks=0, slots=0")),
        ("EINVAL", format!("meet(), OPEN, {of_1}, chunks=512, slots=1024")),
        ("EDQUOT", format!("meet(), OPEN, {of_1}, chunks=1 << 31, slots=1 << 31")),
        ("EDQUOT", format!("meet(), OPEN, {of_1}, chunks=2048")),
        ("ENODEV", "meet(), OPEN, interface=99".into()),
        ("EPERM", "meet(), OPEN, interface=if_nametoindex('lo')".into()),
        ("EINVAL", "meet(), ADD, local=('10.99.0.1', 6000)".into()),
    ] {
        assert_eq!(asker.run(&format!("ask({asked}) - {wanted}")), "0", "{asked}");
    }
    assert_eq!(host.taps(), 1);
    asker.run("d, tap2 = granted('veth-a')");
    assert_eq!(asker.run(&format!("ask(meet(), OPEN, {of_1}) - EDQUOT")), "0");
    assert_eq!(asker.run("ask(c, ADD, local=('10.99.0.1', 6010), shown=bound('', 6010))"), "0");
    assert_eq!(
        asker.run("ask(c, ADD, local=('10.99.0.1', 6011), shown=bound('', 6011)) - EDQUOT"),
        "0"
    );
    for rubbish in
        ["b'x'", "bytes(32)", "message(ADD)[:32]", "message(OPEN) + bytes(24)", "bytes(5000)"]
    {
        asker.run("e = meet()");
        asker.run(&format!("e.send({rubbish})"));
        assert_eq!(asker.run("hear(e)[0]"), "'the end'", "{rubbish}");
    }
    // A process that does not read its answers loses its ring, and no other one waits.
    asker.run("d.setblocking(False)");
    asker.run("exec(\"try:\\n while True: d.send(message(REFRESH))\\nexcept OSError: pass\")");
    assert_eq!(asker.run("ask(c, REFRESH)"), "0");
    assert_eq!(asker.run("ask(c, STRANGER) - EINVAL"), "0");
    // A TAP that was made persistent goes with its ring.
    asker.run("import fcntl");
    asker.run("fcntl.ioctl(tap, 0x400454cb, 1)");
    asker.kill();
    wait_for("nothing is left", || {
        (host.taps() == 0 && !host.net.is_steered(Side::A)).then_some(())
    });
    assert!(host.daemon.is_running());
}

/// An address that goes and comes back: nothing is taken for it, nothing leaves from it, and all goes on.
#[test]
fn an_address_may_be_away_for_a_while() {
    let host = Host::new(&rule(Side::A.device(), NOBODY));
    host.net.ip(Side::A, "addr add 10.99.0.7/24 dev veth-a");
    let peer = host.net.socket_at(Side::B, Side::B.at(7000));
    let mut asker = host.asker(NOBODY);
    asker.run("c, tap = granted('veth-a'); p = bound('', 6000)");
    for own in ["10.99.0.7", "10.99.0.1"] {
        assert_eq!(asker.run(&format!("ask(c, ADD, local=('{own}', 6000), shown=p)")), "0");
    }
    peer.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
    let leaves = |asker: &mut Puppet| {
        asker.run("os.write(tap, frame('0001', '10.99.0.7', 6000))");
        asker.run("os.write(tap, frame('0001', '10.99.0.1', 6000))");
        std::iter::from_fn(|| peer.recv(&mut [0; 100]).ok()).count()
    };
    assert_eq!(leaves(&mut asker), 2);
    host.net.ip(Side::A, "addr del 10.99.0.7/24 dev veth-a");
    wait_for("its address is gone", || (leaves(&mut asker) == 1).then_some(()));
    host.net.ip(Side::A, "addr add 10.99.0.7/24 dev veth-a");
    wait_for("it is back", || (leaves(&mut asker) == 2).then_some(()));
    // Nor does the ring outlive its interface's part in a bridge.
    host.net.ip(Side::A, "link add br-g type bridge");
    host.net.ip(Side::A, "link set veth-a master br-g");
    assert_eq!(asker.run("hear(c)[0]"), "'the end'");
}
