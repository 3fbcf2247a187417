//! What the network may send: nothing of it crashes the process, stops a good datagram, or is
//! delivered where the kernel would not deliver it.

use crate::dual_stack::with_ipv6;
use crate::harness::{Namespaces, PYTHON, Puppet, Side};
use crate::ipv6_datagrams::SOCKETS;

/// Makes frames from a seed, throws them at port 5000 through a raw socket.
const THROWER: &str = r#"
import random
DST, SRC = bytes.fromhex('020000990001'), bytes.fromhex('020000990002')
def ones(data):
    if len(data) & 1: data += b'\0'
    total = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while total >> 16: total = (total & 65535) + (total >> 16)
    return ~total & 65535
def wrong(check, pseudo):
    """Not the sum of the pseudo-header alone, which says on a veth that the card was to complete it."""
    return check ^ 1 if check == 65535 ^ ones(pseudo) else check
def datagram(payload, src='10.99.0.2', dst='10.99.0.1', sport=4000, dport=5000, length=None, check=None):
    length = 8 + len(payload) if length is None else length
    head = struct.pack('!HHHH', sport, dport, length, 0)
    pseudo = inet_aton(src) + inet_aton(dst) + struct.pack('!BBH', 0, 17, length)
    right = ones(pseudo + head + payload) or 65535
    return head[:6] + struct.pack('!H', right if check is None else wrong(check, pseudo)) + payload
def packet(body, src='10.99.0.2', dst='10.99.0.1', total=None, check=None, ident=0, frag=0, first=0x45, ttl=64, proto=17, options=b''):
    total = 20 + len(options) + len(body) if total is None else total
    head = struct.pack('!BBHHHBBH', first, 0, total & 65535, ident, frag, ttl, proto, 0) + inet_aton(src) + inet_aton(dst) + options
    right = ones(head)
    return head[:10] + struct.pack('!H', right if check is None else check) + head[12:] + body
def frame(body, dst=DST, kind=0x0800, pad=True):
    whole = dst + SRC + struct.pack('!H', kind) + body
    return whole
link = socket(AF_PACKET, SOCK_RAW); link.bind(('veth-b', 0))
count = 0
def throw(data):
    try: link.send(data)
    except OSError: pass # too short or too long for the device
def hostile(r):
    """One frame that is wrong in some way, or merely strange."""
    kind = r.randrange(22)
    text = b'kind %d, %d ' % (kind, r.randrange(10**6)) + r.randbytes(r.randrange(60))
    good = datagram(text)
    if kind == 0: return frame(packet(good))[:r.randrange(14, 60)]
    if kind == 1: return frame(packet(datagram(text, check=r.randrange(1, 65536))))
    if kind == 2: return frame(packet(good, check=r.randrange(65536)))
    if kind == 3: return frame(packet(datagram(text, length=r.randrange(65536))))
    if kind == 4: return frame(packet(datagram(text, length=r.randrange(12))))
    if kind == 5: return frame(packet(good, total=r.randrange(65536)))
    if kind == 6: return frame(packet(good, total=r.randrange(40)))
    if kind == 7: return frame(packet(good, first=r.randrange(256)))
    if kind == 8: return frame(packet(datagram(b'')))
    if kind == 9: return frame(packet(good) + r.randbytes(r.randrange(40)))
    if kind == 10: return frame(r.randbytes(r.randrange(1480)))
    if kind == 11: return frame(b'\x45' + r.randbytes(8) + b'\x11' + r.randbytes(r.randrange(200)))
    if kind == 12: return frame(packet(good, first=0x46, options=b'\1\1\1\1'))
    if kind == 13: return frame(packet(good, ttl=r.choice([0, 1, 255])))
    if kind == 14:
        src = r.choice(['0.0.0.0', '127.0.0.1', '255.255.255.255', '224.1.1.1', '10.99.0.255', '240.0.0.1', '0.1.2.3', '10.99.0.1'])
        return frame(packet(datagram(text, src=src), src=src))
    if kind == 15: return frame(packet(datagram(text, sport=r.choice([0, 1, 65535]))))
    if kind == 16: return frame(packet(datagram(text, check=0)))
    if kind == 17: return frame(packet(good, proto=r.randrange(256)))
    if kind == 18: return frame(packet(good), dst=r.choice([b'\2\0\0\x99\0\x09', b'\xff' * 6]))
    if kind == 19: return frame(packet(good, frag=r.choice([0x8000, 0x4000, 0xc000])))
    if kind == 20: return frame(packet(good), kind=r.choice([0x86dd, 0x8100, 0x0806, 0, 0xffff]))
    data = bytearray(frame(packet(good)))
    for n in range(r.randrange(1, 4)): data[r.randrange(12, len(data))] ^= 1 << r.randrange(8)
    return bytes(data)
def fragments(r, ident):
    """A datagram in pieces that overlap, repeat, contradict, are missing, or end too far out."""
    style = r.randrange(7)
    body = datagram(b'style %d, %d ' % (style, ident) + r.randbytes(r.randrange(100, 3000)))
    pieces = []
    at = 0
    while at < len(body):
        size = 8 * r.randrange(1, 100)
        pieces.append((at, body[at:at + size])); at += size
    out = []
    for at, data in pieces:
        more = 0x2000 if at + len(data) < len(body) else 0
        out.append((at // 8 | more, data))
    if style == 1: r.shuffle(out)
    if style == 2: out += out[:1]
    if style == 3 and len(out) > 2: del out[r.randrange(len(out))]
    if style == 4:
        # Not at 0: the steering program sees ports only there, and decides anew by them.
        at = r.randrange(8, len(body)) // 8
        out.insert(r.randrange(len(out) + 1), (at | 0x2000, r.randbytes(8 * r.randrange(1, 50))))
    if style == 5: out.append((0x1fff, r.randbytes(r.randrange(1, 1000))))
    if style == 6: out.insert(0, (r.randrange(0x2000) | 0x2000, b''))
    return [frame(packet(data, ident=ident, frag=field)) for field, data in out]
def good(text, step):
    return frame(packet(datagram(text, sport=4001), ident=10000 + step))
"#;

/// The same of IPv6, under the names above.
const OF_IPV6: &str = r#"
A, B = inet_pton(AF_INET6, 'fd00:99::1'), inet_pton(AF_INET6, 'fd00:99::2')
def datagram(payload, src=B, dst=A, sport=4000, dport=5000, length=None, check=None):
    length = 8 + len(payload) if length is None else length
    head = struct.pack('!HHHH', sport, dport, length, 0)
    pseudo = src + dst + struct.pack('!II', 8 + len(payload), 17)
    right = ones(pseudo + head + payload) or 65535
    return head[:6] + struct.pack('!H', right if check is None else wrong(check, pseudo)) + payload
def packet(body, src=B, dst=A, length=None, first=0x60, hops=64, proto=17):
    length = len(body) if length is None else length
    return struct.pack('!BBHHBB', first, 0, 0, length & 65535, proto, hops) + src + dst + body
def frame(body, dst=DST, kind=0x86dd):
    return dst + SRC + struct.pack('!H', kind) + body
def piece(ident, at, more, data, kind=17):
    return frame(packet(struct.pack('!BBHI', kind, 0, (at & 0x1fff) << 3 | more, ident) + data, proto=44))
def fragments(r, ident):
    style = r.randrange(10)
    body = datagram(b'style %d, %d ' % (style, ident) + r.randbytes(r.randrange(100, 3000)))
    out = []
    at = 0
    while at < len(body):
        size = 8 * r.randrange(1, 100)
        out.append((at // 8, at + size < len(body), body[at:at + size])); at += size
    if style == 1: r.shuffle(out)
    if style == 2: out += out[:1]
    if style == 3 and len(out) > 2: del out[r.randrange(len(out))]
    if style == 4:
        at = r.randrange(8, len(body)) // 8
        out.insert(r.randrange(len(out) + 1), (at, 1, r.randbytes(8 * r.randrange(1, 50))))
    if style == 5: out.append((0x1fff, 0, r.randbytes(r.randrange(1, 1000))))
    if style == 6: out.insert(0, (r.randrange(0x2000), 1, b''))
    if style == 7: out.insert(1, (r.randrange(1, 9), 1, r.randbytes(r.randrange(1, 8))))
    if style == 8: out = [(0, 1, body[:r.randrange(16)])] + out[1:]
    if style == 9: out = [(at, more, data, 60 if at else 17) for at, more, data in out]
    return [piece(ident << 16 | ident, *one) for one in out]
SOURCES = ['::', '::1', 'ff02::1', 'fe80::b', '::ffff:10.99.0.2', 'fd00:99::1', '2001:db8::5', '64:ff9b::1', '::5']
def hostile(r):
    kind = r.randrange(22)
    text = b'kind %d, %d ' % (kind, r.randrange(10**6)) + r.randbytes(r.randrange(60))
    good = datagram(text)
    if kind == 0: return frame(packet(good))[:r.randrange(14, 80)]
    if kind == 1: return frame(packet(datagram(text, check=r.randrange(1, 65536))))
    if kind == 2: return frame(packet(datagram(text, check=0)))
    if kind == 3: return frame(packet(datagram(text, length=r.randrange(65536))))
    if kind == 4: return frame(packet(datagram(text, length=r.randrange(12))))
    if kind == 5: return frame(packet(good, length=r.randrange(65536)))
    if kind == 6: return frame(packet(good, length=r.randrange(40)))
    if kind == 7: return frame(packet(good, first=r.randrange(256)))
    if kind == 8: return frame(packet(datagram(b'')))
    if kind == 9: return frame(packet(good) + r.randbytes(r.randrange(40)))
    if kind == 10: return frame(r.randbytes(r.randrange(1480)))
    if kind == 11: return frame(b'\x60' + r.randbytes(5) + b'\x11' + r.randbytes(r.randrange(200)))
    if kind == 12: return frame(packet(bytes([17, 0, 1, 4, 0, 0, 0, 0]) + good, proto=r.choice([0, 60, 43, 44])))
    if kind == 13: return frame(packet(good, hops=r.choice([0, 1, 255])))
    if kind == 14:
        src = inet_pton(AF_INET6, r.choice(SOURCES))
        return frame(packet(datagram(text, src=src), src=src))
    if kind == 15: return frame(packet(datagram(text, sport=r.choice([0, 1, 65535]))))
    if kind == 16:
        dst = inet_pton(AF_INET6, r.choice(SOURCES))
        return frame(packet(datagram(text, dst=dst), dst=dst))
    if kind == 17: return frame(packet(good, proto=r.randrange(256)))
    if kind == 18: return frame(packet(good), dst=r.choice([b'\2\0\0\x99\0\x09', b'\xff' * 6]))
    if kind == 19: return frame(packet(datagram(text, dport=r.choice([0, 5001]))))
    if kind == 20: return frame(packet(good), kind=r.choice([0x0800, 0x8100, 0x0806, 0, 0xffff]))
    data = bytearray(frame(packet(good)))
    for n in range(r.randrange(1, 4)): data[r.randrange(12, len(data))] ^= 1 << r.randrange(8)
    return bytes(data)
def good(text, step):
    return frame(packet(datagram(text, sport=4001)))
"#;

#[derive(Clone, Copy)]
enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    /// How the program opens its socket, and the peer one for the answers; what else the peer does.
    fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Family::Ipv4 => ("udp(('10.99.0.1', 5000))", "udp(('10.99.0.2', 4001))", ""),
            Family::Ipv6 => ("six(('::', 5000))", "six(('fd00:99::2', 4001))", OF_IPV6),
        }
    }
}

const FRAMES: usize = 4000;

/// A thousand frames, then a good datagram that must come through before the next thousand.
/// Returns the digests of all that arrived, sorted.
fn bombard(preloaded: bool, seed: u64, family: Family, throw: &str) -> (String, String) {
    let net = Namespaces::new();
    with_ipv6(&net);
    let (server, client, more) = family.words();
    // The kernel gives up on a datagram when the sender seems to have begun too many others.
    net.sysctl(Side::A, "net.ipv4.ipfrag_max_dist", "0");
    let program = net.program(Side::A, PYTHON);
    let mut program = Puppet::start(if preloaded { program.with_library() } else { program });
    program.run(SOCKETS);
    program.run(&format!("s = {server}; got = []"));
    let mut thrower = Puppet::start(net.program(Side::B, PYTHON));
    thrower.run(THROWER);
    thrower.run(SOCKETS);
    thrower.run(more);
    thrower.run(&format!("r = random.Random({seed}); answers = {client}"));
    for step in 0..FRAMES / 50 {
        thrower.run(throw);
        let good = format!("good {step}");
        thrower.run(&format!("throw(good(b'{good}', {step}))"));
        let collect = "
while True:
    data, peer = s.recvfrom(65535)
    if data[:5] == b'good ': break
    got.append(data)
s.sendto(data, peer)";
        program.run(collect);
        let answer = thrower.run("answers.recv(100)");
        assert_eq!(answer, format!("b'{good}'"), "seed {seed}");
    }
    // What came by the kernel, the last good one may have overtaken.
    let rest = "
s.settimeout(0.3)
try:
    while True: got.append(s.recvfrom(65535)[0])
except TimeoutError: pass";
    program.run(rest);
    program.run("import hashlib");
    let count = program.run("len(got)");
    let all = program.run("sorted((len(d), d[:30], hashlib.md5(d).hexdigest()) for d in got)");
    if preloaded {
        assert!(net.is_steered(Side::A), "it was offloaded");
    }
    program.finish();
    (count, all)
}

#[track_caller]
fn as_in_the_kernel(family: Family, throw: &str) {
    let seed = match std::env::var("SEED") {
        Ok(seed) => seed.parse().expect("SEED is a number"),
        Err(_) => u64::from(std::process::id()),
    };
    println!("SEED={seed} repeats this");
    let plain = bombard(false, seed, family, throw);
    let preloaded = bombard(true, seed, family, throw);
    if plain != preloaded {
        let list = |text: &str| -> Vec<String> {
            text.trim_matches(['[', ']']).split("), (").map(str::to_owned).collect()
        };
        let (kernel, ours) = (list(&plain.1), list(&preloaded.1));
        let only = |these: &[String], those: &[String]| -> Vec<String> {
            these.iter().filter(|one| !those.contains(one)).take(8).cloned().collect()
        };
        panic!(
            "SEED={seed}: the kernel delivers {}, the library {}\nonly the kernel: {:#?}\nonly the \
             library: {:#?}",
            plain.0,
            preloaded.0,
            only(&kernel, &ours),
            only(&ours, &kernel)
        );
    }
}

// covers: NET-04, NET-50
#[test]
fn of_malformed_frames_the_same_are_delivered_as_by_the_kernel() {
    as_in_the_kernel(Family::Ipv4, "for n in range(50): throw(hostile(r))");
}

// covers: NET-04, NET-50
#[test]
fn of_malformed_frames_of_ipv6_the_same_are_delivered_as_by_the_kernel() {
    as_in_the_kernel(Family::Ipv6, "for n in range(50): throw(hostile(r))");
}

// covers: NET-23, LIM-20
#[test]
fn of_malformed_fragments_the_same_are_delivered_as_by_the_kernel() {
    as_in_the_kernel(
        Family::Ipv4,
        "for n in range(10):\n count += 1\n for one in fragments(r, count): throw(one)",
    );
}

// covers: NET-23, LIM-20
#[test]
fn of_malformed_fragments_of_ipv6_the_same_are_delivered_as_by_the_kernel() {
    as_in_the_kernel(
        Family::Ipv6,
        "for n in range(10):\n count += 1\n for one in fragments(r, count): throw(one)",
    );
}

// covers: NET-04
#[test]
fn random_bytes_do_no_harm() {
    as_in_the_kernel(
        Family::Ipv4,
        "for n in range(50): throw(DST + SRC + b'\\x08\\0' + r.randbytes(r.randrange(1480)))",
    );
}
