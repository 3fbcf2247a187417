//! Receives a multicast feed in a callback: finds gaps, and how long each message took from its arrival to the callback.
//!
//! usage: market_data GROUP:PORT INTERFACE-ADDRESS LAST
//!
//! A message begins with its number, 4 bytes in network byte order. The program ends after number LAST. It needs libvma. The messages that
//! begin a burst are kept, and looked at afterwards.

#![forbid(unsafe_code)]

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use libvma_dev::vma::{Arrival, Packet, Verdict, Vma};

/// After such a number of messages.
const BURST: u32 = 16;

#[derive(Default)]
struct Feed {
    next: u32,
    messages: u32,
    missing: u32,
    stamped: u32,
    longest: Duration,
    kept: Vec<Packet>,
}

impl Feed {
    fn take(&mut self, arrival: Arrival<'_>) {
        let bytes = arrival.bytes();
        let Some(number) = bytes.first_chunk().map(|number| u32::from_be_bytes(*number)) else {
            return;
        };
        self.messages += 1;
        self.missing += number.saturating_sub(self.next);
        self.next = number + 1;
        if let Some(stamp) = arrival.hardware_stamp().or(arrival.software_stamp()) {
            let waited = SystemTime::now().duration_since(stamp).unwrap_or_default();
            self.stamped += 1;
            self.longest = self.longest.max(waited);
        }
        if number % BURST == 0 {
            self.kept.push(arrival.hold());
        }
    }
}

fn run(group: SocketAddrV4, interface: Ipv4Addr, last: u32) -> io::Result<()> {
    let Some(vma) = Vma::get() else {
        return Err(io::Error::other("run it as LD_PRELOAD=libvma.so market_data ..."));
    };
    let socket = UdpSocket::bind(group)?;
    socket.join_multicast_v4(group.ip(), &interface)?;
    socket.set_read_timeout(Some(Duration::from_millis(10)))?;
    let feed = Arc::new(Mutex::new(Feed::default()));
    let lock = || feed.lock().unwrap_or_else(PoisonError::into_inner);
    let of_callback = Arc::clone(&feed);
    let socket = vma.filter(socket).start(move |arrival| {
        of_callback.lock().unwrap_or_else(PoisonError::into_inner).take(arrival);
        Verdict::Drop
    })?;
    println!("ready");
    while lock().next <= last {
        // The callback takes all that comes by the library. What came by the kernel is received.
        match socket.recv(&mut [0; 2048]) {
            Ok(_) => println!("a message came by the kernel"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let feed = lock();
    println!("{} messages, {} missing, {} stamped", feed.messages, feed.missing, feed.stamped);
    let kept: Vec<u8> =
        feed.kept.iter().filter_map(|packet| packet.bytes().get(3).copied()).collect();
    println!("kept {kept:?}");
    eprintln!("at most {:?} from arrival to callback", feed.longest);
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match words.as_slice() {
        [group, interface, last] => (group.parse().ok())
            .and_then(|group| Some((group, interface.parse().ok()?, last.parse().ok()?))),
        _ => None,
    };
    let Some((group, interface, last)) = parsed else {
        eprintln!("usage: market_data GROUP:PORT INTERFACE-ADDRESS LAST");
        return ExitCode::from(2);
    };
    match run(group, interface, last) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("market_data: {error}");
            ExitCode::FAILURE
        }
    }
}
