//! What the kernel knows of a connection that a process claims: whether its local address is the
//! namespace's, and whether the kernel has a socket for it. A claim must not let a user reset what is
//! not theirs.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use crate::connections::Tuple;
use crate::namespace::Namespace;

/// Whether `address` is one of the namespace's own. The answer is the kernel's: only such an address
/// can be bound. With net.ipv4.ip_nonlocal_bind any user may speak as any address anyway.
pub fn is_local(namespace: &Namespace, address: Ipv4Addr) -> io::Result<bool> {
    match namespace.inside(|| UdpSocket::bind((address, 0)))? {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(false),
        Err(error) => Err(error),
    }
}

/// Those of `claimed` for which the kernel has a socket, in whatever state: it is somebody's who lives,
/// or the kernel ends the connection itself.
pub fn in_kernel(namespace: &Namespace, claimed: &HashSet<Tuple>) -> io::Result<HashSet<Tuple>> {
    // Of the namespace that the thread is in when it opens the file.
    let file = namespace.inside(|| File::open("/proc/thread-self/net/tcp"))??;
    let mut found = HashSet::new();
    for line in BufReader::new(file).lines().skip(1) {
        let line = line?;
        let tuple = tuple(&line)
            .ok_or_else(|| io::Error::other(format!("/proc/net/tcp has an odd line: {line}")))?;
        if claimed.contains(&tuple) {
            found.insert(tuple);
        }
    }
    Ok(found)
}

/// `  0: 0100007F:1F90 0200007F:9C40 01 ...`, see proc_pid_net(5): the address as the bytes lie in
/// memory, the port as a number.
fn tuple(line: &str) -> Option<Tuple> {
    let mut words = line.split_whitespace().skip(1);
    let (local, peer) = (words.next()?, words.next()?);
    Some(Tuple { local: address(local)?, peer: address(peer)? })
}

fn address(text: &str) -> Option<SocketAddrV4> {
    let (ip, port) = text.split_once(':')?;
    let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
    Some(SocketAddrV4::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel_is_read() {
        let line = "   1: 0100007F:1F90 0200007F:9C40 01 00000000:00000000 00:00000000 00000000";
        let expected = if cfg!(target_endian = "little") {
            ("127.0.0.1:8080", "127.0.0.2:40000")
        } else {
            ("1.0.0.127:8080", "2.0.0.127:40000")
        };
        let expected = Tuple {
            local: expected.0.parse().expect("an address"),
            peer: expected.1.parse().expect("an address"),
        };
        assert_eq!(tuple(line), Some(expected));
        assert_eq!(tuple("nonsense"), None);
    }
}
