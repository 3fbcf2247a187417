//! The init script on a Debian without systemd, with Debian's helper functions.

use std::process::Stdio;

use packages::{Root, Run, wait_for};

use crate::act::{
    DAEMON, LOCK_FILE, PID_FILE, SCRIPT, act, expect, installed, kill, number_in, run, running,
    whole_life,
};

// covers: INS-07, DMN-01
#[test]
fn the_script_starts_restarts_and_stops_the_daemon_and_knows_whether_it_runs() {
    let root = installed();
    whole_life(&root);
}

// covers: INS-07
#[test]
fn success_and_failure_are_shown_as_debian_does() {
    let root = installed();
    assert_eq!(expect(&root, "start", 0).out, "Starting vmad: vmad.\n");
    assert_eq!(expect(&root, "stop", 0).out, "Shutting down vmad: vmad.\n");

    root.write("/etc/vma/vmad.toml", "max_processes = 'many'\n");
    let said = expect(&root, "start", 1);
    assert_eq!(said.out, "Starting vmad: vmad ... failed!\n");
    assert!(said.err.contains("/etc/vma/vmad.toml"), "{said:?}");
    assert!(said.err.contains("max_processes"), "{said:?}");
    expect(&root, "status", 3);
}

// covers: INS-07
#[test]
fn status_tells_what_a_dead_daemon_left() {
    let root = installed();
    expect(&root, "start", 0);
    let daemon = number_in(&root, PID_FILE);
    kill(&root, "KILL", daemon);
    wait_for("the daemon is dead", || running(&root, "vmad").is_empty().then_some(()));

    let said = expect(&root, "status", 1);
    assert!(said.err.contains("vmad.pid"), "{said:?}");
    std::fs::remove_file(root.path(PID_FILE)).expect("the dead daemon's pid file is there");
    let said = expect(&root, "status", 2);
    assert!(said.err.contains("vmad.lock"), "{said:?}");
    std::fs::remove_file(root.path(LOCK_FILE)).expect("and its lock file");
    expect(&root, "status", 3);
}

// covers: INS-07
#[test]
fn stop_clears_away_what_a_dead_daemon_left() {
    let root = installed();
    expect(&root, "start", 0);
    kill(&root, "KILL", number_in(&root, PID_FILE));
    wait_for("the daemon is dead", || running(&root, "vmad").is_empty().then_some(()));
    expect(&root, "stop", 0);
    expect(&root, "status", 3);
}

// covers: INS-07
#[test]
fn a_program_that_got_a_dead_daemons_number_is_left_alone() {
    let root = installed();
    let mut bystander = root.command("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
    let number = wait_for("it runs", || running(&root, "sleep").first().copied());
    for file in [PID_FILE, LOCK_FILE] {
        root.write(file, &format!("{number}\n"));
    }
    expect(&root, "status", 1);
    expect(&root, "stop", 0);
    assert_eq!(running(&root, "sleep"), [number]);

    root.write(PID_FILE, &format!("{number}\n"));
    expect(&root, "start", 0);
    let daemon = number_in(&root, PID_FILE);
    assert_ne!(daemon, number);
    for action in ["restart", "force-reload", "reload", "try-restart", "stop"] {
        expect(&root, action, 0);
    }
    assert_eq!(running(&root, "sleep"), [number]);
    kill(&root, "TERM", number);
    bystander.wait().unwrap();
}

// covers: INS-07
#[test]
fn files_that_hold_no_number_are_no_daemon() {
    let root = installed();
    for text in ["", "\n", "vmad\n", "-1\n", "0\n", "1 2\n", "99999999999999999999\n"] {
        root.write(PID_FILE, text);
        let said = expect(&root, "status", 1);
        assert_eq!(said.out, "vmad is not running.\n", "{text:?}");
        expect(&root, "stop", 0);
    }
}

// covers: INS-07
#[test]
fn reloads_keep_the_daemon_and_conditional_restarts_start_none() {
    let root = installed();
    expect(&root, "reload", 7);
    for action in ["try-restart", "condrestart"] {
        expect(&root, action, 0);
    }
    expect(&root, "status", 3);

    // As the original, which stops and starts.
    expect(&root, "force-reload", 0);
    let daemon = number_in(&root, PID_FILE);
    for action in ["reload", "force-reload"] {
        expect(&root, action, 0);
        assert_eq!(running(&root, "vmad"), [daemon], "{action}");
    }
    expect(&root, "try-restart", 0);
    assert_ne!(number_in(&root, PID_FILE), daemon);
    expect(&root, "stop", 0);
    expect(&root, "restart", 0);
    expect(&root, "status", 0);
}

// covers: INS-07, DMN-01
#[test]
fn only_root_may_start_and_stop_and_everybody_may_ask() {
    let root = installed();
    let user = |action| {
        let mut command = root.command("setpriv");
        run(command.args(["--reuid=65534", "--regid=65534", "--clear-groups", SCRIPT, action]))
    };
    for action in ["start", "stop", "restart", "force-reload", "reload", "try-restart"] {
        let said = user(action);
        assert_eq!(
            (said.code, said.err.as_str()),
            (4, "root permission is required\n"),
            "{action}"
        );
    }
    assert_eq!(user("status").code, 3);
    expect(&root, "start", 0);
    let daemon = number_in(&root, PID_FILE);
    let said = user("status");
    assert_eq!((said.code, said.out), (0, format!("vmad is running... pid={daemon}\n")));
    assert_eq!(user("stop").code, 4);
    assert_eq!(running(&root, "vmad"), [daemon]);
}

// covers: INS-07
#[test]
fn other_words_get_the_usage() {
    let root = installed();
    for words in [&["begin"][..], &[], &[""], &["START"]] {
        let said = run(root.command(SCRIPT).args(words));
        assert_eq!(said.code, 2, "{words:?}");
        assert!(said.err.contains("{start|stop|status|restart|force-reload"), "{said:?}");
    }
}

// covers: INS-07
#[test]
fn without_a_daemon_to_start_the_script_says_not_installed() {
    let root = installed();
    std::fs::remove_file(root.path(DAEMON)).expect("the package brought it");
    let said = expect(&root, "start", 5);
    assert_eq!(said.err, "/usr/sbin/vmad is not installed\n");
    expect(&root, "stop", 0);
    expect(&root, "status", 3);
}

// covers: INS-07
#[test]
fn a_daemon_that_does_not_listen_is_stopped_by_force() {
    let root = installed();
    expect(&root, "start", 0);
    let daemon = number_in(&root, PID_FILE);
    kill(&root, "STOP", daemon);
    expect(&root, "stop", 0);
    assert_eq!(running(&root, "vmad"), []);
    expect(&root, "status", 3);
}

// covers: INS-07
#[test]
fn a_daemon_whose_file_was_replaced_is_still_known() {
    let root = installed();
    expect(&root, "start", 0);
    let old = number_in(&root, PID_FILE);
    // As dpkg and rpm replace a file.
    root.shell(&format!("cp {DAEMON} {DAEMON}.new; mv {DAEMON}.new {DAEMON}")).succeeds();
    expect(&root, "status", 0);
    expect(&root, "restart", 0);
    assert_ne!(number_in(&root, PID_FILE), old);
    std::fs::remove_file(root.path(DAEMON)).expect("the package brought it");
    expect(&root, "status", 0);
    expect(&root, "stop", 0);
    assert_eq!(running(&root, "vmad"), []);
}

// covers: INS-07
#[test]
fn a_configured_pid_file_is_followed() {
    let root = installed();
    root.write(
        "/etc/vma/vmad.toml",
        "# pid_file = '/run/no.pid'\npid_file = \"/run/other.pid\" # here\nlock_file='/run/other.lock'\n",
    );
    expect(&root, "start", 0);
    assert!(!root.path(PID_FILE).exists());
    let daemon = number_in(&root, "/run/other.pid");
    assert_eq!(expect(&root, "status", 0).out, format!("vmad is running... pid={daemon}\n"));
    kill(&root, "KILL", daemon);
    wait_for("the daemon is dead", || running(&root, "vmad").is_empty().then_some(()));
    expect(&root, "status", 1);
    expect(&root, "stop", 0);
    expect(&root, "status", 3);
}

// covers: INS-08
#[test]
fn the_boot_order_of_debian_takes_the_script() {
    let root = installed();
    root.command("update-rc.d").args(["vma", "defaults"]).succeeds();
    let links = |level: &str| {
        let names = std::fs::read_dir(root.path(&format!("/etc/rc{level}.d"))).expect("runlevels");
        let names = names.flatten().map(|entry| entry.file_name().into_string().expect("text"));
        names.filter(|name| name.ends_with("vma")).collect::<Vec<_>>()
    };
    for level in ["2", "3", "4", "5"] {
        assert!(links(level).iter().all(|name| name.starts_with('S')), "{:?}", links(level));
        assert_eq!(links(level).len(), 1);
    }
    for level in ["0", "1", "6"] {
        assert!(links(level).iter().all(|name| name.starts_with('K')), "{:?}", links(level));
        assert_eq!(links(level).len(), 1);
    }
}

// covers: INS-07, DMN-01
#[test]
fn a_daemon_started_by_hand_is_the_one_the_script_speaks_of() {
    let root = installed();
    let mut by_hand = start_by_hand(&root);
    let daemon = wait_for("its pid file is there", || {
        std::fs::read_to_string(root.path(PID_FILE)).ok()?.trim().parse::<u32>().ok()
    });
    expect(&root, "start", 0);
    assert_eq!(act(&root, "status").out, format!("vmad is running... pid={daemon}\n"));
    assert_eq!(running(&root, "vmad"), [daemon]);
    expect(&root, "stop", 0);
    assert!(by_hand.wait().unwrap().success(), "it ended as a daemon that was asked to");
}

fn start_by_hand(root: &Root) -> std::process::Child {
    let mut command = root.command(DAEMON);
    command.arg("--console").stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("nsenter runs")
}
