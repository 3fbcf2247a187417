//! Sends each datagram back from the memory in which the library lends it.
//!
//! usage: zcopy_echo ADDRESS:PORT COUNT
//!
//! It ends after so many. Without libvma it works as well, from a buffer of its own.

#![forbid(unsafe_code)]

use std::io;
use std::net::UdpSocket;
use std::process::ExitCode;

use libvma_dev::vma::{Data, Vma};

fn run(address: &str, count: u64) -> io::Result<()> {
    let socket = UdpSocket::bind(address)?;
    let vma = Vma::get();
    let (mut lent, mut copied) = (0, 0);
    let mut buffer = [0; 65_536];
    println!("ready");
    while lent + copied < count {
        let Some(vma) = &vma else {
            let (len, source) = socket.recv_from(&mut buffer)?;
            socket.send_to(&buffer[..len], source)?;
            copied += 1;
            continue;
        };
        let received = vma.receive(&socket, &mut buffer)?;
        let Some(source) = received.source else { continue };
        match received.data {
            // Each packet is given back when it has been sent.
            Data::Lent(packets) => {
                for packet in packets {
                    socket.send_to(&packet.bytes(), source)?;
                    lent += 1;
                }
            }
            Data::Copied(bytes) => {
                socket.send_to(bytes, source)?;
                copied += 1;
            }
        }
    }
    println!("{lent} lent, {copied} copied");
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (Some(address), Some(Ok(count))) = (words.first(), words.get(1).map(|word| word.parse()))
    else {
        eprintln!("usage: zcopy_echo ADDRESS:PORT COUNT");
        return ExitCode::from(2);
    };
    match run(address, count) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("zcopy_echo: {error}");
            ExitCode::FAILURE
        }
    }
}
