//! The metrics by HTTP: GET /metrics, everything else is refused. A client has a few seconds and some
//! kilobytes; many of them, slow ones or such that speak something else do not keep others waiting.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::message::{complain, tell};
use crate::openmetrics;
use crate::sample::Sample;

/// For a request to come, and again for the answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clients at once; more are turned away.
const CLIENTS: usize = 32;
/// Bytes of a request's head.
const HEAD: usize = 8192;
const HEADERS: usize = 64;
/// How soon a signal is seen.
const PULSE: Duration = Duration::from_millis(100);

/// Until SIGINT or SIGTERM.
pub fn run(address: SocketAddr, collect: impl FnMut() -> Vec<Sample>) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("no signal handler")?;
    }
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    let bound = listener.local_addr()?;
    if !bound.ip().is_loopback() {
        complain(&format!("{bound} is no loopback address: others can read the metrics"));
    }
    tell(&format!("metrics at http://{bound}/metrics"))?;
    serve(listener, &stop, collect)
}

/// Whoever wants a page sends where to.
type Order = SyncSender<String>;

/// The pages are made here, one after the other, because what is read from the processes is not to
/// be read by many at once.
fn serve(
    listener: TcpListener,
    stop: &AtomicBool,
    mut collect: impl FnMut() -> Vec<Sample>,
) -> anyhow::Result<()> {
    let (orders, ordered) = sync_channel::<Order>(CLIENTS);
    std::thread::Builder::new().spawn(move || accept(&listener, &orders))?;
    while !stop.load(Ordering::Relaxed) {
        let Some(order) = next(&ordered)? else { continue };
        // Who came meanwhile gets the same page.
        let page = openmetrics::text(&collect());
        let others: Vec<Order> = ordered.try_iter().collect();
        for order in others.into_iter().chain([order]) {
            let _ = order.try_send(page.clone());
        }
    }
    Ok(())
}

fn next(ordered: &Receiver<Order>) -> anyhow::Result<Option<Order>> {
    match ordered.recv_timeout(PULSE) {
        Ok(order) => Ok(Some(order)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => anyhow::bail!("the listener is gone"),
    }
}

/// As long as the process lives: nothing can call a thread back from accept(2).
fn accept(listener: &TcpListener, orders: &SyncSender<Order>) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Out of descriptors, for example.
            std::thread::sleep(PULSE);
            continue;
        };
        if clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS {
            clients.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (orders, counted) = (orders.clone(), Arc::clone(&clients));
        let answering = std::thread::Builder::new().spawn(move || {
            // A client that goes away is none of our errors.
            let _ = answer(&stream, &orders);
            counted.fetch_sub(1, Ordering::Relaxed);
        });
        if answering.is_err() {
            clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn answer(mut stream: &TcpStream, orders: &SyncSender<Order>) -> std::io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let response = match read_head(stream, deadline)? {
        Head::Metrics { body } => match page(orders, PATIENCE) {
            Some(page) => response("200 OK", openmetrics::CONTENT_TYPE, &page, body),
            None => plain("503 Service Unavailable", "the processes do not answer\n"),
        },
        Head::OtherPath => plain("404 Not Found", "there is only /metrics\n"),
        Head::OtherMethod => plain("405 Method Not Allowed", "only GET and HEAD\n"),
        Head::Late => plain("408 Request Timeout", "too slow\n"),
        Head::TooLong => plain("431 Request Header Fields Too Large", "too long\n"),
        Head::Garbage => plain("400 Bad Request", "this is no HTTP request\n"),
    };
    write_all(stream, response.as_bytes(), Instant::now() + PATIENCE)?;
    stream.shutdown(Shutdown::Write)?;
    // What was sent and not read would make the kernel reset the connection, and the answer be lost.
    let end = Instant::now() + PULSE * 5;
    let mut rest = [0; 1024];
    while let Some(left) = left_until(end) {
        stream.set_read_timeout(Some(left))?;
        if stream.read(&mut rest)? == 0 {
            break;
        }
    }
    Ok(())
}

fn page(orders: &SyncSender<Order>, patience: Duration) -> Option<String> {
    let (order, page) = sync_channel(1);
    match orders.try_send(order) {
        Ok(()) => page.recv_timeout(patience).ok(),
        Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => None,
    }
}

enum Head {
    Metrics {
        /// Not for HEAD.
        body: bool,
    },
    OtherPath,
    OtherMethod,
    Late,
    TooLong,
    Garbage,
}

fn read_head(mut stream: &TcpStream, deadline: Instant) -> std::io::Result<Head> {
    let mut bytes = [0; HEAD];
    let mut len = 0;
    loop {
        let Some(left) = left_until(deadline) else { return Ok(Head::Late) };
        stream.set_read_timeout(Some(left))?;
        let Some(room) = bytes.get_mut(len..).filter(|room| !room.is_empty()) else {
            return Ok(Head::TooLong);
        };
        match stream.read(room) {
            Ok(0) => return Ok(Head::Garbage),
            Ok(count) => len += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if is_late(&error) => return Ok(Head::Late),
            Err(error) => return Err(error),
        }
        if let Some(head) = parse(bytes.get(..len).unwrap_or_default()) {
            return Ok(head);
        }
    }
}

/// None if it is not complete.
fn parse(bytes: &[u8]) -> Option<Head> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return None,
        Err(httparse::Error::TooManyHeaders) => return Some(Head::TooLong),
        Err(_) => return Some(Head::Garbage),
    }
    let path = request.path.unwrap_or_default();
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    Some(match (request.method, path) {
        (Some("GET"), "/metrics") => Head::Metrics { body: true },
        (Some("HEAD"), "/metrics") => Head::Metrics { body: false },
        (Some("GET" | "HEAD"), _) => Head::OtherPath,
        _ => Head::OtherMethod,
    })
}

fn plain(status: &str, text: &str) -> String {
    response(status, "text/plain; charset=utf-8", text, true)
}

fn response(status: &str, kind: &str, text: &str, body: bool) -> String {
    let length = text.len();
    let text = if body { text } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{text}"
    )
}

/// A time limit of the socket is for each write; this one is for all.
fn write_all(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let Some(left) = left_until(deadline) else { return Err(ErrorKind::TimedOut.into()) };
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn left_until(deadline: Instant) -> Option<Duration> {
    deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests;
