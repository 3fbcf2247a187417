//! Many datagrams in one call: `sendmmsg` and `recvmmsg`.
//!
//! Through libc's symbols, as any application calls them, so that a preloaded library sees them.

use std::io;
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr;

/// Buffers of equal size and the headers that describe them to the kernel.
pub struct Batch {
    buffers: Vec<u8>,
    size: usize,
    headers: Vec<libc::mmsghdr>,
    /// What `headers` points to, beside `buffers`. Boxed or on the heap, never resized.
    _vectors: Vec<libc::iovec>,
    _destination: Option<Box<libc::sockaddr_in>>,
}

impl Batch {
    /// Room for `count` datagrams of `size` bytes, from anybody or to `destination`.
    pub fn new(count: usize, size: usize, destination: Option<SocketAddrV4>) -> Self {
        let mut buffers = vec![0; count * size];
        let mut vectors: Vec<libc::iovec> = buffers
            .chunks_exact_mut(size)
            .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: size })
            .collect();
        let mut destination = destination.map(|address| Box::new(sockaddr(address)));
        let (name, name_length) = match &mut destination {
            Some(address) => {
                (ptr::from_mut(address.as_mut()).cast(), size_of::<libc::sockaddr_in>())
            }
            None => (ptr::null_mut(), 0),
        };
        let headers = vectors
            .iter_mut()
            .map(|vector| libc::mmsghdr {
                msg_hdr: libc::msghdr {
                    msg_name: name,
                    msg_namelen: name_length as u32,
                    msg_iov: vector,
                    msg_iovlen: 1,
                    msg_control: ptr::null_mut(),
                    msg_controllen: 0,
                    msg_flags: 0,
                },
                msg_len: 0,
            })
            .collect();
        Self { buffers, size, headers, _vectors: vectors, _destination: destination }
    }

    /// The buffers, for the sender to fill in.
    pub fn buffers_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.buffers.chunks_exact_mut(self.size)
    }

    /// Sends the whole batch or the part that the socket takes; how many datagrams went.
    pub fn send(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        let (headers, count) = (self.headers.as_mut_ptr(), self.headers.len() as u32);
        // SAFETY: `headers` are `count` records; their pointers, made in `new`, lead to heap
        // memory that `self` owns, and `&mut self` keeps everybody else away from it.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers, count, 0) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receives at least one datagram, waiting as the socket does; what came.
    pub fn receive(&mut self, socket: &UdpSocket) -> io::Result<impl Iterator<Item = &[u8]>> {
        let (headers, count) = (self.headers.as_mut_ptr(), self.headers.len() as u32);
        let flags = libc::MSG_WAITFORONE;
        // SAFETY: as in `send`; the buffers' lengths in the vectors are their true lengths, so
        // the call writes nowhere else. No timeout (null).
        let received =
            unsafe { libc::recvmmsg(socket.as_raw_fd(), headers, count, flags, ptr::null_mut()) };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        let lengths = self.headers[..received].iter().map(|header| header.msg_len as usize);
        Ok(self
            .buffers
            .chunks_exact(self.size)
            .zip(lengths)
            .map(|(buffer, length)| &buffer[..length]))
    }
}

fn sockaddr(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_batch_arrives_as_it_was_sent() {
        let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let std::net::SocketAddr::V4(address) = receiver.local_addr().unwrap() else { panic!() };
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();

        let mut outgoing = Batch::new(3, 10, Some(address));
        for (number, buffer) in outgoing.buffers_mut().enumerate() {
            buffer.fill(number as u8);
        }
        assert_eq!(outgoing.send(&sender).unwrap(), 3);

        let mut incoming = Batch::new(8, 100, None);
        let received: Vec<_> = incoming.receive(&receiver).unwrap().collect();
        assert_eq!(received, [[0; 10], [1; 10], [2; 10]]);
    }
}
