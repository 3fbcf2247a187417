//! The talk with the kernel about links, addresses and TC: one request, its answers. rtnetlink(7).

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use nix::libc;
use rustix::io::Errno;

/// A socket of one network namespace.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

/// The state changed while the kernel told it: a part may be missing, or be there twice.
#[derive(Debug)]
struct Changed;

/// How often the kernel is asked until nothing changes.
const DUMPS: usize = 8;

/// The kernel refused.
#[derive(Debug)]
pub struct Refused {
    pub errno: Errno,
    /// Its extended acknowledgement, if it gave one.
    text: Option<String>,
}

impl Netlink {
    /// Of the namespace that this thread is in.
    ///
    /// # Errors
    /// Of socket(2), bind(2) and setsockopt(2).
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        // The words besides the errno, and not our own request behind them.
        socket.set_ext_ack(true)?;
        socket.set_cap_ack(true)?;
        // The kernel answers while it is asked: what is not there by then will never come.
        socket.set_non_blocking(true)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Asks for something to be done; what the kernel tells of it, if `flags` have `NLM_F_ECHO`.
    ///
    /// # Errors
    /// [`Refused`] in an [`anyhow::Error`] if the kernel does not do it, else of the socket.
    pub fn ask(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
    ) -> anyhow::Result<Vec<RouteNetlinkMessage>> {
        self.exchange(request, NLM_F_REQUEST | NLM_F_ACK | flags)
    }

    /// Asks for all things of a kind.
    ///
    /// # Errors
    /// As of [`Netlink::ask`].
    pub fn dump(
        &mut self,
        request: RouteNetlinkMessage,
    ) -> anyhow::Result<Vec<RouteNetlinkMessage>> {
        for _ in 1..DUMPS {
            match self.exchange(request.clone(), NLM_F_REQUEST | NLM_F_DUMP) {
                Err(error) if error.is::<Changed>() => {}
                done => return done,
            }
        }
        self.exchange(request, NLM_F_REQUEST | NLM_F_DUMP)
    }

    fn exchange(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
    ) -> anyhow::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut told = Vec::new();
        let mut has_changed = false;
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            let mut rest = datagram.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)?;
                let length = usize::try_from(message.header.length)?;
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                // Of a request that failed half way before.
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                has_changed |= message.header.flags & NLM_F_DUMP_INTR != 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => told.push(inner),
                    NetlinkPayload::Done(_) if has_changed => return Err(Changed.into()),
                    NetlinkPayload::Done(_) => return Ok(told),
                    NetlinkPayload::Error(answer) => {
                        return match answer.code {
                            None => Ok(told),
                            Some(code) => Err(Refused {
                                errno: Errno::from_raw_os_error(code.get().saturating_neg()),
                                text: words(&answer.header),
                            }
                            .into()),
                        };
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Tells that something changed, not what.
pub struct News(Socket);

impl News {
    /// Of the links and addresses of the namespace that this thread is in.
    ///
    /// # Errors
    /// Of socket(2), bind(2) and setsockopt(2).
    pub fn open() -> io::Result<News> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        for group in [RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR] {
            socket.add_membership(group)?;
        }
        Ok(News(socket))
    }

    /// Takes all messages that wait.
    pub fn take(&self) {
        // A message without room is one that was told as well.
        let told = || self.0.recv(&mut &mut [0_u8; 1][..], 0);
        while told().map_or_else(|error| error.raw_os_error() == Some(libc::ENOBUFS), |_| true) {}
    }
}

impl AsFd for News {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// <linux/rtnetlink.h>
const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_IPV4_IFADDR: u32 = 5;
const RTNLGRP_IPV6_IFADDR: u32 = 9;

/// The kernel's words out of what follows the error code: the header of the request, then attributes
/// (linux/netlink.h, `nlmsgerr_attrs`).
fn words(payload: &[u8]) -> Option<String> {
    const HEADER: usize = 16;
    const NLMSGERR_ATTR_MSG: u16 = 1;
    NlasIterator::new(payload.get(HEADER..)?)
        .map_while(Result::ok)
        .find(|attribute| attribute.kind() == NLMSGERR_ATTR_MSG)
        .map(|attribute| {
            String::from_utf8_lossy(attribute.value()).trim_end_matches('\0').to_owned()
        })
}

impl fmt::Display for Refused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", io::Error::from(self.errno))?;
        match &self.text {
            Some(text) => write!(out, ": {text}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Refused {}

impl fmt::Display for Changed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "what the kernel tells changes all the time")
    }
}

impl std::error::Error for Changed {}
