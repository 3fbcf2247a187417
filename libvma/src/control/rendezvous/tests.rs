//! Two sides in one process, over real sockets. Keys are numbers that no socket has.

mod bells;

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd};

use super::*;
use crate::sys::unix_socket;

#[derive(Default)]
struct Fake {
    refuses: bool,
    live: Vec<u32>,
    made: u32,
    ended: Vec<u32>,
    voided: u32,
    answered: u32,
    inherited: Vec<(u32, u64, Fd)>,
    bells: Vec<(u32, u32, Fd)>,
}

impl Fake {
    fn link(&mut self) -> Option<u32> {
        self.made += 1;
        self.live.push(self.made);
        Some(self.made)
    }
}

fn event() -> Option<Fd> {
    Fd::adopt(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?).ok()
}

impl Host for Fake {
    type Memory = Fd;
    type Link = u32;

    fn prepare(&mut self) -> Option<Fd> {
        event()
    }

    fn share<'a>(&'a self, memory: &'a Fd) -> BorrowedFd<'a> {
        memory.as_fd()
    }

    fn bell<'a>(&'a self, memory: &'a Fd) -> BorrowedFd<'a> {
        memory.as_fd()
    }

    fn make(&mut self, _memory: Fd, _bell: Fd) -> Option<u32> {
        self.link()
    }

    fn take(&mut self, _memory: Fd, _bell: Fd) -> Option<(u32, Fd)> {
        if self.refuses { None } else { self.link().zip(event()) }
    }

    fn is_alive(&mut self, link: u32) -> bool {
        self.live.contains(&link)
    }

    fn end(&mut self, link: u32) {
        self.live.retain(|live| *live != link);
        self.ended.push(link);
    }

    fn inherit(&mut self, link: u32, connection: u64, half: Fd) {
        self.inherited.push((link, connection, half));
    }

    fn take_bell(&mut self, link: u32, number: u32, bell: Fd) {
        self.bells.push((link, number, bell));
    }

    fn answered(&mut self, _: Self::Link) {
        self.answered += 1;
    }

    fn void_answers(&mut self) {
        self.voided += 1;
    }

    fn somebody_found(&mut self) {
        self.voided += 1;
    }
}

struct Side {
    rendezvous: Rendezvous<Fd, u32>,
    host: Fake,
}

impl Side {
    fn new() -> Side {
        Side { rendezvous: Rendezvous::open().unwrap(), host: Fake::default() }
    }

    fn post(&mut self, key: Key) -> Result<(), Errno> {
        self.rendezvous.post(&mut self.host, key)
    }

    fn ask(&mut self, key: Key, now: u64) -> Known<u32> {
        self.rendezvous.ask(&mut self.host, key, now)
    }

    fn serve(&mut self, now: u64) {
        self.rendezvous.serve(&mut self.host, now);
    }

    fn expire(&mut self, now: u64) {
        self.rendezvous.expire(&mut self.host, now);
    }
}

fn key() -> Key {
    static LAST: AtomicU64 = AtomicU64::new(0);
    // Inodes of sockets have 32 bits.
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    Key(1 << 63 | u64::from(std::process::id()) << 24 | number)
}

const NOBODY: Known<u32> = Known::Nobody { until: NEGATIVE_NANOS };

fn linked() -> (Side, Side, Key) {
    let (mut server, mut client, key) = (Side::new(), Side::new(), key());
    server.post(key).unwrap();
    assert_eq!(client.ask(key, 0), Known::Pending { since: 0 });
    server.serve(0);
    client.serve(0);
    assert_eq!(client.ask(key, 0), Known::Link(1));
    (server, client, key)
}

#[test]
fn two_processes_find_each_other() {
    let (server, client, _) = linked();
    assert_eq!((server.host.live, client.host.live), (vec![1], vec![1]));
    // Both were told that what they knew is void.
    assert!(server.host.voided > 0 && client.host.voided > 0);
}

#[test]
fn a_second_socket_of_a_process_is_reached_by_the_same_link() {
    let (mut server, mut client, _) = linked();
    let second = key();
    server.post(second).unwrap();
    assert_eq!(client.ask(second, 0), Known::Pending { since: 0 });
    server.serve(0);
    client.serve(0);
    assert_eq!(client.ask(second, 0), Known::Link(1));
    // Either time the server was about to say that there is a link.
    assert_eq!(server.host.answered, 2);
    // And the way back.
    let own = key();
    client.post(own).unwrap();
    server.ask(own, 0);
    client.serve(0);
    server.serve(0);
    assert_eq!(server.ask(own, 0), Known::Link(1));
    assert_eq!((server.host.made, client.host.made), (1, 1));
}

#[test]
fn two_calls_at_once_make_one_link() {
    let (mut server, mut client) = (Side::new(), Side::new());
    let keys = [key(), key(), key()];
    for key in keys {
        server.post(key).unwrap();
        client.ask(key, 0);
    }
    server.serve(0);
    client.serve(0);
    for key in keys {
        assert_eq!(client.ask(key, 0), Known::Link(1));
    }
    assert_eq!((server.host.made, client.host.made), (1, 1));
}

#[test]
fn both_may_call_each_other_at_once() {
    let (mut one, mut other) = (Side::new(), Side::new());
    let (of_one, of_other) = (key(), key());
    one.post(of_one).unwrap();
    other.post(of_other).unwrap();
    one.ask(of_other, 0);
    other.ask(of_one, 0);
    for _ in 0..2 {
        one.serve(0);
        other.serve(0);
    }
    assert!(matches!(one.ask(of_other, 0), Known::Link(_)));
    assert!(matches!(other.ask(of_one, 0), Known::Link(_)));
}

#[test]
fn nobody_holds_for_a_second() {
    let (mut client, mut server, key) = (Side::new(), Side::new(), key());
    assert_eq!(client.ask(key, 0), NOBODY);
    server.post(key).unwrap();
    assert_eq!(client.ask(key, NEGATIVE_NANOS - 1), NOBODY);
    assert_eq!(client.ask(key, NEGATIVE_NANOS), Known::Pending { since: NEGATIVE_NANOS });
}

#[test]
fn a_peer_that_posts_a_socket_is_asked_at_once() {
    let (mut server, mut client, _) = linked();
    let new = key();
    assert_eq!(client.ask(new, 0), NOBODY);
    let news = client.rendezvous.news();
    server.post(new).unwrap();
    client.serve(1);
    assert_ne!(client.rendezvous.news(), news);
    assert_eq!(client.ask(new, 1), Known::Pending { since: 1 });
}

#[test]
fn an_own_socket_is_nobody_s() {
    let (mut side, key) = (Side::new(), key());
    side.post(key).unwrap();
    assert_eq!(side.ask(key, 5), Known::Nobody { until: 5 });
}

#[test]
fn the_end_of_a_process_is_noticed() {
    let (server, mut client, key) = linked();
    drop(server);
    let before = client.host.voided;
    client.serve(0);
    assert_eq!(client.host.ended, [1]);
    assert!(client.host.voided > before);
    assert_eq!(client.ask(key, 0), NOBODY);
    assert!(!client.rendezvous.has_links());
}

#[test]
fn halves_of_connections_come_before_the_end_of_the_process_that_leaves_them() {
    let (caller, mut called, _) = linked();
    let half = event().unwrap();
    let link = caller.host.live[0];
    for connection in [7, u64::MAX] {
        assert_eq!(caller.rendezvous.leave(link, connection, half.as_fd()), Ok(()));
    }
    assert_eq!(caller.rendezvous.leave(link + 9, 7, half.as_fd()), Err(Errno::NOTCONN));
    rustix::io::write(half.as_fd(), &3u64.to_ne_bytes()).unwrap();
    drop(half);
    drop(caller);
    called.serve(0);
    called.serve(0);
    let came = called.host.inherited.iter().map(|(link, connection, _)| (*link, *connection));
    assert_eq!(came.collect::<Vec<_>>(), [(called.host.made, 7), (called.host.made, u64::MAX)]);
    let mut count = [0; 8];
    rustix::io::read(called.host.inherited[0].2.as_fd(), &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 3, "it is another descriptor");
    assert_eq!(called.host.ended, [called.host.made]);
}

#[test]
fn a_peer_that_does_not_listen_is_left_no_more_than_fits() {
    let (caller, mut called, _) = linked();
    let half = event().unwrap();
    let link = caller.host.live[0];
    let leave = |connection| caller.rendezvous.leave(link, connection, half.as_fd());
    let fit = (0..100_000).take_while(|number| leave(*number).is_ok()).count() as u64;
    assert_eq!(leave(fit), Err(Errno::AGAIN));
    while called.host.inherited.len() < fit as usize {
        called.serve(0);
    }
    assert_eq!(leave(fit), Ok(()));
}

#[test]
fn all_halves_that_a_process_has_left_are_taken_if_all_are_wanted() {
    let (caller, mut called, _) = linked();
    let half = event().unwrap();
    // More than are read in one turn, after which others have theirs.
    for connection in 0..40 {
        assert_eq!(caller.rendezvous.leave(caller.host.live[0], connection, half.as_fd()), Ok(()));
    }
    drop(caller);
    called.rendezvous.serve_all(&mut called.host, 0);
    let came = called.host.inherited.iter().map(|(_, connection, _)| *connection);
    assert_eq!(came.collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
    assert_eq!(called.host.ended, [called.host.made], "and its end was heard");
}

#[test]
fn a_link_that_the_host_cut_off_is_forgotten() {
    let (mut server, mut client, key) = linked();
    client.host.live.clear();
    client.rendezvous.review(&mut client.host);
    assert!(!client.rendezvous.has_links());
    server.serve(0);
    assert_eq!(server.host.ended, [1]);
    // Without the review it would have been noticed here; a new link is made.
    assert!(matches!(client.ask(key, 0), Known::Pending { .. }));
}

#[test]
fn an_unposted_socket_is_forgotten_by_who_found_it() {
    let (mut server, mut client, key) = linked();
    server.rendezvous.unpost(key);
    let before = client.host.voided;
    client.serve(0);
    assert!(client.host.voided > before);
    assert_eq!(client.ask(key, 0), NOBODY);
    // The link stays: other sockets use it.
    assert!(client.host.ended.is_empty());
}

#[test]
fn a_name_that_is_taken_is_not_posted() {
    let (mut one, mut other, key) = (Side::new(), Side::new(), key());
    one.post(key).unwrap();
    assert_eq!(one.post(key), Ok(()));
    assert_eq!(other.post(key), Err(Errno::ADDRINUSE));
    one.rendezvous.unpost(key);
    assert_eq!(other.post(key), Ok(()));
}

#[test]
fn a_process_that_does_not_answer_is_nobody() {
    let (mut server, mut client, key) = (Side::new(), Side::new(), key());
    server.post(key).unwrap();
    client.ask(key, 0);
    assert_eq!(client.rendezvous.due(), Some(PATIENCE_NANOS));
    client.expire(PATIENCE_NANOS - 1);
    assert_eq!(client.ask(key, 5), Known::Pending { since: 0 });
    client.expire(PATIENCE_NANOS);
    let until = PATIENCE_NANOS + NEGATIVE_NANOS;
    assert_eq!(client.ask(key, PATIENCE_NANOS), Known::Nobody { until });
    assert_eq!(client.rendezvous.due(), None);
    // Its late answer meets nobody, and the link that it made ends.
    server.serve(0);
    server.serve(0);
    assert_eq!(server.host.ended, [1]);
}

#[test]
fn memory_that_is_refused_makes_no_link() {
    let (mut server, mut client, key) = (Side::new(), Side::new(), key());
    server.host.refuses = true;
    server.post(key).unwrap();
    client.ask(key, 0);
    server.serve(0);
    client.serve(0);
    assert_eq!(client.ask(key, 0), NOBODY);
    assert!(!client.rendezvous.has_links() && !server.rendezvous.has_links());
}

#[test]
fn who_says_nothing_or_nonsense_is_dropped() {
    let (mut server, key) = (Side::new(), key());
    server.post(key).unwrap();
    let silent = unix_socket::connect(&key.name()).unwrap();
    let loud = unix_socket::connect(&key.name()).unwrap();
    unix_socket::send(&loud, b"GET / HTTP/1.0", &[]).unwrap();
    let bare = unix_socket::connect(&key.name()).unwrap();
    let hello = Message::Hello { process: ProcessId([7; 16]), key };
    unix_socket::send(&bare, &hello.emit(), &[]).unwrap();
    server.serve(0);
    let ended = |connection: &Fd| {
        unix_socket::receive(connection, &mut [0; 64]).is_ok_and(|received| received.len == 0)
    };
    assert!(ended(&loud) && ended(&bare) && !ended(&silent));
    server.expire(PATIENCE_NANOS);
    assert!(ended(&silent));
    assert!(!server.rendezvous.has_links());
}

#[test]
fn a_stranger_under_a_name_of_ours_is_nobody() {
    let (mut client, key) = (Side::new(), key());
    let stranger = unix_socket::listen(&key.name(), 4).unwrap();
    client.ask(key, 0);
    let called = unix_socket::accept(&stranger).unwrap().unwrap();
    unix_socket::send(&called, &[0; LENGTH], &[]).unwrap();
    client.serve(0);
    assert_eq!(client.ask(key, 0), NOBODY);
}

#[test]
fn an_answer_about_another_socket_is_none() {
    let (mut client, asked) = (Side::new(), key());
    let stranger = unix_socket::listen(&asked.name(), 4).unwrap();
    client.ask(asked, 0);
    let called = unix_socket::accept(&stranger).unwrap().unwrap();
    let process = ProcessId([7; 16]);
    let answer = Message::Answer { process, key: key(), status: Status::Linked };
    let bell = event().unwrap();
    unix_socket::send(&called, &answer.emit(), &[bell.as_fd()]).unwrap();
    client.serve(0);
    assert_eq!(client.ask(asked, 0), NOBODY);
    assert_eq!(client.host.made, 0);
}

#[test]
fn a_peer_that_talks_nonsense_is_cut_off() {
    let (mut server, key) = (Side::new(), key());
    server.post(key).unwrap();
    let connection = unix_socket::connect(&key.name()).unwrap();
    let hello = Message::Hello { process: ProcessId([7; 16]), key };
    let (memory, bell) = (event().unwrap(), event().unwrap());
    let both = [memory.as_fd(), bell.as_fd()];
    unix_socket::send(&connection, &hello.emit(), &both).unwrap();
    server.serve(0);
    assert!(server.rendezvous.has_links());
    unix_socket::send(&connection, b"nonsense", &[]).unwrap();
    server.serve(0);
    assert_eq!(server.host.ended, [1]);
}

#[test]
fn a_flood_of_callers_uses_few_descriptors() {
    let (mut server, key) = (Side::new(), key());
    server.post(key).unwrap();
    let mut callers = Vec::new();
    for _ in 0..4 * MOST_GUESTS {
        callers.extend(unix_socket::connect(&key.name()));
        server.serve(0);
    }
    let guests = server.rendezvous.watched.values();
    let guests = guests.filter(|watched| matches!(watched, Watched::Guest { .. })).count();
    assert!(guests > 0 && guests <= MOST_GUESTS, "{guests}");
    server.expire(PATIENCE_NANOS);
    assert_eq!(server.rendezvous.watched.len(), 1);
}

#[test]
fn a_flood_that_does_not_end_is_left_waiting() {
    let (mut server, key) = (Side::new(), key());
    server.post(key).unwrap();
    let mut callers = Vec::new();
    let mut refused = 0;
    for _ in 0..3 * MOST_TURNED_AWAY {
        let called = unix_socket::connect(&key.name());
        refused += u32::from(called.is_err());
        // The first ones stay, and say nothing.
        callers.extend(called.ok().filter(|_| callers.len() < MOST_GUESTS));
        server.serve(0);
    }
    // They are not even taken any more, and nothing wakes the process for them.
    assert!(refused > MOST_TURNED_AWAY, "{refused}");
    let raw = rustix::fd::AsRawFd::as_raw_fd(&server.rendezvous.descriptor());
    assert_eq!(crate::sys::wait::poll_now(raw, libc::POLLIN), 0);
    assert_eq!(server.rendezvous.due(), Some(SECOND));
    // After a second it hears again.
    server.expire(SECOND);
    drop(callers);
    for _ in 0..20 {
        server.serve(SECOND);
    }
    let mut client = Side::new();
    client.ask(key, 2 * SECOND);
    server.serve(2 * SECOND);
    client.serve(2 * SECOND);
    assert_eq!(client.ask(key, 2 * SECOND), Known::Link(1));
}

#[test]
fn posts_leave_descriptors_for_links() {
    let mut server = Side::new();
    server.rendezvous.budget = 10;
    let posted = (0..20).filter(|_| server.post(key()).is_ok()).count();
    assert_eq!(posted, 5);
    assert!(server.rendezvous.afford(LINK).is_ok() && server.rendezvous.afford(CALL).is_ok());
}

/// Runs in a thread of its own, which alone gets the users: real, effective, saved.
#[allow(unsafe_code, reason = "a thread changes its users")]
fn as_users(users: [u32; 3], run: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let [real, effective, saved] = users;
            // SAFETY: a raw system call: libc's function would change all threads.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, real, effective, saved) };
            assert_eq!(result, 0);
            run();
        });
    });
}

#[test]
fn who_is_somebody_else_for_a_moment_meets_nobody() {
    if !rustix::process::geteuid().is_root() {
        // Only root can be somebody else.
        return;
    }
    let (mut server, mut client, known) = linked();
    let (unknown, posted) = (key(), key());
    server.post(unknown).unwrap();
    let mut other = Side::new();
    other.post(posted).unwrap();
    as_users([0, 54_321, 0], || {
        // A process of that user, which could be trusted as little as any.
        let mut friend = Side { rendezvous: Rendezvous::open().unwrap(), host: Fake::default() };
        assert_eq!(friend.rendezvous.user, NO_USER);
        assert_eq!(friend.post(key()), Err(Errno::PERM));
        client.rendezvous.review(&mut client.host);
        server.rendezvous.review(&mut server.host);
        assert_eq!(client.ask(posted, 0), NOBODY);
        assert_eq!(server.post(key()), Err(Errno::PERM));
        // The user comes, too.
        let caller = unix_socket::connect(&unknown.name()).unwrap();
        server.serve(0);
        assert!(
            unix_socket::receive(&caller, &mut [0; 64]).is_ok_and(|received| received.len == 0)
        );
        // What there was goes on: it is the process's own user's.
        assert_eq!(client.ask(known, 0), Known::Link(1));
    });
    assert_eq!((client.host.ended, server.host.ended), (vec![], vec![]));
}

#[test]
fn who_changes_for_good_ends_all_links() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (mut server, mut client, known) = linked();
    let own = key();
    client.post(own).unwrap();
    as_users([54_321; 3], || {
        client.rendezvous.review(&mut client.host);
        assert_eq!(client.host.ended, [1]);
        assert!(!client.rendezvous.has_links());
        assert_eq!(client.ask(known, 0), NOBODY);
        // Processes of the new user find it, by the listeners it had.
        let mut friend = Side::new();
        assert_eq!(friend.ask(own, 0), Known::Pending { since: 0 });
        client.serve(0);
        friend.serve(0);
        assert!(matches!(friend.ask(own, 0), Known::Link(_)));
    });
    server.serve(0);
    assert_eq!(server.host.ended, [1]);
    // And the old user's do not.
    assert_eq!(server.ask(own, 0), NOBODY);
}

/// Another user's process may listen on our names and call them, and gets nothing.
#[allow(unsafe_code, reason = "a process of another user is forked")]
#[test]
fn another_user_is_nobody() {
    if !rustix::process::geteuid().is_root() {
        // Only root can be somebody else.
        return;
    }
    let (mut server, key, name) = (Side::new(), key(), self::key());
    server.post(key).unwrap();
    let go = event().unwrap();
    // SAFETY: the child makes system calls only, on memory made before, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a raw system call: libc's function would change all threads of the parent's copy.
        unsafe { libc::syscall(libc::SYS_setresuid, 54_321, 54_321, 54_321) };
        let listener = unix_socket::listen(&name.name(), 4);
        let caller = unix_socket::connect(&key.name());
        if listener.is_ok() && caller.is_ok() {
            let _ = rustix::io::write(go.as_fd(), &1u64.to_ne_bytes());
        }
        loop {
            // SAFETY: sleeps until it is killed.
            unsafe { libc::pause() };
        }
    }
    let ready = crate::sys::wait::ppoll(
        &mut [libc::pollfd {
            fd: rustix::fd::AsRawFd::as_raw_fd(&go.as_fd()),
            events: libc::POLLIN,
            revents: 0,
        }],
        Some(10_000_000_000),
        None,
    );
    let mut client = Side::new();
    let asked = client.ask(name, 0);
    server.serve(0);
    let watched = server.rendezvous.watched.len();
    // SAFETY: `child` is our child.
    unsafe { libc::kill(child, libc::SIGKILL) };
    // SAFETY: as above; no status is wanted.
    unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) };
    assert_eq!(ready, Ok(1), "the other user's process did not get ready");
    assert_eq!(asked, NOBODY);
    assert_eq!(watched, 1, "only the post is left");
    assert!(client.rendezvous.met_strangers && server.rendezvous.met_strangers);
}
