//! The log's targets and levels, and the configuration read again.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use super::harness::{PATIENCE, Place, read, receive, wait_until};

#[test]
fn a_reload_changes_what_it_can_and_names_what_it_cannot() {
    let place = Place::new("reload");
    place.configure("log_level = 4");
    let daemon = place.start_by(&mut place.command("--console"));
    daemon.says("serving on");
    assert_eq!(daemon.count("[DEBUG ]"), 0);
    place.configure("log_level = 5\nmax_processes = 7\nretry_interval_ms = 20\nforce_rst = true");
    daemon.signal("HUP");
    daemon.says("[INFO  ] configuration read again\n");
    daemon.says("[WARN  ] a restart is needed for a change of max_processes\n");
    daemon.says("[DEBUG ] retry interval: 20 ms\n");
    daemon.says("[DEBUG ] force rst: on\n");
    daemon.says("[DEBUG ] max processes: 499\n");
    // Wrong: everything stays.
    place.configure("log_level = 1\nnonsense = 1");
    daemon.signal("HUP");
    daemon.says("[ERROR ] configuration not changed: ");
    daemon.says("unknown field `nonsense`");
    let mut client = place.client("");
    assert_eq!(client.say("init"), client.acknowledgement());
    daemon.says("[DEBUG ] getting message");
    daemon.stop();
}

#[test]
fn the_command_line_wins_at_a_reload_too() {
    let place = Place::new("reload-options");
    let daemon = place.start("-r 30");
    place.configure("log_level = 1\nretry_interval_ms = 20");
    daemon.signal("HUP");
    daemon.says("configuration read again");
    wait_until("it is told twice", || daemon.count("retry interval: 30 ms") == 2);
    daemon.stop();
}

#[test]
fn a_level_shows_what_is_as_grave_and_nothing_else() {
    let place = Place::new("level");
    let daemon = place.start_by(&mut place.command("--console -v 3"));
    let mut client = place.client("");
    assert_eq!(client.say("init"), client.acknowledgement());
    client.say("raw 00");
    daemon.says("[WARN  ] refused a message");
    daemon.signal("HUP");
    assert_eq!(client.say("init"), client.acknowledgement());
    assert_eq!(daemon.log().lines().count(), 1, "{}", daemon.log());
    daemon.stop();
}

#[test]
fn the_log_file_is_opened_anew_at_a_reload() {
    let place = Place::new("rotate");
    place.configure("log_target = 'file'");
    let daemon = place.start_by(&mut place.command("--console"));
    wait_until("it serves", || read(&place.path("log")).contains("serving on"));
    std::fs::rename(place.path("log"), place.path("log.1")).expect("it is there");
    daemon.signal("HUP");
    wait_until("a new file", || place.path("log").exists());
    wait_until("it is written", || read(&place.path("log")).contains("configuration read again"));
    assert!(!read(&place.path("log.1")).contains("configuration read again"));
    assert_eq!(daemon.log(), "", "nothing on stdout");
    daemon.stop();
}

/// `<priority>time vmad[pid]: text`; LOCAL5 is 21 * 8.
#[test]
fn syslog_gets_every_line_with_its_priority() {
    let place = Place::new("syslog");
    place.configure("log_target = 'syslog'\nlog_level = 5");
    let syslog = UnixDatagram::bind(place.path("syslog")).expect("a socket");
    // Read while the daemon starts: it does not wait for who does not.
    let (sender, lines) = std::sync::mpsc::channel();
    let reader = std::thread::spawn({
        let syslog = syslog.try_clone().expect("a descriptor");
        move || {
            loop {
                let line = receive(&syslog);
                // Nothing is the end.
                if line.is_empty() || sender.send(line).is_err() {
                    return;
                }
            }
        }
    });
    let next = || lines.recv_timeout(PATIENCE).expect("a line");
    let until = |text: &str| {
        loop {
            let line = next();
            if line.contains(text) {
                return line;
            }
        }
    };
    let daemon = place.start_by(&mut place.command("--console"));
    let pid = daemon.pid();
    let first = next();
    assert!(first.starts_with("<173>"), "notice: {first}");
    assert!(first.ends_with(&format!(" vmad[{pid}]: [INFO  ] Starting")), "{first}");
    assert!(until("[DEBUG ] package version").starts_with("<174>"), "info");
    until("starting loop");
    let mut client = place.client("");
    client.say("raw 00");
    assert!(until("[WARN  ] refused").starts_with("<172>"), "warning");
    client.say("init ver=9");
    assert!(until("[ERROR ] Protocol message mismatch").starts_with("<171>"), "err");
    assert!(!place.path("log").exists());

    // Without it, the daemon goes on, with a file.
    syslog.shutdown(std::net::Shutdown::Both).expect("it is open");
    reader.join().expect("no panic");
    drop(syslog);
    std::fs::remove_file(place.path("syslog")).expect("it is there");
    assert_eq!(client.say("init"), client.acknowledgement());
    wait_until("the file", || place.path("log").exists());
    let log = || read(&place.path("log"));
    wait_until("the line", || log().contains("put into the storage"));
    assert!(log().contains("[WARN  ] there is no syslog ("), "{}", log());
    daemon.stop();
}

/// A syslog daemon that hangs must not make ours hang.
#[test]
fn a_syslog_that_does_not_read_does_not_stop_the_daemon() {
    let place = Place::new("syslog-hangs");
    place.configure("log_target = 'syslog'\nlog_level = 6");
    let syslog = UnixDatagram::bind(place.path("syslog")).expect("a socket");
    let daemon = place.start_by(&mut place.command("--console"));
    let mut client = place.client("");
    let start = Instant::now();
    for _ in 0..400 {
        client.say("state");
    }
    assert_eq!(client.say("init"), client.acknowledgement());
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    // It learns how many it has missed.
    syslog.set_read_timeout(Some(PATIENCE)).expect("no error");
    loop {
        client.say("state");
        if receive(&syslog).contains(" lines were lost here") {
            break;
        }
    }
    drop(syslog);
    daemon.stop();
}
