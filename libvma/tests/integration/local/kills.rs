//! `kill -9` of either end at a random moment: the other one notices, has seen no byte that is wrong,
//! and goes on; nothing is left of the one that died. Every round is made from one seed, which a
//! failure prints; `VMA_TEST_SEED=<seed>` repeats it (as far as two processes can be repeated).

use std::time::{Duration, SystemTime};

use rustix::process::Signal;

use crate::harness::{Program, Sandbox, Shown, compile_in, is_long, wait_for};

use super::{ALL, Local, Under};

fn most_rounds() -> u64 {
    if is_long() { 500 } else { 20 }
}

/// Bytes that a pair exchanges in each direction: more than it can before it is killed.
const ENOUGH: u64 = 4 << 30;
/// Bytes of a conversation that is to end well.
const FEW: u64 = 1 << 20;

/// splitmix64
pub(super) struct Random(u64);

impl Random {
    /// From `VMA_TEST_SEED`, or the clock; says from what.
    pub(super) fn seeded() -> Random {
        let seed = seed();
        println!("VMA_TEST_SEED={seed}");
        Random(seed)
    }

    pub(super) fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % below
    }
}

fn seed() -> u64 {
    let given = std::env::var("VMA_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    given.unwrap_or(now.as_nanos() as u64)
}

struct Scene {
    local: Local,
    twin: String,
}

impl Scene {
    fn new(under: Under) -> Scene {
        let local = Local::new(under);
        let twin = compile_in(&local.sandbox.dir, "twin", include_str!("twin.c"), &[]);
        Scene { twin: twin.to_str().unwrap().to_owned(), local }
    }

    fn twin<'a>(
        &self,
        program: Program<'a>,
        protocol: &str,
        style: &str,
        bytes: u64,
    ) -> Program<'a> {
        program.args(&format!("{protocol} 7000 {style} {bytes}"))
    }

    #[track_caller]
    fn serve(&self, protocol: &str, style: &str, bytes: u64) -> Shown {
        let program = self.local.server(&self.twin).args("serve");
        self.twin(program, protocol, style, bytes).start_shown()
    }

    #[track_caller]
    fn call(&self, protocol: &str, style: &str, bytes: u64) -> Shown {
        let program = self.local.client(&self.twin).args("call");
        self.twin(program, protocol, style, bytes).start_shown()
    }

    /// A conversation of a few bytes, which ends well.
    #[track_caller]
    fn is_served(&self, protocol: &str, bytes: u64) {
        let output = self.call(protocol, "blocking", bytes).wait().ok();
        assert!(output.number("got") >= FEW as f64, "{}\n{}", output.stdout, output.stderr);
    }
}

fn kill(mut victim: Shown) {
    victim.signal(Signal::KILL);
    victim.wait_for_end();
}

/// One round: who dies when, and that the other one gets over it.
#[track_caller]
fn round(scene: &Scene, random: &mut Random) {
    let protocol = ["tcp", "udp"][random.next(2) as usize];
    let style = ["blocking", "epoll"][random.next(2) as usize];
    let server_dies = random.next(2) == 0;
    // From before the connection to far into it, with more weight on its beginning.
    let most = [5, 30, 150][random.next(3) as usize];
    let delay = Duration::from_micros(random.next(most * 1000));
    let who = if server_dies { "server" } else { "client" };
    println!("{protocol} {style}: the {who} dies after {delay:?}");
    let mut server = scene.serve(protocol, style, ENOUGH);
    server.wait_for_text("listening");
    let client = scene.call(protocol, style, ENOUGH);
    std::thread::sleep(delay);
    if server_dies {
        kill(server);
        // It ends by itself, and well.
        let output = client.wait().ok();
        assert!(!output.stderr.contains("WRONG"), "{}", output.stderr);
        // And another one takes its place.
        server = scene.serve(protocol, style, FEW);
        server.wait_for_text("listening");
        scene.is_served(protocol, FEW);
    } else {
        kill(client);
        scene.is_served(protocol, FEW);
        if protocol == "tcp" {
            // The first one, or, if that was killed before it had connected, this one.
            server.wait_for_text("served");
        }
        assert!(server.is_running(), "{}", server.printed());
    }
    kill(server);
}

/// Nothing of the library's is left once nobody runs.
#[track_caller]
fn nothing_left(sandbox: &Sandbox, shared_memory: &[String]) {
    wait_for("all names are gone", || sandbox.abstract_names().is_empty().then_some(()));
    assert_eq!(files_of("/dev/shm"), shared_memory, "shared memory");
    let files = files_of(&sandbox.dir.to_string_lossy());
    let strange = files.iter().find(|name| {
        // vma_stats clears up after who was killed.
        let known = ["stats.", "vmastat.", "output.", "twin", "libvma.so"];
        !known.iter().any(|prefix| name.starts_with(prefix))
    });
    assert_eq!(strange, None, "files");
}

fn files_of(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[track_caller]
fn rounds(under: Under, count: u64) {
    println!("{under:?}");
    let mut random = Random::seeded();
    let shared_memory = files_of("/dev/shm");
    let scene = Scene::new(under);
    for _ in 0..count {
        round(&scene, &mut random);
    }
    nothing_left(&scene.local.sandbox, &shared_memory);
}

#[test]
fn either_end_may_be_killed_with_library_on_both() {
    rounds(Under::Both, most_rounds());
}

#[test]
fn either_end_may_be_killed_with_library_on_at_most_one() {
    for under in [Under::Server, Under::Client, Under::Neither] {
        rounds(under, most_rounds() / 5);
    }
}

/// A server that outlives its clients does not collect what belonged to them.
#[test]
fn nothing_of_killed_clients_stays_with_a_server() {
    for under in ALL {
        let scene = Scene::new(under);
        let mut server = scene.serve("tcp", "epoll", FEW);
        server.wait_for_text("listening");
        let of_server = |what: &str| format!("/proc/{}/{what}", server.id());
        let descriptors = || files_of(&of_server("fd")).len();
        let shared = || {
            let maps = std::fs::read_to_string(of_server("maps")).expect("it runs");
            maps.lines().filter(|line| line.contains("memfd:")).count()
        };
        scene.is_served("tcp", FEW);
        wait_for("the first client is forgotten", || (shared() == 0).then_some(()));
        let before = descriptors();
        for _ in 0..10 {
            let client = scene.call("tcp", "blocking", ENOUGH);
            std::thread::sleep(Duration::from_millis(20));
            kill(client);
            scene.is_served("tcp", FEW);
        }
        wait_for("all clients are forgotten", || {
            (shared() == 0 && descriptors() <= before + 1).then_some(())
        });
    }
}
