//! VMA_HANDLE_SIGINTR and VMA_HANDLE_SIGSEGV, and the internal thread's place.

use std::os::unix::process::ExitStatusExt;

use super::puppet;
use crate::harness::{Namespaces, Output, PYTHON, Side};

/// Runs a script under the library.
fn run(net: &Namespaces, parameter: (&str, &str), code: &str) -> Output {
    let program = net.program(Side::A, PYTHON).with_library().env(parameter.0, parameter.1);
    program.args("-c").arg(&format!("import os, signal, socket\n{code}")).run()
}

// covers: RUN-21
#[test]
fn an_interrupt_is_logged_and_then_takes_its_course() {
    let net = Namespaces::new();
    let told = "VMA WARNING: Catch Signal: SIGINT (2)";
    let default = "signal.signal(2, signal.SIG_DFL); s = socket.socket()\n";
    let after = "s = socket.socket(); signal.signal(2, signal.SIG_DFL)\n";
    let own = "signal.signal(2, lambda *_: print('mine')); s = socket.socket()\n";
    let late = "s = socket.socket(); signal.signal(2, lambda *_: print('mine'))\n";
    let kill = "os.kill(os.getpid(), 2)\n";
    for start in [default, after] {
        let ended = run(&net, ("VMA_HANDLE_SIGINTR", "1"), &format!("{start}{kill}print('alive')"));
        assert_eq!(ended.status.signal(), Some(2), "{ended:?}");
        assert!(ended.stderr.contains(told), "{ended:?}");
    }
    for start in [own, late] {
        let ended = run(&net, ("VMA_HANDLE_SIGINTR", "1"), &format!("{start}{kill}")).ok();
        assert_eq!(ended.stdout, "mine\n");
        assert!(ended.stderr.contains(told), "{ended:?}");
    }
    let seen = format!("{default}print(signal.getsignal(2) == signal.SIG_DFL)");
    assert_eq!(run(&net, ("VMA_HANDLE_SIGINTR", "1"), &seen).ok().stdout, "True\n");
    let silent = run(&net, ("VMA_HANDLE_SIGINTR", "0"), &format!("{own}{kill}")).ok();
    assert!(!silent.stderr.contains(told), "{silent:?}");
}

// covers: RUN-22, LOG-27
#[test]
fn a_crash_logs_a_backtrace_and_is_still_a_crash() {
    let net = Namespaces::new();
    for crash in ["import ctypes; ctypes.string_at(0)", "os.kill(os.getpid(), 11)"] {
        let code = format!("s = socket.socket()\n{crash}");
        let ended = run(&net, ("VMA_HANDLE_SIGSEGV", "1"), &code);
        assert_eq!(ended.status.signal(), Some(11), "{ended:?}");
        assert!(ended.stderr.contains("VMA ERROR: Segmentation Fault"), "{ended:?}");
        assert!(ended.stderr.contains("VMA ERROR: [3] /"), "{ended:?}");
        let silent = run(&net, ("VMA_HANDLE_SIGSEGV", "0"), &code);
        assert_eq!(silent.status.signal(), Some(11));
        assert!(!silent.stderr.contains("Segmentation"), "{silent:?}");
    }
}

const INTERNAL: &str = "[t for t in os.listdir('/proc/self/task') \
                        if open(f'/proc/self/task/{t}/comm').read() == 'vma\\n'][0]";

// covers: THR-09
#[test]
fn the_internal_thread_runs_where_it_should() {
    let net = Namespaces::new();
    let cpuset = net.file("cpuset");
    std::fs::create_dir(&cpuset).unwrap();
    // Stands for the kernel's file: whoever writes a thread's number there moves it.
    std::fs::write(cpuset.join("tasks"), "").unwrap();
    let cpuset_path = cpuset.to_str().unwrap();
    let set =
        [("VMA_INTERNAL_THREAD_AFFINITY", "0x1"), ("VMA_INTERNAL_THREAD_CPUSET", cpuset_path)];
    let mut program = puppet(&net, &set);
    program.run("s = udp(('10.99.0.1', 5000))");
    program.run(&format!("t = {INTERNAL}"));
    let allowed =
        "[l.split()[1] for l in open(f'/proc/self/task/{t}/status') if 'allowed_list' in l][0]";
    crate::harness::wait_for("it runs on the first CPU", || {
        (program.run(allowed) == "'0'").then_some(())
    });
    let thread = program.run("t").trim_matches('\'').to_owned();
    assert_eq!(std::fs::read_to_string(cpuset.join("tasks")).unwrap(), thread);
    let mut other = puppet(&net, &[("VMA_INTERNAL_THREAD_CPUSET", "/nowhere")]);
    other.run("s = udp()");
    crate::harness::wait_for("it says that there is none", || {
        other.stderr().contains("VMA_INTERNAL_THREAD_CPUSET=/nowhere: ").then_some(())
    });
}

// covers: API-38
#[test]
fn an_option_that_is_not_offloaded_is_treated_as_said() {
    let net = Namespaces::new();
    // IP_OPTIONS, of either kind of socket.
    for kind in ["socket.SOCK_DGRAM", "socket.SOCK_STREAM"] {
        let code = format!(
            "s = socket.socket(socket.AF_INET, {kind})\n\
             try: s.setsockopt(0, 4, b'\\1' * 4); print('done')\n\
             except OSError as error: print(error.errno)"
        );
        let told = "it has IP_OPTIONS, which only the kernel serves";
        let told = |text: &str, level: &str| {
            text.lines().filter(|line| line.starts_with(level) && line.contains(told)).count()
        };
        for (mode, printed, warnings, errors) in [
            ("-1", "done\n", 1, 0),
            ("0", "done\n", 1, 0),
            ("1", "done\n", 0, 1),
            ("2", "22\n", 0, 1),
        ] {
            let ended = run(&net, ("VMA_EXCEPTION_HANDLING", mode), &code).ok();
            let lines = ["VMA WARNING", "VMA ERROR"].map(|level| told(&ended.stderr, level));
            assert_eq!(
                (ended.stdout.as_str(), lines),
                (printed, [warnings, errors]),
                "{mode} {ended:?}"
            );
        }
        let ended = run(&net, ("VMA_EXCEPTION_HANDLING", "3"), &code);
        assert_eq!(ended.status.signal(), Some(6), "{ended:?}");
        assert_eq!(told(&ended.stderr, "VMA ERROR"), 1, "{ended:?}");
    }
}

#[test]
fn io_uring_is_there_if_asked_for() {
    let net = Namespaces::new();
    let code = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ns = socket.socket()\n\
                libc.syscall(425, 0, 0); print(ctypes.get_errno())";
    let (refused, passed) = (libc::ENOSYS.to_string() + "\n", libc::EFAULT.to_string() + "\n");
    assert_eq!(run(&net, ("VMA_IO_URING", "0"), code).ok().stdout, refused);
    let answer = run(&net, ("VMA_IO_URING", "1"), code).ok().stdout;
    assert!(answer == passed || answer != refused, "{answer}");
}
