//! A session against a daemon of the test's own, over real sockets.

use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use libvma_dev::agent::{ABILITY_IPV6, Init, Message, TcpState, pid_file, socket_file};
use zerocopy::IntoBytes;

use super::*;

/// Where files of one test go.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("vma-agent-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    fn agent(&self) -> Agent {
        Agent::of_daemon(&self.files().to_string_lossy(), &self.daemon(), None)
    }

    /// The directory for the files; it is not there.
    fn files(&self) -> PathBuf {
        self.0.join("notify")
    }

    fn daemon(&self) -> PathBuf {
        self.0.join("daemon.sock")
    }

    fn start_daemon(&self) -> Daemon {
        let _ = std::fs::remove_file(self.daemon());
        let socket = UnixDatagram::bind(self.daemon()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Daemon { socket, answers_to: socket_file(&self.files(), own_id()) }
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.files())
            .map(|all| all.flatten().map(|one| one.file_name().into_string().unwrap()).collect())
            .unwrap_or_default();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn own_id() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

struct Daemon {
    socket: UnixDatagram,
    answers_to: PathBuf,
}

impl Daemon {
    fn next(&self) -> Message {
        let mut buffer = [0; 4096];
        let len = self.socket.recv(&mut buffer).expect("a message in time");
        Message::parse(&buffer[..len]).expect("it is well formed")
    }

    fn is_told_nothing(&self) {
        self.socket.set_nonblocking(true).unwrap();
        let got = self.socket.recv(&mut [0; 4096]);
        assert_eq!(got.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        self.socket.set_nonblocking(false).unwrap();
    }

    fn answer(&self, version: u8) {
        self.answer_with(version, ABILITY_IPV6);
    }

    fn answer_with(&self, version: u8, abilities: u8) {
        let Message::Init(init) = self.next() else { panic!("an introduction comes first") };
        assert_eq!((init.pid, init.version), (own_id(), 3));
        let mut answer = Init { version, ..init }.answer();
        (answer.header.version, answer.header.abilities) = (version, abilities);
        self.socket.send_to(answer.as_bytes(), &self.answers_to).unwrap();
    }
}

/// Connections that are but numbers.
#[derive(Default)]
struct Fake {
    news: bool,
    listening: bool,
    changes: VecDeque<(u32, TcpState)>,
    /// There was no room.
    lost: bool,
    known: Vec<(u32, TcpState)>,
}

impl Fake {
    fn set(&mut self, number: u32, state: TcpState) {
        self.known.retain(|(other, _)| *other != number);
        if state != TcpState::Closed {
            self.known.push((number, state));
        }
        if self.listening {
            self.changes.push_back((number, state));
        }
        self.news = true;
    }
}

impl Source for Fake {
    fn has_connections(&self) -> bool {
        !self.known.is_empty()
    }

    fn has_news(&self) -> bool {
        self.news
    }

    fn note_news(&mut self) {
        self.news = false;
    }

    fn listen(&mut self) {
        (self.listening, self.lost) = (true, false);
        self.changes = self.known.iter().copied().collect();
    }

    fn stop(&mut self) {
        self.listening = false;
        self.changes.clear();
    }

    fn take(&mut self, process: i32, into: &mut VecDeque<State>) -> bool {
        for (number, state) in self.changes.drain(..) {
            into.push_back(message(process, number, state));
        }
        !self.lost
    }

    fn has_ended(&self) -> bool {
        self.changes.iter().any(|(_, state)| *state == TcpState::Closed)
    }
}

fn message(pid: i32, fd: u32, state: TcpState) -> State {
    let (local, peer) = match fd < FIRST_OF_IPV6 {
        true => ("10.0.0.1", "10.0.0.2:80"),
        false => ("fd00::1", "[fd00::2]:80"),
    };
    let local = SocketAddr::new(local.parse().unwrap(), fd as u16);
    State { pid, fd, local, peer: peer.parse().unwrap(), state }
}

/// Connections with such numbers are of IPv6.
const FIRST_OF_IPV6: u32 = 1000;

fn told(fd: u32, state: TcpState) -> Message {
    Message::State(message(own_id(), fd, state))
}

/// What the internal thread does, until `done`.
#[track_caller]
fn run(agent: &Agent, source: &mut Fake, what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(20), "waited in vain until {what}");
        let mut set = PollSet::default();
        let patience = agent.prepare(source, &mut set);
        let longest = 5 * MILLISECOND;
        let _ =
            ppoll(set.as_mut_slice(), Some(patience.map_or(longest, |it| it.min(longest))), None);
        let readable = set.as_mut_slice()[0].revents != 0;
        agent.attend(readable, source);
    }
    begin.elapsed()
}

/// Everything that is due now, and what it brings about.
fn run_on(agent: &Agent, source: &mut Fake) {
    let end = Instant::now() + Duration::from_millis(60);
    run(agent, source, "some time has passed", || Instant::now() >= end);
}

/// A process that the daemon knows, with one connection that it knows, too.
fn registered(place: &Place) -> (Daemon, Agent, Fake) {
    let daemon = place.start_daemon();
    let (agent, mut source) = (place.agent(), Fake::default());
    source.set(5, TcpState::Established);
    run_on(&agent, &mut source);
    daemon.answer(3);
    run_on(&agent, &mut source);
    assert_eq!(daemon.next(), told(5, TcpState::Established));
    (daemon, agent, source)
}

// covers: DMN-02
#[test]
fn nothing_happens_before_there_is_a_connection_and_then_the_files_are_there() {
    let place = Place::new();
    let daemon = place.start_daemon();
    let (agent, mut source) = (place.agent(), Fake::default());
    run_on(&agent, &mut source);
    daemon.is_told_nothing();
    assert!(!place.files().exists());
    assert_eq!(agent.prepare(&source, &mut PollSet::default()), None, "nobody has to be woken");

    source.set(5, TcpState::SynSent);
    run_on(&agent, &mut source);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&place.files()), 0o1777);
    let pid = pid_file(&place.files(), own_id());
    assert_eq!((mode(&pid), std::fs::metadata(&pid).unwrap().len()), (0o640, 0));
    let socket = std::fs::metadata(socket_file(&place.files(), own_id())).unwrap();
    assert!(socket.file_type().is_socket());
    source.set(5, TcpState::Established);
    run_on(&agent, &mut source);
    daemon.answer(3);
    daemon.is_told_nothing();
    run_on(&agent, &mut source);
    assert_eq!(daemon.next(), told(5, TcpState::Established), "the last state is all that counts");
    source.set(5, TcpState::CloseWait);
    source.set(6, TcpState::Established);
    run_on(&agent, &mut source);
    assert_eq!(daemon.next(), told(5, TcpState::CloseWait));
    assert_eq!(daemon.next(), told(6, TcpState::Established));

    agent.end(&mut source);
    assert_eq!(daemon.next(), Message::Exit { pid: own_id() });
    assert_eq!(place.names(), Vec::<String>::new());
    source.set(7, TcpState::Established);
    run_on(&agent, &mut source);
    daemon.is_told_nothing();
}

// covers: DMN-03
#[test]
fn without_a_daemon_nothing_is_made() {
    let place = Place::new();
    let (agent, mut source) = (place.agent(), Fake::default());
    source.set(5, TcpState::Established);
    run_on(&agent, &mut source);
    assert!(!place.files().exists());
    // A daemon that was killed left its socket.
    drop(place.start_daemon());
    run_on(&agent, &mut source);
    assert!(!place.files().exists());
    agent.end(&mut source);
}

#[test]
fn an_empty_directory_is_nobody_told() {
    let place = Place::new();
    let daemon = place.start_daemon();
    let (agent, mut source) = (Agent::of_daemon("", &place.daemon(), None), Fake::default());
    assert!(!agent.is_wanted());
    source.set(5, TcpState::Established);
    let mut set = PollSet::default();
    assert_eq!(agent.prepare(&source, &mut set), None);
    assert_eq!(set.as_mut_slice().len(), 1, "the thread counts on an entry");
    agent.attend(false, &mut source);
    daemon.is_told_nothing();
}

// covers: DMN-07
#[test]
fn a_daemon_that_comes_later_or_again_is_told_of_everything() {
    let place = Place::new();
    let (agent, mut source) = (place.agent(), Fake::default());
    source.set(5, TcpState::Established);
    source.set(6, TcpState::FinWait2);
    run_on(&agent, &mut source);
    for _ in 0..2 {
        let daemon = place.start_daemon();
        let came = Instant::now();
        run(&agent, &mut source, "the process introduces itself", || {
            let mut set = [PollFd { fd: fd_of(&daemon), events: libc::POLLIN, revents: 0 }];
            ppoll(&mut set, Some(0), None) == Ok(1)
        });
        assert!(came.elapsed() < Duration::from_secs(3), "{:?}", came.elapsed());
        daemon.answer(3);
        run_on(&agent, &mut source);
        assert_eq!(daemon.next(), told(5, TcpState::Established));
        assert_eq!(daemon.next(), told(6, TcpState::FinWait2));
        assert_eq!(place.names().len(), 2);
        // What happens meanwhile is part of everything.
        drop(daemon);
        source.set(7, TcpState::Established);
        run_on(&agent, &mut source);
        source.set(7, TcpState::Closed);
    }
    agent.end(&mut source);
    assert_eq!(place.names(), Vec::<String>::new());
}

fn fd_of(daemon: &Daemon) -> i32 {
    use std::os::fd::AsRawFd;
    daemon.socket.as_raw_fd()
}

#[test]
fn a_daemon_that_never_answers_is_given_up_and_the_files_go() {
    let place = Place::new();
    let daemon = place.start_daemon();
    let (agent, mut source) = (place.agent(), Fake::default());
    source.set(5, TcpState::Established);
    run_on(&agent, &mut source);
    assert_eq!(place.names().len(), 2);
    let took = run(&agent, &mut source, "it is given up", || place.names().is_empty());
    assert!((2500..6000).contains(&took.as_millis()), "{took:?}");
    assert!(matches!(daemon.next(), Message::Init(_)));
    daemon.is_told_nothing();
}

// covers: DMN-06
#[test]
fn a_daemon_of_an_older_version_is_not_told_anything() {
    let place = Place::new();
    let daemon = place.start_daemon();
    let (agent, mut source) = (place.agent(), Fake::default());
    source.set(5, TcpState::Established);
    run_on(&agent, &mut source);
    daemon.answer(2);
    run_on(&agent, &mut source);
    daemon.is_told_nothing();
    assert_eq!(place.names(), Vec::<String>::new());
}

// covers: DMN-02
#[test]
fn a_daemon_is_told_of_ipv6_if_it_says_that_it_takes_that() {
    for abilities in [0, ABILITY_IPV6] {
        let place = Place::new();
        let daemon = place.start_daemon();
        let (agent, mut source) = (place.agent(), Fake::default());
        source.set(FIRST_OF_IPV6, TcpState::Established);
        source.set(5, TcpState::Established);
        run_on(&agent, &mut source);
        assert!(!agent.is_guarded(false) && !agent.is_guarded(true));
        daemon.answer_with(3, abilities);
        run_on(&agent, &mut source);
        let takes_ipv6 = abilities != 0;
        assert!(agent.is_guarded(false));
        assert_eq!(agent.is_guarded(true), takes_ipv6);
        if takes_ipv6 {
            assert_eq!(daemon.next(), told(FIRST_OF_IPV6, TcpState::Established));
        }
        assert_eq!(daemon.next(), told(5, TcpState::Established));
        // One that is given away is over before the call returns; of what the daemon does not know it is told nothing.
        source.set(FIRST_OF_IPV6, TcpState::Closed);
        agent.settle(&mut source);
        if takes_ipv6 {
            assert_eq!(daemon.next(), told(FIRST_OF_IPV6, TcpState::Closed));
        }
        daemon.is_told_nothing();
    }
}

// covers: DMN-02
#[test]
fn a_daemon_that_is_wanted_is_called_before_there_is_a_connection() {
    let place = Place::new();
    let (agent, mut source) = (place.agent(), Fake::default());
    // There is none yet.
    assert_eq!(agent.ask(), Asked::Daemon);
    assert_eq!(agent.ask(), Asked::Already);
    run_on(&agent, &mut source);
    assert_eq!(agent.prepare(&source, &mut PollSet::default()), None, "it was called in vain");
    let daemon = place.start_daemon();
    assert_eq!(agent.ask(), Asked::Daemon);
    let answered = std::thread::scope(|scope| {
        let answer = scope.spawn(|| daemon.answer(3));
        run(&agent, &mut source, "the daemon has answered", || agent.is_guarded(true));
        answer.join()
    });
    answered.unwrap();
    assert_eq!(agent.ask(), Asked::Already);
    daemon.is_told_nothing();
    source.set(5, TcpState::Established);
    run_on(&agent, &mut source);
    assert_eq!(daemon.next(), told(5, TcpState::Established));
}

#[test]
fn answers_to_others_and_garbage_are_no_answers() {
    let place = Place::new();
    let daemon = place.start_daemon();
    let (agent, mut source) = (place.agent(), Fake::default());
    source.set(5, TcpState::Established);
    run_on(&agent, &mut source);
    let other = Init { pid: own_id() + 1, version: 3, status: 0, library: 0 }.answer();
    for garbage in [&[][..], &[0x81], other.as_bytes(), &[0xff; 200]] {
        daemon.socket.send_to(garbage, &daemon.answers_to).unwrap();
    }
    // Nobody but the daemon can say anything.
    let stranger = UnixDatagram::unbound().unwrap();
    let forged = Init { pid: own_id(), version: 3, status: 0, library: 0 }.answer();
    assert!(stranger.send_to(forged.as_bytes(), &daemon.answers_to).is_err());
    run_on(&agent, &mut source);
    assert!(matches!(daemon.next(), Message::Init(_)));
    daemon.is_told_nothing();
}

#[test]
fn a_connection_that_is_given_away_is_over_before_the_call_returns() {
    let place = Place::new();
    let (daemon, agent, mut source) = registered(&place);
    source.set(5, TcpState::Closed);
    agent.settle(&mut source);
    assert_eq!(daemon.next(), told(5, TcpState::Closed));
}

#[test]
fn a_daemon_that_does_not_read_loses_nothing_and_holds_nobody_up_for_long() {
    let place = Place::new();
    let (daemon, agent, mut source) = registered(&place);
    const MANY: u32 = 2000;
    for number in 1000..1000 + MANY {
        source.set(number, TcpState::Established);
    }
    run_on(&agent, &mut source);
    let begin = Instant::now();
    source.set(5, TcpState::Closed);
    agent.settle(&mut source);
    let took = begin.elapsed();
    assert!((150..1500).contains(&took.as_millis()), "{took:?}");
    // The next one does not wait for it again.
    let begin = Instant::now();
    agent.settle(&mut source);
    let took = begin.elapsed();
    assert!(took < Duration::from_millis(100), "{took:?}");
    // And then it reads.
    let reader = std::thread::spawn(move || {
        let mut all: Vec<_> = (0..MANY).map(|_| daemon.next()).collect();
        all.push(daemon.next());
        all
    });
    run(&agent, &mut source, "all is read", || reader.is_finished());
    let all = reader.join().unwrap();
    for number in 1000..1000 + MANY {
        assert_eq!(all[number as usize - 1000], told(number, TcpState::Established));
    }
    assert_eq!(all[MANY as usize], told(5, TcpState::Closed));
}

#[test]
fn after_too_many_changes_the_process_introduces_itself_again() {
    let place = Place::new();
    let (daemon, agent, mut source) = registered(&place);
    source.set(6, TcpState::Established);
    source.lost = true;
    run_on(&agent, &mut source);
    daemon.answer(3);
    run_on(&agent, &mut source);
    assert_eq!(daemon.next(), told(5, TcpState::Established));
    assert_eq!(daemon.next(), told(6, TcpState::Established));
    daemon.is_told_nothing();
}

#[test]
fn a_process_that_may_become_another_program_is_forgotten_until_that_has_failed() {
    let place = Place::new();
    let (daemon, agent, mut source) = registered(&place);
    agent.withdraw(&mut source);
    assert_eq!(daemon.next(), Message::Exit { pid: own_id() });
    assert_eq!(place.names(), Vec::<String>::new());
    run_on(&agent, &mut source);
    daemon.is_told_nothing();
    run(&agent, &mut source, "it is back", || place.names().len() == 2);
    daemon.answer(3);
    run_on(&agent, &mut source);
    assert_eq!(daemon.next(), told(5, TcpState::Established));
}

#[test]
fn nothing_of_others_is_followed_opened_or_replaced() {
    let place = Place::new();
    let files = place.files();
    std::fs::create_dir(&files).unwrap();
    let precious = place.0.join("precious");
    let attempt = |what: &str| {
        std::fs::write(&precious, "precious").unwrap();
        let daemon = place.start_daemon();
        let (agent, mut source) = (place.agent(), Fake::default());
        source.set(5, TcpState::Established);
        run_on(&agent, &mut source);
        daemon.is_told_nothing();
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious", "{what}");
        let left = place.names();
        left.iter().for_each(|name| std::fs::remove_file(files.join(name)).unwrap());
        left.len()
    };
    let (pid, socket) = (pid_file(&files, own_id()), socket_file(&files, own_id()));
    std::os::unix::fs::symlink(&precious, &pid).unwrap();
    assert_eq!(attempt("a link in the place of the empty file"), 1);
    std::os::unix::fs::symlink(&precious, &socket).unwrap();
    assert_eq!(attempt("a link in the place of the socket"), 1);
    std::os::unix::fs::symlink(files.join("elsewhere"), &socket).unwrap();
    assert_eq!(attempt("a link to nothing in the place of the socket"), 1);

    // What a process of this number left is replaced.
    drop(UnixDatagram::bind(&socket).unwrap());
    std::fs::write(&pid, "").unwrap();
    let (_daemon, agent, mut source) = registered(&place);
    assert_eq!(place.names().len(), 2);
    agent.end(&mut source);
}
