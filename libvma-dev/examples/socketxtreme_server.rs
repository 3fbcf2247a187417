//! An echo server without receive calls: one ring tells of packets, connections and their ends.
//!
//! usage: socketxtreme_server ADDRESS:PORT COUNT
//!
//! It ends when so many connections have ended. It needs libvma, and VMA_SOCKETXTREME=1 in the environment.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;

use libvma_dev::vma::Vma;

fn run(address: &str, count: usize) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    let needs = || io::Error::other("it needs libvma and VMA_SOCKETXTREME=1");
    let ring = Vma::get().ok_or_else(needs)?.ring(&listener).map_err(|_| needs())?;
    let (mut connections, mut packets, mut ends) = (0usize, 0usize, 0);
    let mut streams: HashMap<u64, TcpStream> = HashMap::new();
    println!("ready");
    while ends < count {
        for completion in ring.poll()? {
            let (number, is_over) =
                (completion.user_data, completion.is_end() || completion.is_error());
            if let Some(accepted) = completion.accepted {
                connections += 1;
                streams.insert(number, TcpStream::from(accepted.connection));
            }
            // Each packet is given back when it has been sent.
            if let (Some(packet), Some(stream)) = (completion.packet, streams.get_mut(&number)) {
                packets += 1;
                packet.parts().try_for_each(|part| stream.write_all(part))?;
            }
            if is_over && streams.remove(&number).is_some() {
                ends += 1;
            }
        }
    }
    let packets = if packets >= connections { "packets came" } else { "packets are missing" };
    println!("{connections} connections, {packets}");
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (Some(address), Some(Ok(count))) = (words.first(), words.get(1).map(|word| word.parse()))
    else {
        eprintln!("usage: socketxtreme_server ADDRESS:PORT COUNT");
        return ExitCode::from(2);
    };
    match run(address, count) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("socketxtreme_server: {error}");
            ExitCode::FAILURE
        }
    }
}
