//! What the kernel knows of a connection that a process claims: whether its local address is the
//! namespace's, and whether the kernel has a socket for it. A claim must not let a user reset what is
//! not theirs.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use crate::connections::Tuple;
use crate::namespace::Namespace;

/// Whether `address` is one of the namespace's own. The answer is the kernel's: only such an address
/// can be bound. With net.ipv4.ip_nonlocal_bind, or net.ipv6.ip_nonlocal_bind, any user may speak as any address anyway.
pub fn is_local(namespace: &Namespace, address: IpAddr) -> io::Result<bool> {
    match namespace.inside(|| UdpSocket::bind((address, 0)))? {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(false),
        Err(error) => Err(error),
    }
}

/// Those of `claimed` for which the kernel has a socket, in whatever state: it is somebody's who lives,
/// or the kernel ends the connection itself.
pub fn in_kernel(namespace: &Namespace, claimed: &HashSet<Tuple>) -> io::Result<HashSet<Tuple>> {
    let mut found = HashSet::new();
    // A socket of IPv6 may have a connection of IPv4. A kernel without IPv6 has no file for it.
    for table in ["tcp", "tcp6"] {
        let path = format!("/proc/thread-self/net/{table}");
        // Of the namespace that the thread is in when it opens the file.
        let file = match namespace.inside(|| File::open(&path))? {
            Ok(file) => file,
            Err(error) if table == "tcp6" && error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for line in BufReader::new(file).lines().skip(1) {
            let line = line?;
            let (local, peer) = ends(&line)
                .ok_or_else(|| io::Error::other(format!("{path} has an odd line: {line}")))?;
            let tuple = Tuple { local: canonical(local), peer: canonical(peer) };
            if claimed.contains(&tuple) {
                found.insert(tuple);
            }
        }
    }
    Ok(found)
}

/// `  0: 0100007F:1F90 0200007F:9C40 01 ...`, see proc_pid_net(5): the address as the bytes lie in
/// memory, the port as a number.
fn ends(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let mut words = line.split_whitespace().skip(1);
    Some((address(words.next()?)?, address(words.next()?)?))
}

/// An address of IPv6 is four such words.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = [0u8; 16];
    let mut words = bytes.chunks_exact_mut(4);
    let mut rest = ip;
    while let Some((word, tail)) = rest.split_at_checked(8) {
        words.next()?.copy_from_slice(&u32::from_str_radix(word, 16).ok()?.to_ne_bytes());
        rest = tail;
    }
    match (ip.len(), rest) {
        (8, "") => {
            let [a, b, c, d, ..] = bytes;
            Some(SocketAddr::from(([a, b, c, d], port)))
        }
        (32, "") => Some(SocketAddr::from((bytes, port))),
        _ => None,
    }
}

/// The address, or the one of IPv4 that is mapped into it (RFC 4291 section 2.5.5.2).
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
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
        let expected =
            (expected.0.parse().expect("an address"), expected.1.parse().expect("an address"));
        assert_eq!(ends(line), Some(expected));
        for odd in ["nonsense", "0: 0100007F:1F90 7F:1", "0: 0100007F 0100007F:1", "0: x:1 y:1"] {
            assert_eq!(ends(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_connection_of_version_4_on_a_socket_of_version_6_is_the_kernels() {
        let Ok(listener) = std::net::TcpListener::bind("[::]:0") else {
            // A kernel without IPv6 has no such connections.
            return;
        };
        let port = listener.local_addr().expect("bound").port();
        let client = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let (accepted, _) = listener.accept().expect("it is there");
        let own_tuple = |client: &std::net::TcpStream| Tuple {
            local: client.peer_addr().expect("connected"),
            peer: client.local_addr().expect("connected"),
        };
        // The other one is of IPv6 where `lo` has it.
        let six = std::net::TcpStream::connect(("::1", port));
        let of_six = six.as_ref().ok().map(own_tuple);
        let claimed: HashSet<_> = [own_tuple(&client)].into_iter().chain(of_six).collect();
        let pid = rustix::process::getpid();
        let namespace = crate::namespace::Namespaces::new().of(pid).expect("ours");
        assert_eq!(in_kernel(&namespace, &claimed).expect("readable"), claimed);
        drop(accepted);
    }
}
