//! `tokio-echo server ADDRESS` and `tokio-echo client ADDRESS SECONDS`, on tokio's runtime of many threads.
//!
//! The client prints `rate N p50 N p99 N`: exchanges of 64 bytes a second, and microseconds.

use std::io::{Error, Result};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const CONNECTIONS: usize = 16;
const SIZE: usize = 64;

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["server", address] => serve(address).await,
        ["client", address, seconds] => {
            let seconds = seconds.parse().map_err(Error::other)?;
            load(address, Duration::from_secs(seconds)).await
        }
        _ => Err(Error::other("usage: tokio-echo server ADDRESS | client ADDRESS SECONDS")),
    }
}

async fn serve(address: &str) -> Result<()> {
    let listener = TcpListener::bind(address).await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let mut buffer = [0; 16 * 1024];
            loop {
                match stream.read(&mut buffer).await {
                    Ok(0) | Err(_) => return,
                    Ok(count) if stream.write_all(&buffer[..count]).await.is_err() => return,
                    Ok(_) => {}
                }
            }
        });
    }
}

/// One connection: how long each exchange took, in nanoseconds.
async fn exchange(address: String, number: usize, time: Duration) -> Result<Vec<u64>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let end = Instant::now() + time;
    let (mut taken, mut count) = (Vec::new(), 0_u64);
    while Instant::now() < end {
        let mut message = [u8::try_from(number).unwrap_or(0); SIZE];
        message[..8].copy_from_slice(&count.to_le_bytes());
        let start = Instant::now();
        stream.write_all(&message).await?;
        let mut answer = [0; SIZE];
        stream.read_exact(&mut answer).await?;
        if answer != message {
            return Err(Error::other("the echo is something else than what was sent"));
        }
        taken.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        count += 1;
    }
    Ok(taken)
}

async fn load(address: &str, time: Duration) -> Result<()> {
    let mut connections = JoinSet::new();
    for number in 0..CONNECTIONS {
        connections.spawn(exchange(address.to_owned(), number, time));
    }
    let mut taken = Vec::new();
    while let Some(one) = connections.join_next().await {
        taken.extend(one.map_err(Error::other)??);
    }
    taken.sort_unstable();
    let rate = taken.len() as f64 / time.as_secs_f64();
    let [p50, p99] = [50, 99].map(|percent| taken[taken.len() * percent / 100] as f64 / 1000.0);
    println!("rate {rate:.0} p50 {p50:.1} p99 {p99:.1}");
    Ok(())
}
