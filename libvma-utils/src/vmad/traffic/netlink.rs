//! The talk with the kernel about links, addresses and TC: one request, its answers. rtnetlink(7).

use std::fmt;
use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use rustix::io::Errno;

/// A socket of one network namespace.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

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
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => told.push(inner),
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
