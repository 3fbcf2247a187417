//! Receives the quotes of one symbol; the others are dropped by a receive callback before they are queued.
//!
//! usage: filter ADDRESS:PORT SYMBOL        a quote is a datagram that begins with its symbol and a space
//!
//! It ends when the quote is "end". Without libvma it works as well, and looks after each receive call.

#![forbid(unsafe_code)]

use std::io;
use std::net::UdpSocket;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libvma_dev::vma::{Verdict, Vma};

fn is_of(symbol: &str, quote: &[u8]) -> bool {
    quote.strip_prefix(symbol.as_bytes()).is_some_and(|rest| rest.starts_with(b" "))
}

fn receive(socket: &UdpSocket, symbol: &str) -> io::Result<u64> {
    let mut buffer = [0; 2048];
    let mut others = 0;
    println!("ready");
    loop {
        let len = socket.recv(&mut buffer)?;
        let quote = &buffer[..len];
        if !is_of(symbol, quote) {
            others += 1;
            continue;
        }
        println!("{}", String::from_utf8_lossy(quote));
        if quote.ends_with(b" end") {
            return Ok(others);
        }
    }
}

fn run(address: &str, symbol: &str) -> io::Result<()> {
    let socket = UdpSocket::bind(address)?;
    let Some(vma) = Vma::get() else {
        let others = receive(&socket, symbol)?;
        println!("{others} others, without libvma");
        return Ok(());
    };
    let dropped = Arc::new(AtomicU64::new(0));
    let (counter, wanted) = (Arc::clone(&dropped), symbol.to_owned());
    let socket = vma.filter(socket).start(move |arrival| {
        if is_of(&wanted, &arrival.bytes()) {
            return Verdict::Receive;
        }
        counter.fetch_add(1, Ordering::Relaxed);
        Verdict::Drop
    })?;
    let others = receive(&socket, symbol)?;
    println!("{} dropped, {others} others", dropped.load(Ordering::Relaxed));
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, symbol] = words.as_slice() else {
        eprintln!("usage: filter ADDRESS:PORT SYMBOL");
        return ExitCode::from(2);
    };
    match run(address, symbol) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("filter: {error}");
            ExitCode::FAILURE
        }
    }
}
