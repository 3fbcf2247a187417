//! Programs cannot tell that the library is there.

use crate::harness::{Namespaces, Output, PYTHON, Puppet, Side, compile, library, wait_for};

/// Runs the words with and without the library; everything visible must be the same.
#[track_caller]
fn identical(words: &[&str]) -> Output {
    let net = Namespaces::new();
    let run = |preloaded: bool| {
        let program = net.program(Side::A, words[0]);
        let program = words[1..].iter().fold(program, |program, word| program.arg(word));
        if preloaded {
            program.env("LD_PRELOAD", library().to_str().unwrap()).run()
        } else {
            program.run()
        }
    };
    let (plain, preloaded) = (run(false), run(true));
    assert_eq!(plain.status.code(), preloaded.status.code(), "{words:?}");
    assert_eq!(plain.stdout, preloaded.stdout, "{words:?}");
    assert_eq!(plain.stderr, preloaded.stderr, "{words:?}");
    preloaded
}

// covers: RUN-04
#[test]
fn programs_without_sockets_run_as_ever() {
    identical(&["ls", "-la", "/etc"]);
    identical(&["ls", "/there/is/no/such/folder"]);
    identical(&["bash", "-c", "echo out; echo err >&2; (exit 3) || exit 7"]);
    identical(&[
        "bash",
        "-c",
        "for n in 1 2 3; do echo $n | tr 1 x; done; exec 9>/dev/null; echo y >&9",
    ]);
    identical(&[PYTHON, "-c", "1"]);
    identical(&[PYTHON, "-c", "import subprocess; print(subprocess.check_output(['id', '-u']))"]);
    identical(&["ssh", "-V"]);
    identical(&["git", "--version"]);
    identical(&["ip", "address", "show", "dev", "lo"]);
}

// covers: RUN-04
#[test]
fn a_static_program_runs_as_ever() {
    let net = Namespaces::new();
    let source = "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 5; }\n";
    let program = compile(&net, "hello", source, &["-static"]);
    let output = identical(&[program.to_str().unwrap()]);
    assert_eq!((output.stdout.as_str(), output.status.code()), ("hello\n", Some(5)));
}

// covers: RUN-03, RUN-04, LOG-01, LOG-14, LOG-16, RUN-24
#[test]
fn the_banner_comes_with_the_first_internet_socket() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    program.run("u = socket(AF_UNIX, SOCK_DGRAM); os.pipe()");
    assert_eq!(program.stderr(), "", "before any Internet socket");
    program.run("s = socket(AF_INET, SOCK_DGRAM)");
    let printed = program.stderr();
    assert!(printed.contains("VMA INFO: VMA_VERSION: "), "{printed}");
    assert!(printed.contains("Cmd Line: /usr/bin/python3"), "{printed}");
    program.run("t = socket(AF_INET, SOCK_DGRAM)");
    assert_eq!(program.stderr(), printed, "it comes once");
}

// covers: RUN-03
#[test]
fn a_program_that_reads_stderr_gets_the_banner_only_if_the_user_asks_for_a_level() {
    let net = Namespaces::new();
    let socket = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)";
    let printed = |redirection: &str, level: Option<&str>| {
        let command = format!("{PYTHON} -c '{socket}' {redirection}");
        let mut program = net.program(Side::A, "sh").with_library().args("-c").arg(&command);
        if let Some(level) = level {
            program = program.env("VMA_TRACELEVEL", level);
        }
        program.run().stdout
    };
    let to_file = format!("2>{0}; cat {0}", net.file("errors").display());
    assert!(printed(&to_file, None).contains("VMA_VERSION: "));
    assert_eq!(printed("2>&1 | cat", None), "");
    assert!(printed("2>&1 | cat", Some("info")).contains("VMA_VERSION: "));
    // What the user must know comes all the same.
    let told = printed("2>&1 | cat", Some("loud"));
    assert!(told.contains("VMA_TRACELEVEL=loud is not accepted"), "{told}");
}

// covers: LOG-02
#[test]
fn no_banner_at_level_none() {
    let net = Namespaces::new();
    for level in ["0", "none", "NONE"] {
        let program = net.program(Side::A, PYTHON).with_library().env("VMA_TRACELEVEL", level);
        let mut program = Puppet::start(program);
        program.run("s = udp(('10.99.0.1', 5000)); s.sendto(b'x', ('10.99.0.2', 9)); s.close()");
        program.finish();
        assert_eq!(program.stderr(), "", "VMA_TRACELEVEL={level}");
    }
}

// covers: LOG-11
#[test]
fn the_log_can_go_to_a_file() {
    let net = Namespaces::new();
    let log = net.file("log.%d");
    let program = net.program(Side::A, PYTHON).with_library();
    let mut program = Puppet::start(program.env("VMA_LOG_FILE", log.to_str().unwrap()));
    program.run("s = udp(('10.99.0.1', 5000))");
    let text = std::fs::read_to_string(net.file(&format!("log.{}", program.id()))).unwrap();
    assert!(text.contains("VMA_VERSION: "), "{text}");
    assert_eq!(program.stderr(), "");
}

// covers: RUN-12
#[test]
fn nothing_happens_before_the_first_internet_socket() {
    let net = Namespaces::new();
    let plain = Puppet::start(net.program(Side::A, PYTHON));
    let numbers = [plain, net.puppet(Side::A)].map(|mut program| {
        let opened = "sorted(map(int, os.listdir('/proc/self/fd')))";
        program.run("u = socketpair(); f = open('/dev/null'); q = select.epoll()");
        assert_eq!(program.run("threads()"), "1");
        let before = program.run(opened);
        program.run("s = socket(AF_INET, SOCK_DGRAM)");
        let visible = program.run(&format!("[n for n in {opened} if n < 100]"));
        (before, program.run("s.fileno()"), visible)
    });
    assert_eq!(numbers[0], numbers[1], "descriptors are those that the kernel would give");
}

/// The files that a program opens, by strace.
fn opened(net: &Namespaces, preloaded: bool, script: &str) -> Vec<String> {
    let trace = net.file("trace");
    let program = net.program(Side::A, "strace");
    let program =
        program.args("-f -qq -e trace=open,openat,socket -o").arg(trace.to_str().unwrap());
    let program = if preloaded {
        program.arg("-E").arg(&format!("LD_PRELOAD={}", library().display()))
    } else {
        program
    };
    program.arg(PYTHON).arg("-c").arg(script).run().ok();
    let text = std::fs::read_to_string(&trace).unwrap();
    let calls = text.lines().filter_map(|line| line.split_once(' ').map(|(_, call)| call));
    calls.map(|call| call.trim().to_owned()).collect()
}

// covers: RUN-12
#[test]
fn a_program_without_sockets_opens_no_further_files() {
    let net = Namespaces::new();
    let script = "import socket, subprocess; socket.socketpair(); open('/dev/null')";
    let plain = opened(&net, false, script);
    let preloaded = opened(&net, true, script);
    // The loader itself opens the library and what that needs.
    let loader = ["libvma.so", "libgcc_s.so", "libdl.so", "libpthread.so", "libm.so"];
    let is_loader = |call: &&String| loader.iter().any(|name| call.contains(name));
    let more: Vec<&String> =
        preloaded.iter().filter(|call| !plain.contains(call) && !is_loader(call)).collect();
    assert!(more.is_empty(), "{more:?}");
}

// covers: RUN-01
#[test]
fn closed_standard_streams_do_no_harm() {
    let net = Namespaces::new();
    let script = net.file("closed.py");
    // 0, 1 and 2 are closed before the first socket, which therefore becomes 0.
    let code = "
import os, socket, sys
report = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
high = os.dup2(report, 50); os.close(report)
for fd in 0, 1, 2: os.close(fd)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('10.99.0.1', 5000)); s.settimeout(15)
os.rename(sys.argv[1], sys.argv[2])
os.write(high, b'fd %d\\n' % s.fileno())
data, peer = s.recvfrom(100)
s.sendto(data, peer)
files = [os.open('/dev/null', os.O_RDONLY) for n in range(2)]
os.write(high, b'then %d %d\\n' % tuple(files))
s.close()
";
    std::fs::write(&script, code).unwrap();
    let (early, report) = (net.file("early"), net.file("report"));
    let watch = net.watch(Side::A);
    let program = net.program(Side::A, PYTHON).with_library().env("VMA_TRACELEVEL", "debug");
    let files = [&script, &early, &report].map(|path| path.to_str().unwrap());
    let program = files.into_iter().fold(program, |program, file| program.arg(file)).start();
    wait_for("the program is bound", || report.exists().then_some(()));
    let peer = net.socket(Side::B);
    peer.send_to(b"hello", Side::A.at(5000)).unwrap();
    let mut buffer = [0; 100];
    // Not a log line that strayed into the socket.
    let len = peer.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"hello");
    let output = program.wait();
    assert_eq!(std::fs::read_to_string(&report).unwrap(), "fd 0\nthen 1 2\n");
    watch.check(&output.traffic, 1, 1);
}

const CLOSER: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Closes every descriptor above its socket, the way argv[1] says, then echoes. */
int main(int argc, char **argv) {
    int s = socket(AF_INET, SOCK_DGRAM, 0), limit = getdtablesize();
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(5000)}, from;
    at.sin_addr.s_addr = inet_addr("10.99.0.1");
    if (bind(s, (void *)&at, sizeof at)) return 1;
    puts("bound");
    fflush(stdout);
    if (!strcmp(argv[1], "loop"))
        for (int fd = s + 1; fd < limit && fd < 5000; fd++) close(fd);
    else if (!strcmp(argv[1], "range"))
        close_range(s + 1, ~0U, 0);
    else if (!strcmp(argv[1], "from"))
        closefrom(s + 1);
    else if (!strcmp(argv[1], "syscall"))
        for (int fd = s + 1; fd < limit && fd < 5000; fd++) syscall(SYS_close, fd);
    for (int n = 0; n < 20; n++) {
        char data[100];
        socklen_t size = sizeof from;
        int len = recvfrom(s, data, sizeof data, 0, (void *)&from, &size);
        if (len < 0 || sendto(s, data, len, 0, (void *)&from, size) != len) return 2;
    }
    int next = dup(0);
    if (next != s + 1) return 3;
    return close(s) ? 4 : 0;
}
"#;

// covers: RUN-01
#[test]
fn closing_every_descriptor_does_not_break_offload() {
    for way in ["loop", "range", "from", "syscall"] {
        let net = Namespaces::new();
        let program = compile(&net, "closer", CLOSER, &[]);
        let watch = net.watch(Side::A);
        let program = net.program(Side::A, program.to_str().unwrap()).with_library().arg(way);
        let mut program = program.start();
        program.wait_for_text("bound");
        let peer = net.socket(Side::B);
        for n in 0..20u8 {
            peer.send_to(&[n; 10], Side::A.at(5000)).unwrap();
            let mut buffer = [0; 100];
            let len = peer.recv(&mut buffer).unwrap_or_else(|error| panic!("{way}: {error}"));
            assert_eq!(buffer[..len], [n; 10]);
        }
        let output = program.wait();
        assert_eq!(output.status.code(), Some(0), "{way}\n{}", output.stderr);
        watch.check(&output.traffic, 20, 20);
    }
}

// covers: LIM-52, LIM-51
#[test]
fn other_kinds_of_socket_pass_through() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    program.run("six = socket(AF_INET6, SOCK_DGRAM); six.bind(('::1', 0)); six.settimeout(15)");
    program.run("six.sendto(b'six', six.getsockname())");
    assert_eq!(program.run("six.recv(10)"), "b'six'");
    program.run("raw = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP)");
    program.run("pair = socketpair(); pair[0].send(b'unix')");
    assert_eq!(program.run("pair[1].recv(10)"), "b'unix'");
    program.run("l = socket(); l.bind(('127.0.0.1', 0)); l.listen()");
    program.run("c = create_connection(l.getsockname()); a, _ = l.accept(); c.send(b'tcp')");
    assert_eq!(program.run("a.recv(10)"), "b'tcp'");
}
