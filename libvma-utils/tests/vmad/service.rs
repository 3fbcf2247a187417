//! What the service manager hears.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use super::harness::{PATIENCE, Place, receive};

#[test]
fn the_service_manager_hears_of_start_life_reload_and_end() {
    let place = Place::new("service");
    let manager = UnixDatagram::bind(place.path("manager")).expect("a socket");
    manager.set_read_timeout(Some(PATIENCE)).expect("no error");
    let next = || receive(&manager);
    let after_watchdog = || {
        loop {
            let words = next();
            if words != "WATCHDOG=1\n" {
                return words;
            }
        }
    };
    let mut command = place.command("--console");
    command.env("NOTIFY_SOCKET", place.path("manager")).env("WATCHDOG_USEC", "400000");
    let mut daemon = place.start_by(&mut command);
    let ready = format!("READY=1\nSTATUS=Serving on {}\n", place.path("socket").display());
    assert_eq!(next(), ready, "before anything else");

    // Every 200 ms at half of what the manager waits: five in a second, at most one early.
    assert_eq!(next(), "WATCHDOG=1\n");
    let start = Instant::now();
    for _ in 0..5 {
        assert_eq!(next(), "WATCHDOG=1\n");
    }
    let period = start.elapsed() / 5;
    assert!(period > Duration::from_millis(150), "{period:?}");
    assert!(period < Duration::from_millis(400), "{period:?}");

    daemon.signal("HUP");
    let reloading = after_watchdog();
    let time = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("both");
    assert!(time.trim().parse::<u64>().expect("a number") > 0);
    assert_eq!(after_watchdog(), ready);

    daemon.signal("TERM");
    assert_eq!(after_watchdog(), "STOPPING=1\n");
    assert_eq!(daemon.wait().code(), Some(0));
}

#[test]
fn without_a_service_manager_there_is_no_watchdog() {
    let place = Place::new("no-service");
    let daemon = place.start("");
    let mut client = place.client("");
    assert_eq!(client.say("init"), client.acknowledgement());
    assert_eq!(daemon.count("service manager"), 0);
    daemon.stop();
}
