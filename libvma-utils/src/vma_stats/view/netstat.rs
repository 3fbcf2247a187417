//! View 5: the sockets of all processes, a line each.

use std::fmt::Write;
use std::net::SocketAddr;

use libvma_dev::stats::{OFFLOADED, Socket, Taken};

use super::ip_of;
use crate::message::printable;

/// SOCK_STREAM, SOCK_DGRAM and SOCK_RAW.
pub const STREAM: u32 = 1;
pub const DATAGRAM: u32 = 2;
pub const RAW: u32 = 3;

pub const HEADER: &str = "Proto Offloaded Recv-Q               Send-Q               \
    Local Address          Foreign Address       State       Inode      PID/Program name\n";

pub fn netstat(process: u32, name: &str, taken: &Taken) -> String {
    let mut text = String::new();
    let name = if name.is_empty() { "-".to_owned() } else { printable(name) };
    // Without inode: a connection that no descriptor belongs to.
    for socket in taken.sockets.iter().filter(|socket| socket.inode > 0) {
        let (protocol, state) = match socket.kind {
            STREAM => ("tcp", state(socket.tcp_state)),
            DATAGRAM => ("udp", ""),
            RAW => ("raw", ""),
            _ => ("???", ""),
        };
        let offloaded = if socket.flags & OFFLOADED > 0 { "Yes" } else { "No" };
        let _ = writeln!(
            text,
            "{protocol:<5} {offloaded:<9} {:<20} {:<20} {} {}{state:<11} {:<10} {process}/{name}",
            socket.ready_bytes,
            socket.unsent_bytes,
            local(socket),
            foreign(socket),
            socket.inode,
        );
    }
    text
}

fn local(socket: &Socket) -> String {
    if socket.local == [0; 4] && socket.local_port == 0 {
        return " ".repeat(22);
    }
    column(end(socket.local_end()))
}

fn foreign(socket: &Socket) -> String {
    if socket.peer == [0; 4] && socket.peer_port == 0 {
        return column("0.0.0.0:*".into());
    }
    column(end(socket.peer_end()))
}

fn end(end: SocketAddr) -> String {
    format!("{}:{:<5}", ip_of(end), end.port())
}

/// As the original pads: no space behind an address that fills the column.
fn column(text: String) -> String {
    if text.len() < 21 { format!("{text:<21} ") } else { text }
}

/// Names of the kernel's numbers.
pub fn state(number: u32) -> &'static str {
    match number {
        1 => "ESTABLISHED",
        2 => "SYN_SENT",
        3 | 12 => "SYN_RCVD",
        4 => "FIN_WAIT_1",
        5 => "FIN_WAIT_2",
        6 => "TIME_WAIT",
        8 => "CLOSE_WAIT",
        9 => "LAST_ACK",
        10 => "LISTEN",
        11 => "CLOSING",
        _ => "CLOSED",
    }
}
