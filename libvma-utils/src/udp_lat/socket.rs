//! The two ends' sockets: bound, and in multicast members of the group.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use anyhow::{Context, anyhow};
use socket2::{Domain, Socket, Type};

use crate::options::{Multicast, Options};

/// Receives what is sent to the address of the command line.
pub fn of_server(options: &Options) -> anyhow::Result<UdpSocket> {
    let socket = new(options)?;
    bind(&socket, options.at)?;
    options.multicast.as_ref().map_or(Ok(()), |multicast| join(&socket, options.at, multicast))?;
    Ok(socket.into())
}

/// Receives what the server answers: in multicast what is sent to the group, else to this socket.
pub fn of_client(options: &Options) -> anyhow::Result<UdpSocket> {
    let socket = new(options)?;
    if let Some(multicast) = &options.multicast {
        bind(&socket, options.at)?;
        join(&socket, options.at, multicast)?;
    } else {
        let any = match options.at {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        bind(&socket, SocketAddr::new(any, 0))?;
    }
    Ok(socket.into())
}

fn new(options: &Options) -> anyhow::Result<Socket> {
    let domain = Domain::for_address(options.at);
    Socket::new(domain, Type::DGRAM, None).context("cannot make a UDP socket")
}

fn bind(socket: &Socket, at: SocketAddr) -> anyhow::Result<()> {
    // Only a group is shared, with the other end on this host and with other tests; two servers at
    // one address would take each other's questions.
    socket.set_reuse_address(at.ip().is_multicast())?;
    socket
        .bind(&at.into())
        .with_context(|| format!("cannot listen on {} port {}", at.ip(), at.port()))
}

fn join(socket: &Socket, at: SocketAddr, multicast: &Multicast) -> anyhow::Result<()> {
    // Groups are of IPv4 (`Options::parse`).
    let IpAddr::V4(group) = at.ip() else { return Ok(()) };
    let receive = multicast.receive_on;
    socket.join_multicast_v4(&group, &receive.unwrap_or(Ipv4Addr::UNSPECIFIED)).map_err(
        |error| explained(error, &format!("cannot join {group}"), "--mc-rx-if", receive),
    )?;
    if let Some(send) = multicast.send_on {
        socket.set_multicast_if_v4(&send).map_err(|error| {
            explained(error, &format!("cannot send to {group}"), "--mc-tx-if", Some(send))
        })?;
    }
    socket.set_multicast_ttl_v4(multicast.ttl.into()).context("cannot set --mc-ttl")?;
    socket.set_multicast_loop_v4(multicast.loopback).context("cannot set --mc-loopback-enable")
}

/// Names the option to blame, or the one that would help.
fn explained(
    error: io::Error,
    what: &str,
    option: &str,
    interface: Option<Ipv4Addr>,
) -> anyhow::Error {
    match interface {
        Some(address) => anyhow!("{what} on the interface of {option} {address}: {error}"),
        None => {
            anyhow!("{what}: {error}: add a route to the group, or name an interface by {option}")
        }
    }
}
