//! epoll over many streams: nobody is forgotten, nobody is told twice, and a wait costs what is
//! ready.

use crate::harness::{Ends, Library, Side, compile};

const PORT: u16 = 7000;

/// Two namespaces, the test's program, and its server on one side; `end` waits for that.
struct Scene {
    ends: Ends,
    program: String,
}

impl Scene {
    fn new(library: Library) -> Scene {
        let ends = Ends::new(library);
        let source = include_str!("tcp_readiness/readiness.c");
        let program = compile(&ends.net, "readiness", source, &[]);
        Scene { ends, program: program.to_str().unwrap().to_owned() }
    }

    /// Starts the server; what is returned waits for its end.
    #[track_caller]
    fn serve(&self, mode: &str, connections: u32) -> impl FnOnce() + use<> {
        let server = self.ends.server(&self.program);
        let words = format!("serve {} {PORT} {mode} {connections}", Side::A.ip());
        let mut running = server.args(&words).start();
        // Connections that come before are the kernel's.
        running.wait_for_text("listening");
        || {
            running.wait().ok();
        }
    }

    /// Runs the program against the server; returns what it prints.
    #[track_caller]
    fn run(&self, what: &str, arguments: &str, environment: &[(&str, &str)]) -> String {
        let words = format!("{what} {} {PORT} {arguments}", Side::A.ip());
        let mut client = self.ends.client(&self.program).args(&words);
        for (name, value) in environment {
            client = client.env(name, value);
        }
        client.run().ok().stdout
    }
}

#[track_caller]
fn visited(library: Library, mode: &str, environment: &[(&str, &str)]) {
    const CONNECTIONS: u32 = 200;
    let scene = Scene::new(library);
    let end = scene.serve(mode, CONNECTIONS);
    let watch = scene.ends.watch();
    scene.run("visit", &format!("{CONNECTIONS} 5"), environment);
    end();
    watch.still(u64::from(CONNECTIONS));
}

// covers: MUX-03
#[test]
fn an_edge_triggered_server_answers_two_hundred_connections() {
    for library in Library::ALL {
        visited(library, "edge", &[]);
    }
    visited(Library::Both, "edge", &[("VMA_SELECT_POLL", "0"), ("VMA_RX_POLL", "0")]);
}

// covers: MUX-03
#[test]
fn a_level_triggered_server_answers_two_hundred_connections() {
    visited(Library::Server, "level", &[]);
}

// covers: MUX-10
#[test]
fn threads_that_share_one_shot_registrations_never_meet() {
    visited(Library::Server, "oneshot", &[]);
}

// covers: MUX-03, MUX-11
#[test]
fn a_thread_that_waits_is_told_of_streams_that_another_adds() {
    for polls in ["0", "100000"] {
        let scene = Scene::new(Library::Client);
        let end = scene.serve("level", 3);
        let watch = scene.ends.watch();
        scene.run("added", "", &[("VMA_SELECT_POLL", polls)]);
        end();
        watch.still(3);
    }
}

/// Nanoseconds of an epoll_wait that finds one of so many connections ready.
fn cost(connections: u32) -> f64 {
    let scene = Scene::new(Library::Client);
    let end = scene.serve("level", connections);
    let text = scene.run("cost", &connections.to_string(), &[]);
    end();
    text.trim().strip_prefix("nanoseconds ").unwrap().parse().unwrap()
}

// covers: MUX-03
#[test]
fn a_wait_costs_the_same_among_ten_and_a_thousand() {
    // Other tests make noise.
    let ratios: Vec<f64> = (0..3).map(|_| cost(1000) / cost(10)).collect();
    let best = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(best < 1.5, "a wait among 1000 costs {ratios:.2?} times that among 10");
}
