//! The frames that leave the host by the cable. A UDP socket of the peer does not see most of the forged ones.

use super::Host;
use crate::harness::{PYTHON, Puppet, Side};

const WIRE: &str = r#"
wire = socket(AF_PACKET, SOCK_RAW, 0x0300)
wire.bind(('veth-b', 3))
wire.settimeout(15)

def seen(last):
    frames = []
    while last not in frames:
        f, about = wire.recvfrom(70000)
        # Frames of the kernels to their neighbours (ARP, ICMPv6 with the largest hop limit, groups), and those of side B itself, are left out.
        is_kernels = f[12:14] == b'\x08\x06' or (f[12:14] == b'\x86\xdd' and f[21] == 255) or f[0] & 1
        if about[2] != 4 and not is_kernels: frames.append(f.hex())
    return ' '.join(frames)
"#;

/// The peer's end of the cable.
pub(super) struct Wire(Puppet);

impl Host {
    pub(super) fn wire(&self) -> Wire {
        let mut peer = Puppet::start(self.net.program(Side::B, PYTHON));
        peer.run(&format!("exec({WIRE:?})"));
        Wire(peer)
    }
}

impl Wire {
    /// The frames that came since the last question, up to `last`: all as Python's `repr()` of their hexadecimal digits.
    pub(super) fn until(&mut self, last: &str) -> Vec<String> {
        let seen = self.0.run(&format!("seen({last})"));
        seen.trim_matches('\'').split(' ').map(|frame| format!("'{frame}'")).collect()
    }
}

/// Each frame that is written leaves unless the program behind the TAP drops it; an error of write(2) is no answer.
pub(super) fn write(asker: &mut Puppet, frame: &str) {
    asker.run(&format!("exec(\"try: os.write(tap, {frame})\\nexcept OSError: pass\")"));
}
