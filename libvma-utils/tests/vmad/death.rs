//! What follows when a process ends without a word.

use std::time::{Duration, Instant};

use super::harness::{Client, Daemon, Place};

#[test]
fn a_killed_process_is_noticed_at_once_and_its_files_go() {
    let place = Place::new("killed");
    let daemon = place.start("");
    // The best of several: the machine may be busy.
    let noticed = (0..5).map(|_| until_noticed(&place, &daemon)).min().expect("five");
    assert!(noticed < Duration::from_millis(100), "after {noticed:?}");
    daemon.stop();
}

/// The time from the death of a process to the daemon's line about its peers.
fn until_noticed(place: &Place, daemon: &Daemon) -> Duration {
    let mut client = place.client("--user 65534");
    let pid = client.pid();
    client.say("init");
    client.say("state fd=5 peer=10.9.9.2:4000");
    client.say("state fd=6 peer=10.9.9.2:4001 state=7");
    client.say("state fd=7 peer=10.9.9.2:4002 state=6");
    daemon.says(&format!("[{pid}] update fid: 7 type: 1 state: FIN_WAIT_2"));
    assert_eq!(place.files("notify").len(), 2);
    let start = Instant::now();
    client.kill();
    daemon.says(&format!("process {pid} died: telling the peers of 2 connections"));
    let noticed = start.elapsed();
    daemon.says(&format!("[{pid}] detect abnormal termination"));
    assert_eq!(place.files("notify"), [""; 0]);
    noticed
}

// covers: DMN-02
#[test]
fn the_peer_of_a_killed_process_is_reset_within_100_ms() {
    let place = Place::new("reset");
    let daemon = place.start("");
    // The best of several: the machine may be busy.
    let taken = (0..5).map(|_| {
        let (owner, mut peer) = connected(&place, &daemon);
        let start = Instant::now();
        owner.kill();
        assert_eq!(peer.say("reset"), "reset", "it sends nothing, and learns it");
        start.elapsed()
    });
    let taken = taken.min().expect("five");
    assert!(taken < Duration::from_millis(100), "after {taken:?}");
    daemon.stop();
}

// covers: DMN-03
#[test]
fn while_no_daemon_runs_no_peer_is_told() {
    let place = Place::new("stopped");
    let daemon = place.start("");
    let (owner, mut peer) = connected(&place, &daemon);
    daemon.stop();
    owner.kill();
    assert_eq!(peer.say("reset"), "silence");
}

/// A registered process with a connection that the kernel does not know, and its peer in the kernel.
fn connected(place: &Place, daemon: &Daemon) -> (Client, Client) {
    let mut owner = place.client("");
    let mut peer = place.client_in(&owner, "--no-address");
    peer.say("listen 10.9.9.2:4000");
    owner.say("connect 10.9.9.1:5000 10.9.9.2:4000");
    peer.say("accept");
    owner.say("vanish");
    assert_eq!(owner.say("init"), owner.acknowledgement());
    owner.say("state fd=5 local=10.9.9.1:5000 peer=10.9.9.2:4000");
    daemon.says(&format!("[{}] update fid: 5 type: 1 state: ESTABLISHED", owner.pid()));
    (owner, peer)
}

#[test]
fn who_has_said_goodbye_is_not_mourned() {
    let place = Place::new("goodbye");
    let daemon = place.start("");
    let mut client = place.client("");
    client.say("init");
    client.say("state");
    client.say("exit");
    client.kill();
    // The daemon has seen the death of another one since.
    let mut second = place.client("");
    second.say("init");
    second.kill();
    // The last it says of a death.
    daemon.says("telling the peers of 0 connections");
    assert_eq!(daemon.count("detect abnormal termination"), 1);
    assert_eq!(daemon.count("telling the peers of 0 connections"), 1);
    daemon.stop();
}

#[test]
fn a_connection_that_the_kernel_has_is_not_reset() {
    let place = Place::new("kernel");
    let daemon = place.start("");
    let mut owner = place.client("");
    owner.say("listen 10.9.9.2:4000");
    owner.say("connect 10.9.9.1:5000 10.9.9.2:4000");
    // Somebody else, in the same network, says that it is his.
    let mut thief = place.client_in(&owner, "--user 65534");
    assert_eq!(thief.say("init"), thief.acknowledgement());
    thief.say("state fd=5 local=10.9.9.1:5000 peer=10.9.9.2:4000");
    thief.say("state fd=6 local=10.9.9.2:4000 peer=10.9.9.1:5000");
    daemon.says("update fid: 6");
    let pid = thief.pid();
    thief.kill();
    daemon.says(&format!("process {pid} died: telling the peers of 0 connections"));
    assert_eq!(daemon.count("is the kernel's"), 2);
    daemon.stop();
}

#[test]
fn a_connection_that_another_process_has_too_is_not_reset() {
    let place = Place::new("shared");
    let daemon = place.start("");
    let mut owner = place.client("");
    owner.say("init");
    owner.say("state fd=5");
    let mut thief = place.client_in(&owner, "--user 65534");
    thief.say("init");
    thief.say("state fd=9");
    daemon.says("update fid: 9");
    let pid = thief.pid();
    thief.kill();
    daemon.says(&format!("process {pid} died: telling the peers of 0 connections"));
    daemon.says("lives on in another process");
    let pid = owner.pid();
    owner.kill();
    daemon.says(&format!("process {pid} died: telling the peers of 1 connections"));
    daemon.stop();
}

#[test]
fn files_that_are_not_the_dead_users_stay() {
    let place = Place::new("files");
    let daemon = place.start("");
    let mut client = place.client("--user 65534");
    client.say("init");
    let file = place.path(&format!("notify/vma_agent.{}.pid", client.pid()));
    std::fs::remove_file(&file).expect("it is there");
    std::fs::write(&file, "root's").expect("a file");
    client.kill();
    daemon.says("remove from the storage");
    assert!(file.exists());
    assert_eq!(place.files("notify").len(), 1, "its socket is gone");
    daemon.stop();
}

/// In a pid namespace of its own, a process is 1, and its files are named so.
#[test]
fn a_process_in_another_pid_namespace_is_served_under_its_own_number() {
    let place = Place::new("namespace");
    let daemon = place.start("");
    let mut client = place.client_as_first("");
    assert_eq!(client.say("pid"), "1");
    assert_eq!(client.say("init"), "810300010100000054980000");
    client.say("state");
    daemon.says("[1] update fid: 5");
    assert_eq!(place.files("notify"), ["vma_agent.1.pid", "vma_agent.1.sock"]);
    // Ends unshare, which takes the namespace with it.
    client.kill();
    daemon.says("[1] detect abnormal termination");
    daemon.says("telling the peers of 1 connections");
    assert_eq!(place.files("notify"), [""; 0]);
    daemon.stop();
}
