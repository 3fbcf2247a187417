//! The command line, the two modes, the one instance, the files, and the end.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use super::harness::{Place, read, signal, wait_until};

fn text(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it is there").permissions().mode() & 0o7777
}

/// The process that its pid file names; ended with the test.
struct InBackground(u32);

impl InBackground {
    fn of(place: &Place) -> InBackground {
        InBackground(read(&place.path("pid")).trim().parse().expect("a number"))
    }
}

impl Drop for InBackground {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-9", &self.0.to_string()]).output();
    }
}

#[test]
fn the_usage_has_the_lines_that_scripts_know() {
    let place = Place::new("usage");
    let (status, out, error) = text(&place.run("--console -v9 --help"));
    assert_eq!((status, error.as_str()), (Some(0), ""));
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines[2], format!("version: {} (0x3)", env!("CARGO_PKG_VERSION")));
    assert_eq!((lines[3], lines[4]), ("", "Usage: vmad [options]"));
    let names: Vec<_> = lines[5..].iter().map(|line| line[1..33].trim_end()).collect();
    let expected = [
        "--console",
        "--notify-dir,-n <dir>",
        "--pid,-p <num>",
        "--fid,-f <num>",
        "--force-rst",
        "--verbose,-v <level>",
        "--retry-interval,-r <num>",
        "--config <file>",
        "--help,-h",
    ];
    assert_eq!(names, expected);
    assert!(lines[5].ends_with("(default: on)") && lines[10].ends_with("(default: 9)"), "{out}");
}

#[test]
fn a_wrong_command_line_says_what_is_wrong_and_exits_with_0() {
    let place = Place::new("options");
    for (options, complaint) in [
        ("--nothing", "vmad: unrecognized option '--nothing'\n"),
        ("-p", "vmad: option '-p' requires an argument\n"),
        ("-p abc", "vmad: option '-p': 'abc' is not a number\n"),
        ("--retry-interval 5s", "vmad: option '--retry-interval': '5s' is not a number\n"),
        ("-f 99999999999", "vmad: option '-f': '99999999999' is more than 4294967295\n"),
    ] {
        let (status, out, error) = text(&place.run(options));
        assert_eq!((status, error.as_str()), (Some(0), complaint));
        assert!(out.contains("Usage: vmad [options]\n"), "{out}");
    }
    assert!(!place.path("lock").exists(), "nothing was started");
}

// covers: DMN-01
#[test]
fn the_foreground_daemon_makes_its_files_and_removes_them() {
    let place = Place::new("foreground");
    let elsewhere = place.path("elsewhere");
    let mut daemon = place.start(&format!("--notify-dir {}", elsewhere.display()));
    let pid = format!("{}\n", daemon.pid());
    assert_eq!((read(&place.path("lock")), mode(&place.path("lock"))), (pid.clone(), 0o640));
    assert_eq!((read(&place.path("pid")), mode(&place.path("pid"))), (pid, 0o644));
    assert_eq!(mode(&place.path("socket")), 0o777);
    assert!(fs::metadata(place.path("socket")).expect("there").file_type().is_socket());
    assert_eq!(mode(&elsewhere), 0o1777);
    assert!(!place.path("notify").exists(), "the command line wins");
    assert_eq!(read(Path::new(&format!("/proc/{}/comm", daemon.pid()))), "vmad\n");
    daemon.says("[INFO  ] Starting\n");
    daemon.says("[DEBUG ] starting loop ...\n");
    daemon.signal("INT");
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(daemon.log().ends_with("[INFO  ] Terminated with code 0\n"), "{}", daemon.log());
    assert_eq!(place.files(""), ["elsewhere", "stdout", "vmad.toml"]);
}

// covers: DMN-01
#[test]
fn the_background_daemon_serves_when_its_parent_returns() {
    let place = Place::new("background");
    let (status, out, error) = text(&place.run("-v5"));
    assert_eq!((status, out.as_str(), error.as_str()), (Some(0), "", ""));
    let daemon = InBackground::of(&place);
    let mut client = place.client("");
    assert_eq!(client.say("init"), client.acknowledgement());
    let of_daemon = |name: &str| Path::new(&format!("/proc/{}", daemon.0)).join(name);
    assert_eq!(read(&of_daemon("comm")), "vmad\n");
    assert_eq!(fs::read_link(of_daemon("cwd")).expect("a link"), Path::new("/"));
    for descriptor in 0..3 {
        let open = fs::read_link(of_daemon(&format!("fd/{descriptor}"))).expect("a link");
        assert_eq!(open, Path::new("/dev/null"));
    }
    let status = read(&of_daemon("stat"));
    let session: u32 = status.split(' ').nth(5).expect("a field").parse().expect("a number");
    assert_eq!(session, daemon.0, "a session of its own");

    // A second one ends at once, without harm, and says why.
    let (status, _, error) = text(&place.run(""));
    assert_eq!(status, Some(0));
    let reason = format!(
        "vmad: could not lock PID lock file {}, errno=11 (Resource temporarily unavailable); \
         vmad already runs as process {}\n",
        place.path("lock").display(),
        daemon.0
    );
    assert_eq!(error, reason);
    let (status, out, error) = text(&place.run("--console"));
    assert_eq!((status, error), (Some(1), reason.clone()));
    assert!(out.contains(&reason.replace("vmad: could", "[ERROR ] could")), "{out}");
    assert_eq!(client.say("init"), client.acknowledgement(), "the first one serves");

    signal(daemon.0, "TERM");
    wait_until("it ends", || read(&place.path("log")).contains("Terminated"));
    assert_eq!(place.files(""), ["log", "notify", "vmad.toml"]);
    let log = read(&place.path("log"));
    let line = log.lines().last().expect("a line");
    let end = format!("vmad[{}]: [INFO  ] Terminated with code 0", daemon.0);
    assert!(line.ends_with(&end) && line.contains("T") && line.contains("Z vmad["), "{line}");
    assert!(log.contains("[WARN  ] there is no syslog ("), "{log}");
    assert_eq!(mode(&place.path("log")), 0o640);
}

#[test]
fn a_daemon_that_cannot_start_tells_its_parent_why() {
    let place = Place::new("cannot");
    fs::write(place.path("socket"), "precious").expect("a file");
    for options in ["", "--console"] {
        let (status, _, error) = text(&place.run(options));
        assert_eq!(status, Some(1));
        let socket = place.path("socket");
        assert_eq!(error, format!("vmad: {} exists and is no socket\n", socket.display()));
        assert_eq!(read(&socket), "precious");
        assert!(!place.path("lock").exists() && !place.path("pid").exists());
    }
}

#[test]
fn a_socket_that_another_program_serves_is_left_to_it() {
    let place = Place::new("served");
    let other = std::os::unix::net::UnixDatagram::bind(place.path("socket")).expect("a socket");
    let (status, _, error) = text(&place.run("--console"));
    assert_eq!(status, Some(1));
    assert!(error.ends_with("is in use by another program\n"), "{error}");
    assert!(place.path("socket").exists());
    drop(other);
    place.start("").stop();
}

// covers: DMN-10
#[test]
fn without_privileges_it_says_which_it_lacks() {
    let place = Place::new("privileges");
    fs::set_permissions(&place.directory, fs::Permissions::from_mode(0o777)).expect("ours");
    let without = |capability: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", &format!("-{capability}"), "--"]);
        command.args([env!("CARGO_BIN_EXE_vmad"), "--console", "--config"]);
        command.arg(place.path("vmad.toml"));
        command
    };
    let (status, out, error) = text(&without("net_raw").output().expect("setpriv runs"));
    assert_eq!(status, Some(1));
    let reason = "vmad needs CAP_NET_RAW to tell the peers of a dead process: start it as root\n";
    assert_eq!(error, format!("vmad: {reason}"));
    assert!(out.contains(&format!("[ERROR ] {reason}")), "{out}");
    assert!(!place.path("lock").exists());
    let daemon = place.start_by(&mut without("net_admin"));
    daemon.says("[WARN  ] without CAP_NET_ADMIN traffic cannot be led to a TAP\n");
    daemon.stop();
}

#[test]
fn after_a_kill_it_starts_over_what_was_left() {
    let place = Place::new("kill");
    let mut first = place.start("");
    first.signal("KILL");
    assert_eq!(first.wait().code(), None);
    // A longer number than ours, as the original leaves it.
    fs::write(place.path("lock"), "4194303999\nrubbish\n").expect("a file");
    assert!(place.path("socket").exists());
    fs::remove_file(place.path("stdout")).expect("a file");
    let daemon = place.start("");
    daemon.says("serving on");
    assert_eq!(read(&place.path("lock")), format!("{}\n", daemon.pid()));
    let mut client = place.client("");
    assert_eq!(client.say("init"), client.acknowledgement());
    daemon.stop();
}

#[test]
fn files_of_dead_processes_are_removed_at_the_start_and_no_others() {
    let place = Place::new("tidy");
    let notify = place.path("notify");
    fs::create_dir(&notify).expect("a directory");
    fs::set_permissions(&notify, fs::Permissions::from_mode(0o777)).expect("ours");
    let mut dead = Command::new("true").spawn().expect("it runs");
    dead.wait().expect("it is ours");
    let (dead, alive) = (dead.id(), std::process::id());
    let old = SystemTime::now() - Duration::from_secs(60);
    let file = |name: String, time| {
        let file = fs::File::create(notify.join(name)).expect("a file");
        file.set_modified(time).expect("ours");
    };
    file(format!("vma_agent.{dead}.pid"), old);
    file(format!("vma_agent.{alive}.pid"), old);
    // Just made: its process may be in another pid namespace, and about to make its socket.
    file("vma_agent.4194302.pid".into(), SystemTime::now());
    file("something.else".into(), old);
    let served = notify.join("vma_agent.4194301.sock");
    let _served = std::os::unix::net::UnixDatagram::bind(&served).expect("a socket");
    file("vma_agent.4194301.pid".into(), old);
    fs::create_dir(notify.join("vma_agent.4194300.pid")).expect("a directory");
    std::os::unix::fs::symlink("/etc/passwd", notify.join("vma_agent.4194299.pid"))
        .expect("a link");
    let daemon = place.start("");
    let mut kept = [
        "something.else".to_owned(),
        "vma_agent.4194299.pid".to_owned(),
        "vma_agent.4194300.pid".to_owned(),
        "vma_agent.4194301.pid".to_owned(),
        "vma_agent.4194301.sock".to_owned(),
        "vma_agent.4194302.pid".to_owned(),
        format!("vma_agent.{alive}.pid"),
    ];
    kept.sort_unstable();
    assert_eq!(place.files("notify"), kept);
    assert_eq!(mode(&notify), 0o1777, "put in order");
    daemon.stop();
}

#[test]
fn a_directory_that_is_not_for_all_is_never_opened_to_all() {
    let place = Place::new("closed");
    let notify = place.path("notify");
    fs::create_dir(&notify).expect("a directory");
    fs::set_permissions(&notify, fs::Permissions::from_mode(0o755)).expect("ours");
    let daemon = place.start("");
    daemon.says("is not open to all: other users' processes cannot be served");
    assert_eq!(mode(&notify), 0o755);
    daemon.stop();
    fs::remove_dir(&notify).expect("it is empty");
    std::os::unix::fs::symlink("/tmp", &notify).expect("a link");
    let (status, _, error) = text(&place.run("--console"));
    assert_eq!(status, Some(1));
    assert!(
        error.starts_with(&format!("vmad: cannot open folder {}", notify.display())),
        "{error}"
    );
}

#[test]
fn a_mistake_in_the_configuration_is_named_and_nothing_starts() {
    let place = Place::new("mistake");
    let file = place.path("vmad.toml");
    for (line, complaint) in [
        ("max_processes = 0", "max_processes = 0: it must be 1 to 4294967295"),
        ("retries = 3", "unknown field `retries`, expected one of"),
        ("log_target = 'tape'", "log_target = 'tape': it must be auto, syslog, file or stdout"),
        ("[broker]", "unknown field `broker`, expected one of"),
    ] {
        place.configure(line);
        for options in ["", "--console"] {
            let (status, out, error) = text(&place.run(options));
            assert_eq!((status, out.as_str()), (Some(1), ""));
            let start = format!("vmad: {}: {complaint}", file.display());
            assert!(error.starts_with(&start), "{error}");
        }
    }
    assert!(!place.path("lock").exists());
}
