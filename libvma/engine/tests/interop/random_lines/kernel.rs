//! Linux's side of a random time line.

use std::sync::atomic::{AtomicU16, Ordering};

use super::{Opening, Outcome, Step};
use crate::notation::number;
use crate::time_lines::TimeLine;
use crate::time_lines::peer::Peer;
use crate::tun::Tun;

const STATES: [&str; 13] = [
    "none",
    "established",
    "syn-sent",
    "syn-received",
    "fin-wait-1",
    "fin-wait-2",
    "close",
    "close",
    "close-wait",
    "last-ack",
    "listen",
    "closing",
    "syn-received",
];

static NEXT_PORT: AtomicU16 = AtomicU16::new(0);

/// Plays the steps on a socket of the namespace that the calling thread is in.
pub fn play(
    tun: Tun,
    opening: Opening,
    settings: &'static str,
    steps: &[Step],
) -> (Tun, Vec<Outcome>) {
    let line = TimeLine::of_settings(settings);
    line.set_system();
    let mut peer = Peer::new(tun, &line);
    peer.set_port(10_000 + NEXT_PORT.fetch_add(1, Ordering::Relaxed) % 50_000);
    if opening == Opening::Passive {
        peer.listen();
    }
    let mut at = 0.0;
    let mut outcomes = Vec::new();
    for step in steps {
        peer.wait_until(at);
        let result = act(&mut peer, &step.text);
        at += step.pause as f64;
        peer.wait_until(at - 1.0);
        outcomes.push(outcome(&mut peer, result));
    }
    // Nothing of this connection reaches the next one's time line.
    if peer.socket.is_some() {
        peer.linger_zero();
        peer.socket = None;
    }
    (peer.tun, outcomes)
}

fn act(peer: &mut Peer, text: &str) -> String {
    if let Some(segment) = text.strip_prefix("< ") {
        peer.send(segment);
        return String::new();
    }
    if peer.socket.is_none() {
        return String::new();
    }
    if !peer.accept_first() {
        return String::new();
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["write", len] => write(peer, number(len), 0),
        ["write", len, how] => {
            let flags = if how == "more" { libc::MSG_MORE } else { libc::MSG_OOB };
            write(peer, number(len), flags)
        }
        ["read", len] => read(peer, number(len)),
        ["shutdown"] => shutdown(peer, libc::SHUT_WR),
        ["shutrd"] => shutdown(peer, libc::SHUT_RD),
        ["error"] => {
            let error = get(peer, libc::SOL_SOCKET, libc::SO_ERROR);
            if error == 0 { "0".into() } else { errno(error) }
        }
        _ => {
            peer.call(text);
            String::new()
        }
    }
}

fn outcome(peer: &mut Peer, result: String) -> Outcome {
    let sent = peer.sent.drain(..).map(|sent| {
        let more = sent.more.iter().filter(|word| *word == "ect" || word.starts_with("te="));
        // Linux repeats the blocks with all that it sends.
        let is_bare = sent.text.contains("+0 ") && !sent.text.starts_with(['F', 'R']);
        let mut text = sent.text.clone();
        if !is_bare && let Some(at) = text.find(" [") {
            text.truncate(at);
        }
        if text.starts_with("RAE") {
            text.remove(2);
        }
        // The number 0 of a reset that answers a segment without an acknowledgment.
        if let Some((number, rest)) = text.strip_prefix("RA ").and_then(|it| it.split_once('+'))
            && number.len() > 8
        {
            text = format!("RA zero+{rest}");
        }
        more.fold(text, |text, word| text + " " + word)
    });
    let sent = sent.collect();
    if peer.socket.is_none() || peer.listens {
        return Outcome { sent, result, ..Outcome::default() };
    }
    let state = (get(peer, libc::IPPROTO_TCP, libc::TCP_INFO) & 0xff) as usize;
    Outcome {
        sent,
        result,
        state: STATES[state].into(),
        poll: poll(peer),
        queued: count(peer, libc::FIONREAD),
        unacknowledged: count(peer, libc::TIOCOUTQ),
    }
}

fn told(result: isize) -> String {
    if result >= 0 {
        return result.to_string();
    }
    errno(std::io::Error::last_os_error().raw_os_error().unwrap_or_default())
}

fn write(peer: &Peer, len: u32, flags: i32) -> String {
    let data = vec![7u8; len as usize];
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: the pointer is to so many bytes.
    told(unsafe { libc::send(peer.fd(), data.as_ptr().cast(), data.len(), flags) })
}

fn read(peer: &Peer, len: u32) -> String {
    let mut data = vec![0u8; len as usize];
    // SAFETY: the pointer is to so many bytes.
    let result = unsafe { libc::recv(peer.fd(), data.as_mut_ptr().cast(), data.len(), 0) };
    match usize::try_from(result) {
        Ok(count) if count > 0 => super::digest(&data[..count]),
        _ => told(result),
    }
}

fn shutdown(peer: &Peer, how: i32) -> String {
    // SAFETY: no pointers.
    let result = unsafe { libc::shutdown(peer.fd(), how) };
    if result == 0 { String::new() } else { told(result as isize) }
}

fn get(peer: &Peer, level: i32, name: i32) -> i32 {
    let mut value = 0i32;
    let (pointer, mut len) = ((&raw mut value).cast(), size_of::<i32>() as u32);
    // SAFETY: the pointers are to integers of that size.
    unsafe { libc::getsockopt(peer.fd(), level, name, pointer, &raw mut len) };
    value
}

fn count(peer: &Peer, request: u64) -> u32 {
    let mut value = 0i32;
    // SAFETY: the pointer is to an integer, which these requests set.
    unsafe { libc::ioctl(peer.fd(), request, &raw mut value) };
    value as u32
}

fn poll(peer: &Peer) -> String {
    let events = libc::POLLIN | libc::POLLPRI | libc::POLLOUT | libc::POLLRDHUP;
    let mut poll = libc::pollfd { fd: peer.fd(), events, revents: 0 };
    // SAFETY: one descriptor.
    unsafe { libc::poll(&raw mut poll, 1, 0) };
    let names = [
        (libc::POLLIN, "in"),
        (libc::POLLPRI, "pri"),
        (libc::POLLOUT, "out"),
        (libc::POLLRDHUP, "rdhup"),
        (libc::POLLERR, "err"),
        (libc::POLLHUP, "hup"),
    ];
    let set = names.iter().filter(|(bit, _)| poll.revents & bit != 0).map(|(_, name)| *name);
    set.collect::<Vec<_>>().join(",")
}

fn errno(number: i32) -> String {
    let name = match number {
        libc::EAGAIN => "EAGAIN",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::ECONNRESET => "ECONNRESET",
        libc::ENOTCONN => "ENOTCONN",
        libc::EPIPE => "EPIPE",
        libc::ETIMEDOUT => "ETIMEDOUT",
        _ => return format!("errno {number}"),
    };
    name.into()
}
