//! The thread of one connection: it identifies the process, obeys its requests, and has its ring.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use libvma_dev::grant::{self, Answer, Request, kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, shutdown,
};
use zerocopy::IntoBytes;

use super::remains::Remains;
use super::ring::{self, Ring};
use super::who::Who;
use super::{Place, Refused, Room, link, pace, tap};
use crate::endpoint::let_descriptors_come;
use crate::namespace::Namespace;
use crate::peer::Peer;

/// Between two reviews, and how long a process may think before it asks.
const REVIEW: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(5);

/// How long after its end the memory of a ring may be there.
const FREEING: Duration = Duration::from_millis(500);
/// Addresses and interfaces may change all the time.
const NEXT: Duration = Duration::from_millis(100);

/// The process at the other end.
struct Caller {
    who: Who,
    namespace: Rc<Namespace>,
}

/// Until the connection ends.
pub fn serve(place: &Place, connection: OwnedFd, who: Who) {
    let (uid, pid) = (who.uid, who.pid);
    place.await_turn(uid, pace::OF_CALL);
    match introduce(who) {
        Ok(caller) => {
            let mut ring = None;
            if let Err(error) = obey_all(place, &connection, &caller, &mut ring) {
                log::debug!("user {uid} [{pid}]: the connection ends: {error}");
            }
            // Until its connection ends the process reads what comes.
            if let Some(ring) = ring {
                log::info!("user {uid} [{pid}]: its ring on {} ends", ring.interface());
                let remains = Remains { uid, maps: ring.maps(), memory: ring.memory() };
                drop(ring);
                place.give_back(Some(remains));
            }
        }
        Err(error) => {
            place.shared().log_refusal(&format!("who asks for a ring is not served: {error:#}"));
        }
    }
    let_descriptors_come(&connection, false);
    let _ = shutdown(&connection, Shutdown::Both);
    // Descriptors that are queued are closed with it, which may take long.
    drop(connection);
}

fn introduce(who: Who) -> anyhow::Result<Caller> {
    let peer = Peer::of(who.pid)?;
    // Of the process, not of the number that it had.
    ensure!(peer.is_of(who.uid), "[{}] is not of user {} any more", who.pid, who.uid);
    let namespace = Namespace::of(peer.pid()).context("its network namespace cannot be opened")?;
    // In a network of its own a user may have any interface, and any number of addresses.
    let owner = tap::owner_of(namespace.file())?.metadata()?;
    let own = std::fs::metadata("/proc/self/ns/user")?;
    let is_hosts = (owner.dev(), owner.ino()) == (own.dev(), own.ino());
    ensure!(is_hosts, "[{}] is in a network that a user has made", who.pid);
    ensure!(!peer.is_dead(), "it is dead already");
    Ok(Caller { who, namespace: Rc::new(namespace) })
}

fn obey_all(
    place: &Place,
    connection: &OwnedFd,
    caller: &Caller,
    ring: &mut Option<Ring>,
) -> Result<(), Errno> {
    let called = Instant::now();
    let (mut reviewed, mut review) = (called, called + REVIEW);
    loop {
        let now = Instant::now();
        if now >= review {
            let is_of_use = match ring {
                Some(ring) => ring.review(),
                None => now.saturating_duration_since(called) < PATIENCE,
            };
            if !is_of_use {
                return Err(Errno::TIMEDOUT);
            }
            (reviewed, review) = (now, now + REVIEW);
        }
        // A change that hastens the next review is known.
        let is_due = review <= reviewed + NEXT;
        let news = ring.as_ref().filter(|_| !is_due).map(Ring::news);
        match await_word(place, connection, news, review)? {
            Word::Request => {}
            Word::Change => {
                review = review.min(reviewed + NEXT);
                continue;
            }
            Word::None => continue,
        }
        let Some((request, shown)) = receive(connection)? else { continue };
        let Some(request) = request else {
            // Not here, where the ring is there still.
            place.close(shown);
            return Err(Errno::PROTO);
        };
        place.await_turn(caller.who.uid, cost(request.kind));
        let (done, is_closed) = obey(place, connection, caller, (&request, shown), ring);
        answer(place, connection, caller, (request.kind, done), ring.as_ref())?;
        if !is_closed {
            return Err(Errno::BUSY);
        }
    }
}

/// The event that a thread has waited for.
enum Word {
    Request,
    /// Addresses or interfaces are others.
    Change,
    None,
}

fn await_word(
    place: &Place,
    connection: &OwnedFd,
    news: Option<BorrowedFd<'_>>,
    until: Instant,
) -> Result<Word, Errno> {
    let left = until.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).ok();
    let ending = PollFd::new(&place.shared().ending, PollFlags::IN);
    let mut wanted = vec![PollFd::new(connection, PollFlags::IN), ending];
    wanted.extend(news.map(|news| PollFd::from_borrowed_fd(news, PollFlags::IN)));
    match poll(&mut wanted, left.as_ref()) {
        Ok(0) | Err(Errno::INTR) => return Ok(Word::None),
        ready => ready?,
    };
    let is_ready = |place: usize| wanted.get(place).is_some_and(|it| !it.revents().is_empty());
    match (is_ready(0), is_ready(1), is_ready(2)) {
        (_, true, _) => Err(Errno::CANCELED),
        (true, ..) => Ok(Word::Request),
        (_, _, true) => Ok(Word::Change),
        _ => Ok(Word::None),
    }
}

fn cost(kind: u32) -> u32 {
    if kind == kind::OPEN { pace::OF_RING } else { pace::OF_FLOW }
}

/// The result, and whether all descriptors that came with the request are closed. The daemon holds the socket no more when the process has its answer.
fn obey(
    place: &Place,
    connection: &OwnedFd,
    caller: &Caller,
    (request, shown): (&Request, Vec<OwnedFd>),
    ring: &mut Option<Ring>,
) -> (Result<(), Refused>, bool) {
    if let (kind::ADD, Some(ring)) = (request.kind, &mut *ring) {
        let done = ring.add(request, shown);
        return (done, ring.close_shown());
    }
    let is_closed = shown.is_empty() || place.close(shown);
    let done = match (request.kind, ring) {
        (kind::OPEN, ring @ None) => {
            open(place, connection, caller, request).map(|opened| *ring = Some(opened))
        }
        (kind::OPEN, Some(_)) => Err(Refused::new(Errno::ALREADY, "the connection has a ring")),
        (_, None) => Err(Refused::new(Errno::INVAL, "a ring must be asked for first")),
        (kind::REMOVE, Some(ring)) => ring.remove(request),
        (kind::REFRESH, Some(ring)) => ring.refresh(),
        (kind::STRANGER, Some(ring)) => ring.leave_to_kernel(request),
        (other, Some(_)) => Err(Refused::new(Errno::INVAL, format!("request {other} is unknown"))),
    };
    (done, is_closed)
}

fn answer(
    place: &Place,
    connection: &OwnedFd,
    caller: &Caller,
    (asked, done): (u32, Result<(), Refused>),
    ring: Option<&Ring>,
) -> Result<(), Errno> {
    match (done, ring) {
        // The descriptors of a ring that was granted come with the answers.
        (Ok(()), Some(ring)) if asked == kind::OPEN => ring
            .handed()
            .iter()
            .flatten()
            .try_for_each(|pair| send(connection, &Answer::done(), pair)),
        (Ok(()), _) => send(connection, &Answer::done(), &[]),
        (Err(refused), _) => {
            place.shared().log_refusal(&format!("user {}: {}", caller.who.uid, refused.why));
            send(connection, &Answer::refusal(refused.errno.raw_os_error(), &refused.why), &[])
        }
    }
}

fn open(
    place: &Place,
    connection: &OwnedFd,
    caller: &Caller,
    request: &Request,
) -> Result<Ring, Refused> {
    if request.version != grant::VERSION {
        let (theirs, ours) = (request.version, grant::VERSION);
        let why = format!("the library speaks version {theirs} of the grants, vmad {ours}");
        return Err(Refused::new(Errno::PROTONOSUPPORT, why));
    }
    let name = link::name(&caller.namespace, request.interface)
        .map_err(|error| Refused::new(Errno::NODEV, format!("{error:#}")))?;
    let interface = (caller.namespace.identity(), request.interface);
    let memory = ring::memory(request)?;
    let room = || Room { interface, memory };
    // The kernel takes a moment to free what was before, of a process that is started again.
    let end = Instant::now() + FREEING;
    while let Err(refused) = place.reserve(&caller.who, &name, room()) {
        if refused.errno != Errno::DQUOT || !place.has_remains(&caller.who) || Instant::now() > end
        {
            return Err(refused);
        }
        std::thread::sleep(super::PAUSE);
    }
    let ring = Ring::open(&caller.namespace, &name, request, place)
        .inspect_err(|_| place.give_back(None))?;
    let_descriptors_come(connection, true);
    let (uid, pid) = (caller.who.uid, caller.who.pid);
    let forwards = if link::forwards(&caller.namespace) { FORWARDS } else { "" };
    log::info!("user {uid} [{pid}]: a ring on {name}{forwards}");
    Ok(ring)
}

const FORWARDS: &str = "; its network forwards packets: see vmad(8) on what translates addresses";

/// Says no to somebody who gets no thread.
pub fn refuse(connection: &OwnedFd, refused: &Refused) {
    // The process may be gone already.
    let answer = Answer::refusal(refused.errno.raw_os_error(), &refused.why);
    let _ = send(connection, &answer, &[]);
    // Closed with something unread, the connection would be reset, and the answer lost.
    let _ = shutdown(connection, Shutdown::Both);
    while matches!(receive(connection), Ok(Some(_))) {}
}

/// A request, if it is one, and the descriptors that came with it.
type Received = (Option<Request>, Vec<OwnedFd>);

/// The next request, with all descriptors that came with it: one that found no room would be closed here. None if there is none now.
fn receive(connection: &OwnedFd) -> Result<Option<Received>, Errno> {
    let mut bytes = [0; size_of::<Request>() + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received =
        rustix::net::recvmsg(connection, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    let received = match received {
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        received => received?,
    };
    let mut shown = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            shown.extend(descriptors);
        }
    }
    if received.bytes == 0 && shown.is_empty() {
        return Err(Errno::CONNRESET);
    }
    let request = bytes.get(..received.bytes).and_then(Request::of_message);
    Ok(Some((request, shown)))
}

/// In one message (SCM_MAX_FD).
const MOST_DESCRIPTORS: usize = 253;

/// A process that does not read its answers loses its ring: EAGAIN.
fn send(
    connection: &OwnedFd,
    answer: &Answer,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(connection, &[IoSlice::new(answer.as_bytes())], &mut control, flags)?;
    Ok(())
}
