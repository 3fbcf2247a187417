//! Where log lines go and what they look like.

use std::io::Read;

use super::puppet;
use crate::harness::{Namespaces, PYTHON, Side};

// covers: LOG-12, LOG-08
#[test]
fn debug_lines_tell_process_and_thread() {
    let net = Namespaces::new();
    let mut program = puppet(&net, &[("VMA_TRACELEVEL", "debug")]);
    program.run("s = udp(('10.99.0.1', 5000))");
    let printed = program.stderr();
    let prefix = format!("Pid: {0:>5} Tid: {0:>5} VMA ", program.id());
    assert!(printed.lines().filter(|line| line.starts_with(&prefix)).count() > 5, "{printed}");
    program.finish();
    let mut program = puppet(&net, &[("VMA_LOG_DETAILS", "3")]);
    program.run("s = udp(('10.99.0.1', 5000))");
    let printed = program.stderr();
    assert!(printed.lines().all(|line| line.starts_with("Time: ")), "{printed}");
}

// covers: LOG-13
#[test]
fn colours_are_for_terminals() {
    let net = Namespaces::new();
    let code = "import socket; socket.socket()";
    let on_terminal = |colors: &str| {
        let command = format!("{PYTHON} -c '{code}'");
        let program = net.program(Side::A, "script").with_library();
        let program = program.env("VMA_LOG_COLORS", colors).args("-q -e -c").arg(&command);
        program.arg("/dev/null").run().ok().stdout
    };
    assert!(on_terminal("1").contains("\x1b[0mVMA INFO: "), "{}", on_terminal("1"));
    assert!(!on_terminal("0").contains('\x1b'));
    let program = net.program(Side::A, PYTHON).with_library().args("-c").arg(code);
    assert!(!program.run().ok().stderr.contains('\x1b'));
}

// covers: LOG-16
#[test]
fn a_stderr_that_is_closed_full_or_taken_over_costs_the_lines_only() {
    let net = Namespaces::new();
    let run = |redirection: &str, code: &str| {
        let command = format!("exec {PYTHON} -c \"{code}\" {redirection}");
        let program = net.program(Side::A, "sh").with_library().env("VMA_TRACELEVEL", "debug");
        program.args("-c").arg(&command).run()
    };
    let offloaded = "import socket; s = socket.socket(2, 2); s.bind(('10.99.0.1', 0))";
    run("2>&-", offloaded).ok();
    run("2>/dev/full", offloaded).ok();
    // A pipe whose reader is gone: in C, SIGPIPE would end the program; and one that is full.
    let gone = "import os, signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL); r, w = os.pipe(); \
                os.dup2(w, 2); os.close(w); os.close(r); ";
    run("", &format!("{gone}{offloaded}")).ok();
    let full = "import os; r, w = os.pipe(); os.set_blocking(w, False)\ntry:\n while True: os.write(w, b'x' * 512)\n\
                except BlockingIOError: pass\nos.set_blocking(w, True); os.dup2(w, 2)\n";
    run("", &format!("{full}{offloaded}")).ok();
    // A connection of the program that got the number 2.
    let taken = "import os, socket as k; a, b = k.socketpair(k.AF_UNIX, k.SOCK_STREAM); u = k.socket(2, 2); \
                 os.dup2(a.fileno(), 2); s = k.socket(2, 2); s.bind(('10.99.0.1', 0)); \
                 s.setsockopt(0, 4, bytes(4)); b.setblocking(False)\n\
                 try: print('got', b.recv(100))\nexcept BlockingIOError: print('clean')";
    assert_eq!(run("2>/dev/null", taken).ok().stdout, "clean\n");
}

// covers: LOG-05, LOG-11
#[test]
fn an_unknown_or_bad_parameter_is_told_in_the_log_file() {
    let net = Namespaces::new();
    let log = net.file("log");
    let set = [("VMA_LOG_FILE", log.to_str().unwrap()), ("VMA_RX_POL", "1"), ("VMA_MSS", "x")];
    let mut program = puppet(&net, &set);
    program.run("s = udp(('10.99.0.1', 5000))");
    let mut text = String::new();
    std::fs::File::open(&log).unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("VMA WARNING: VMA_RX_POL is not a parameter; did you mean VMA_RX_POLL?"));
    assert!(text.contains("VMA WARNING: VMA_MSS=x is not accepted (0 to 65495"), "{text}");
    assert_eq!(program.stderr(), "");
}

// covers: RUN-13
#[test]
fn a_profile_is_in_the_banner_and_what_has_no_effect_is_told_at_debug() {
    let net = Namespaces::new();
    let mut program = puppet(&net, &[("VMA_SPEC", "15"), ("VMA_TRACELEVEL", "debug")]);
    program.run("s = udp(('10.99.0.1', 5000))");
    let printed = program.stderr();
    for line in [
        "VMA INFO: VMA Spec                       Latency                    [VMA_SPEC]",
        "VMA INFO: Rx Poll Loops                  -1                         [VMA_RX_POLL]",
        "VMA DEBUG: VMA_CQ_KEEP_QP_FULL has no effect on this device: ",
    ] {
        assert!(printed.contains(line), "{line}\n{printed}");
    }
}

// covers: RUN-18, LOG-11
#[test]
fn programs_that_run_at_once_have_logs_and_statistics_of_their_own() {
    let net = Namespaces::new();
    let log = net.file("log.%d");
    let set = [("VMA_LOG_FILE", log.to_str().unwrap()), ("VMA_TRACELEVEL", "debug")];
    let mut programs = [5000, 5001, 5002].map(|port| {
        let mut program = puppet(&net, &set);
        program.run(&format!("s = udp(('10.99.0.1', {port}))"));
        (port, program)
    });
    let peer = net.socket(Side::B);
    let watch = net.watch(Side::A);
    for (port, program) in &mut programs {
        peer.send_to(&[7; 100], Side::A.at(*port)).unwrap();
        program.run("echo(s)");
        peer.recv(&mut [0; 100]).unwrap();
    }
    watch.still();
    for (port, program) in &mut programs {
        let id = program.id();
        let text = std::fs::read_to_string(net.file(&format!("log.{id}"))).unwrap();
        let own = format!("Pid: {id:>5} ");
        assert!(
            text.lines().count() > 5 && text.lines().all(|line| line.starts_with(&own)),
            "{text}"
        );
        let file = libvma_dev::stats::File::open(&net.dir, id).unwrap();
        let taken = file.take(crate::harness::PATIENCE).unwrap();
        let ports: Vec<u16> = taken.sockets.iter().map(|socket| socket.local_port).collect();
        assert_eq!(ports, [*port]);
    }
    for (_, mut program) in programs {
        assert_eq!(program.stderr(), "");
        program.finish();
    }
}
