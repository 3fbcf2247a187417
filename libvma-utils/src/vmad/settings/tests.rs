use super::*;

/// Settings of a file with this text.
fn load(text: &str, given: &Given) -> anyhow::Result<Settings> {
    let file = scratch_file(text);
    let settings = Settings::load(&Given { config: Some(file.clone()), ..given.clone() });
    std::fs::remove_file(file).expect("it is ours");
    settings
}

fn scratch_file(text: &str) -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("vmad-settings-{}-{number}.toml", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, text).expect("a file");
    path
}

/// The error, without the file's name.
fn refused(text: &str) -> String {
    let error = load(text, &Given::default()).expect_err("it is wrong");
    let text = format!("{error:#}");
    let (file, rest) = text.split_once(".toml: ").unwrap_or_else(|| panic!("no file in {text}"));
    assert!(file.contains("vmad-settings-"), "{file}");
    rest.to_owned()
}

#[test]
fn an_empty_file_leaves_the_defaults() {
    assert_eq!(load("", &Given::default()).expect("right"), Settings::default());
}

// covers: DMN-09
#[test]
fn the_file_overrides_the_defaults_and_the_command_line_the_file() {
    let text = "retry_interval_ms = 20\nmax_processes = 7\nforce_rst = true\nlog_level = 1\n\
                notify_dir = '/a'\nlog_target = 'file'\n";
    let settings = load(text, &Given::default()).expect("right");
    let expected = Settings {
        retry_interval: Duration::from_millis(20),
        max_processes: 7,
        force_rst: true,
        log_level: 1,
        notify_dir: "/a".into(),
        log_target: Target::File,
        ..Settings::default()
    };
    assert_eq!(settings, expected);
    let given = Given {
        retry_interval: Some(Duration::from_millis(30)),
        max_processes: Some(8),
        max_sockets: Some(9),
        verbose: Some(6),
        notify_dir: Some("/b".into()),
        ..Given::default()
    };
    let settings = load(text, &given).expect("right");
    let expected = Settings {
        retry_interval: Duration::from_millis(30),
        max_processes: 8,
        max_sockets: 9,
        log_level: 6,
        notify_dir: "/b".into(),
        ..expected
    };
    assert_eq!(settings, expected);
}

#[test]
fn a_relative_directory_of_the_command_line_is_where_the_daemon_was_started() {
    let given = Given { notify_dir: Some("here".into()), ..Given::default() };
    let settings = load("", &given).expect("right");
    assert_eq!(settings.notify_dir, std::env::current_dir().expect("one").join("here"));
}

#[test]
fn the_console_logs_to_stdout_unless_the_file_says_otherwise() {
    let console = Given { console: true, ..Given::default() };
    let target = |text| load(text, &console).expect("right").log_target;
    assert_eq!(target(""), Target::Stdout);
    assert_eq!(target("log_target = 'auto'"), Target::Stdout);
    assert_eq!(target("log_target = 'syslog'"), Target::Syslog);
    assert_eq!(
        refused("log_target = 'stdout'"),
        "log_target = 'stdout': only with --console is there one"
    );
}

#[test]
fn a_mistake_names_key_and_value() {
    assert!(refused("max_procs = 4").starts_with("unknown field `max_procs`, expected one of `so"));
    assert_eq!(refused("max_processes = 0"), "max_processes = 0: it must be 1 to 4294967295");
    assert_eq!(refused("log_level = -1"), "log_level = -1: it must be 0 to 4294967295");
    let wrong_kind = refused("max_sockets = 'many'");
    assert!(wrong_kind.contains("\"many\"") && wrong_kind.contains("max_sockets"), "{wrong_kind}");
    assert_eq!(refused("socket = 'x'"), "socket = 'x': it must begin with /");
    let long = format!("/{}", "x".repeat(107));
    assert_eq!(
        refused(&format!("socket = '{long}'")),
        format!("socket = '{long}': a socket's path has at most 107 bytes, not 108")
    );
    assert_eq!(
        refused("log_target = 'tape'"),
        "log_target = 'tape': it must be auto, syslog, file or stdout"
    );
    assert!(refused("socket = ").contains("socket = "), "the line is shown");
}

#[test]
fn a_file_that_was_asked_for_must_be_there() {
    let given = Given { config: Some("/nowhere/vmad.toml".into()), ..Given::default() };
    let error = Settings::load(&given).expect_err("it is not there");
    assert_eq!(
        error.to_string(),
        "cannot read /nowhere/vmad.toml: No such file or directory (os error 2)"
    );
}

/// Takes the comment signs off init/vmad.toml, so that it says the defaults.
#[test]
fn the_installed_file_shows_every_key_with_its_default() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../init/vmad.toml");
    let text = std::fs::read_to_string(path).expect("it is there");
    assert_eq!(load(&text, &Given::default()).expect("right"), Settings::default());
    let said: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix('#')).collect();
    let said: Vec<&str> = said.into_iter().filter(|line| !line.starts_with([' ', '#'])).collect();
    assert_eq!(load(&said.join("\n"), &Given::default()).expect("right"), Settings::default());
    let mut keys: Vec<_> = said.iter().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    keys.sort_unstable();
    assert_eq!(keys, KEYS, "every key, and each once");
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/vmad.8");
    let manual = std::fs::read_to_string(manual).expect("it is there");
    for key in KEYS {
        assert!(manual.contains(&format!(".B {key}\n")), "{key} is not in vmad.8");
    }
}

const KEYS: [&str; 16] = [
    "force_rst",
    "grant_socket",
    "lock_file",
    "log_file",
    "log_level",
    "log_target",
    "max_processes",
    "max_ring_flows",
    "max_ring_memory_mib",
    "max_rings",
    "max_sockets",
    "notify_dir",
    "pid_file",
    "retry_interval_ms",
    "socket",
    "syslog_socket",
];

#[test]
fn rules_of_grants_name_interfaces_and_who() {
    let text = "max_rings = 2\nmax_ring_flows = 3\nmax_ring_memory_mib = 5\n\
                [[grant]]\ninterfaces = ['eth1', 'eth2']\nusers = ['root', '4711']\n\
                [[grant]]\ninterfaces = ['*']\ngroups = ['root']\n";
    let settings = load(text, &Given::default()).expect("right");
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let expected = Rules {
        rules: vec![
            Rule { interfaces: names(&["eth1", "eth2"]), users: vec![0, 4711], groups: vec![] },
            Rule { interfaces: names(&["*"]), users: vec![], groups: vec![0] },
        ],
        most_rings: 2,
        most_flows: 3,
        most_memory: 5 << 20,
    };
    assert_eq!(settings.grants, expected);
    assert!(Settings::default().grants.is_empty());
}

#[test]
fn a_rule_of_grants_that_grants_nothing_is_an_error() {
    let refused = |rule: &str| refused(&format!("[[grant]]\n{rule}"));
    assert_eq!(
        refused("interfaces = ['eth1']"),
        "[[grant]] interfaces = [\"eth1\"]: name users or groups who may have rings there"
    );
    assert_eq!(
        refused("interfaces = []\nusers = ['root']"),
        "[[grant]] interfaces = []: name an interface, or \"*\" for all"
    );
    assert_eq!(
        refused("interfaces = ['eth1']\nusers = ['nobody.of.this.name']"),
        "[[grant]] interfaces = [\"eth1\"]: there is no user 'nobody.of.this.name'"
    );
    assert!(refused("interfaces = ['eth1']\nuser = 'root'").contains("unknown field"));
    assert!(refused("users = ['root']").contains("interfaces"));
}
