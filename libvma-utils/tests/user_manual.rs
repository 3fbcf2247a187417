//! The user manual against the product: its examples are run, and what it names exists. Some tests need root for
//! network namespaces of their own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[track_caller]
fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn manual() -> String {
    read("docs/user-manual.md")
}

/// What stands after ``` and the text of each fenced block.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), open.as_mut()) {
            (Some(language), None) => open = Some((language.to_owned(), String::new())),
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some((_, block))) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

/// The lines of all fenced blocks that contain the words, without spaces around.
#[track_caller]
fn commands_with(words: &str) -> Vec<String> {
    let blocks = blocks(&manual());
    let lines = blocks.iter().flat_map(|(_, block)| block.lines());
    let found: Vec<_> =
        lines.filter(|line| line.contains(words)).map(|line| line.trim().to_owned()).collect();
    assert!(!found.is_empty(), "no command with {words:?} in the manual");
    found
}

/// Names such as VMA_RX_POLL in a text.
fn parameters_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("VMA_") && word.len() > 4).map(str::to_owned).collect()
}

fn text_of(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

#[track_caller]
fn shell(script: &str) -> Output {
    let mut command = Command::new("bash");
    command.args(["-c", script]).env("LC_ALL", "C").stdin(Stdio::null());
    command.output().expect("bash runs")
}

#[test]
fn every_parameter_that_the_documents_name_exists() {
    let known = parameters_in(&read("docs/parameters.md"));
    // A misspelling shown as such, the line of the banner, a value.
    let others = ["VMA_RX_POL", "VMA_VERSION", "VMA_DEFAULT_APPLICATION_ID"];
    for document in ["docs/user-manual.md", "README.md", "SECURITY.md", "docs/installation.md"] {
        for name in parameters_in(&read(document)) {
            let exists = known.contains(&name) || others.contains(&name.as_str());
            assert!(exists, "{document} names {name}");
        }
    }
}

#[test]
fn the_examples_of_libvma_conf_are_decided_as_shown() {
    let file = format!("{}/manual.conf", env!("CARGO_TARGET_TMPDIR"));
    let (mut files, mut asked) = (0, 0);
    for (language, text) in blocks(&manual()) {
        if language.starts_with("libvma.conf") {
            std::fs::write(&file, &text).expect("a file");
            let output =
                Command::new(env!("CARGO_BIN_EXE_vma_conf")).args(["--check", &file]).output();
            let right = output.expect("it runs").status.success();
            assert_eq!(right, !language.ends_with("wrong"), "{text}");
            files += 1;
        }
        if language != "console" {
            continue;
        }
        for example in text.split("$ ").filter(|example| example.starts_with("vma_conf ")) {
            let (command, shown) = example.split_once('\n').expect("a command and its output");
            let arguments = command.split_whitespace().skip(1);
            let arguments = arguments.map(|word| word.replace("/etc/libvma.conf", &file));
            let output = Command::new(env!("CARGO_BIN_EXE_vma_conf")).args(arguments).output();
            let output = output.expect("it runs");
            let said = text_of(&output.stdout) + &text_of(&output.stderr);
            assert_eq!(said.replace(&file, "/etc/libvma.conf"), shown, "{command}");
            asked += 1;
        }
    }
    assert!(files >= 4 && asked >= 9, "{files} files, {asked} questions");
}

#[test]
fn options_of_the_tools_in_the_manual_exist() {
    let tools = [
        ("vma_stats", env!("CARGO_BIN_EXE_vma_stats")),
        ("vma_conf", env!("CARGO_BIN_EXE_vma_conf")),
        ("udp_lat", env!("CARGO_BIN_EXE_udp_lat")),
        ("vmad", env!("CARGO_BIN_EXE_vmad")),
    ];
    let text = manual();
    for (name, path) in tools {
        let help = Command::new(path).arg("--help").output().expect("it runs");
        let help = text_of(&help.stdout);
        let ends = |c: char| c.is_whitespace() || ",=<[".contains(c);
        let known: BTreeSet<&str> = help.split(ends).collect();
        let start = format!("{name} -");
        for line in text.split(['`', '\n', ';', '#']).filter(|line| line.contains(&start)) {
            let (_, call) = line.split_once(&format!("{name} ")).expect("found above");
            for option in call.split_whitespace().filter(|word| word.starts_with('-')) {
                assert!(known.contains(option), "{name} has no {option}: {line}");
            }
        }
    }
}

// covers: TRB-02
#[test]
fn the_loaders_error_is_the_one_that_the_manual_explains() {
    let output = shell("LD_PRELOAD=/nowhere/libvma.so /bin/true");
    let said = text_of(&output.stderr).replace("/nowhere/libvma.so", "libvma.so");
    assert!(said.starts_with("ERROR: ld.so: "), "{said}");
    assert!(manual().contains(&format!("`{}`", said.trim())), "not in the manual: {said}");
    assert!(output.status.success(), "the program runs all the same");
}

// covers: TRB-03
#[test]
fn a_package_manager_without_root_says_what_the_manual_explains() {
    let script = "setpriv --reuid 65534 --clear-groups env HOME=/ dpkg --install /nowhere.deb";
    let said = text_of(&shell(script).stderr);
    let words = "requested operation requires superuser privilege";
    assert!(said.contains(words), "{said}");
    assert!(manual().contains(words));
}

// covers: RUN-06
#[test]
fn the_functions_to_look_up_are_those_that_the_library_exports() {
    let text = manual();
    let (_, rest) = text.split_once("<!-- symbols:begin -->\n```\n").expect("the list");
    let (list, _) = rest.split_once("```\n<!-- symbols:end -->").expect("its end");
    let of_manual: BTreeSet<&str> = list.split_whitespace().collect();
    let source = read("libvma/src/preload/symbols.rs");
    let (_, rest) = source.split_once("// symbols:begin").expect("the table");
    let (table, _) = rest.split_once("// symbols:end").expect("its end");
    let lines = table.lines().filter_map(|line| line.split("//").next());
    let of_library: BTreeSet<&str> =
        lines.filter_map(|line| line.trim().strip_suffix(',')).collect();
    assert_eq!(of_manual, of_library, "left the manual, right the library");

    let example = blocks(&text).into_iter().find(|(language, _)| language == "c").expect("in C").1;
    let file = format!("{}/manual.c", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&file, &example).expect("a file");
    let output = Command::new("gcc").args(["-Wall", "-Werror", "-fsyntax-only", &file]).output();
    let output = output.expect("gcc runs");
    assert!(output.status.success(), "{}", text_of(&output.stderr));
    for name in example.split("dlsym(library, \"").skip(1) {
        let name = name.split('"').next().expect("split yields one");
        assert!(of_library.contains(name), "the example looks {name} up");
    }
}

// covers: TRB-06, TOOL-25
#[test]
fn with_the_manuals_sysctls_each_address_answers_with_its_own_mac() {
    let commands = commands_with("sysctl -w net.ipv4.conf.");
    let settings: Vec<_> =
        commands.iter().flat_map(|line| line.split_whitespace().skip(2)).collect();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/arp_flux.sh");
    let output = Command::new(script).args(&settings).output().expect("it runs");
    let said = text_of(&output.stdout);
    assert!(output.status.success(), "{}", text_of(&output.stderr));
    let after: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("after ")).collect();
    let macs: BTreeSet<_> =
        after.iter().filter_map(|line| line.split_once(' ')).map(|(_, mac)| mac).collect();
    assert_eq!((after.len(), macs.len()), (2, 2), "{said}");
}

// covers: TOOL-22, TRB-22
#[test]
fn tools_without_a_server_say_what_the_manual_explains() {
    let words = "No messages were received from the server. Is the server down?";
    assert!(manual().contains(words));
    let udp_lat = env!("CARGO_BIN_EXE_udp_lat");
    let calls =
        [format!("{udp_lat} -c -i 127.0.0.1"), "sockperf ping-pong -t 1 -i 127.0.0.1".into()];
    let check = |call: &str| {
        let output =
            shell(&format!("unshare --net bash -c 'ip link set lo up; timeout 20 {call}'"));
        let said = text_of(&output.stdout) + &text_of(&output.stderr);
        assert!(said.contains(words), "{call}: {said}");
    };
    std::thread::scope(|scope| {
        for call in &calls {
            scope.spawn(|| check(call));
        }
    });
}

// covers: TOOL-24
#[test]
fn the_route_of_a_group_is_checked_as_the_manual_shows() {
    let examples = blocks(&manual());
    let (_, example) = examples
        .iter()
        .find(|(language, text)| language == "console" && text.contains("ip route get"))
        .expect("the example");
    let commands: Vec<_> = example.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    let shown = example.lines().last().expect("the output");
    let network = "ip link add eth1 type veth peer eth2; ip address add 10.0.0.1/24 dev eth1; \
                   ip link set eth1 up; ip link set eth2 up";
    let output = shell(&format!("unshare --net bash -ec '{network}; {}'", commands.join("; ")));
    let said = text_of(&output.stdout);
    // What follows the source address differs between versions of ip.
    let (route, _) = shown.split_once(" uid").expect("the user");
    assert!(said.starts_with(route), "{said}\n{}", text_of(&output.stderr));
}

// covers: NET-48, RUN-11, RUN-16, RUN-17
#[test]
fn the_files_about_interfaces_and_processors_are_where_the_manual_says() {
    for line in commands_with("/sys/class/net/eth1/statistics/") {
        let (command, names) = line.split_once('#').unwrap_or((&line, ""));
        let path = command.split_whitespace().nth(1).expect("a path").replace("eth1", "lo");
        assert!(Path::new(&path).exists(), "{path}");
        for name in names.split([',', ' ']).filter(|word| word.contains('_')) {
            assert!(Path::new(&path).join(name).exists(), "no {name} in {path}");
        }
    }
    commands_with("ls -d /sys/class/net/*/device");
    for entry in std::fs::read_dir("/sys/class/net").expect("sysfs") {
        let Ok(target) = std::fs::canonicalize(entry.expect("an entry").path()) else { continue };
        if target.is_dir() {
            let is_virtual = target.to_string_lossy().contains("/devices/virtual/net/");
            assert_eq!(target.join("device").exists(), !is_virtual, "{target:?}");
            // Of PCI adapters, which are what a node has.
            let of_pci = target.join("device/resource").exists() && !is_virtual;
            assert!(!of_pci || target.join("device/numa_node").exists(), "{target:?}");
        }
    }
    commands_with("device/numa_node");
    let command = commands_with("lscpu").remove(0);
    let (command, _) = command.split_once(';').expect("what follows");
    let said = text_of(&shell(command).stdout);
    assert!(said.lines().any(|line| line.starts_with("NUMA node0 CPU(s):")), "{said}");
    let threads = "/sys/devices/system/cpu/smt/active";
    assert!(manual().contains(threads) && Path::new(threads).exists());
}

// covers: NET-43
#[test]
fn what_guests_of_hyper_v_need_is_what_the_library_has() {
    let text = manual();
    let (_, chapter) = text.split_once("### Guests of Hyper-V and Azure\n").expect("the chapter");
    let (chapter, _) = chapter.split_once("\n## ").expect("the next one");
    let table = read("docs/parameters.md");
    let modes = table.lines().find(|line| line.starts_with("| VMA_XDP_MODE |")).expect("its row");
    assert!(chapter.contains("`VMA_XDP_MODE=tc`") && modes.contains(", tc |"), "{modes}");
    // The daemon's rules are not used, and a virtual function belongs to its synthetic interface.
    let agent = root().join("libvma/src/device/tap");
    assert!(chapter.contains("does not use the daemon's TAP rules") && !agent.exists());
    assert!(read("libvma/src/control/mod.rs").contains("NotOffloadable::Enslaved"));
}

// covers: TRB-15, TRB-16, TRB-21
#[test]
fn the_symptoms_in_the_manual_are_messages_of_the_library() {
    let text = manual();
    for (file, words) in [
        ("libvma/src/socket/attach.rs", " is not offloaded, the kernel serves it: "),
        (
            "libvma/src/control/mod.rs",
            "its interface is neither veth nor tap; VMA_XDP=all or VMA_XDP=<names> allows attaching to it",
        ),
        ("libvma/src/control/mod.rs", "VMA_XDP does not name its interface"),
        ("libvma/src/control/mod.rs", "its interface belongs to a bridge or bond"),
        ("libvma/src/control/mod.rs", "its interface is not Ethernet"),
        ("libvma/src/socket/why.rs", "it is an IPv6 socket"),
        ("libvma/src/socket/why.rs", "the process lacks CAP_NET_ADMIN to give it back later"),
        ("libvma/src/socket/why.rs", "; start the program as root, or give it "),
        ("libvma/src/socket/why.rs", "the route is the kernel's"),
        ("libvma/src/socket/why.rs", ", which only the kernel serves"),
        ("libvma/src/socket/why.rs", "its packets cannot be steered to the process"),
        ("libvma/src/process/mod.rs", "nothing is offloaded, the kernel serves every socket: "),
        (
            "libvma/src/process/mod.rs",
            "the program has as many descriptors as RLIMIT_NOFILE allows",
        ),
    ] {
        assert!(text.contains(words), "not in the manual: {words}");
        assert!(read(file).contains(words), "not in {file}: {words}");
    }
    // Without a route no call finds an interface, with the library or without.
    let script = "unshare --net python3 -c '
import socket
def error(call, *arguments):
    try: call(*arguments)
    except OSError as it: print(socket.errno.errorcode[it.errno])
group = socket.inet_aton(\"239.1.1.1\") + bytes(4)
error(socket.socket().connect, (\"192.0.2.1\", 80))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
error(udp.setsockopt, socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
error(udp.sendto, b\"\", (\"239.1.1.1\", 5000))
'";
    let said = text_of(&shell(script).stdout);
    assert_eq!(said, "ENETUNREACH\nENODEV\nENETUNREACH\n");
    assert!(text.contains("ENETUNREACH") && text.contains("IP_ADD_MEMBERSHIP with ENODEV"));
}

// covers: TRB-20
#[test]
fn the_settings_for_a_useful_log_are_accepted() {
    let command = commands_with("VMA_LOG_FILE=").remove(0);
    let table = read("docs/parameters.md");
    let mut count = 0;
    for setting in command.split_whitespace().filter(|word| word.starts_with("VMA_")) {
        let (name, value) = setting.split_once('=').expect("a setting");
        let row = table.lines().find(|line| line.starts_with(&format!("| {name} |")));
        let accepted = row.and_then(|row| row.split('|').nth(2)).expect("what is accepted").trim();
        let fits = accepted == "any text" || accepted.split([',', ' ']).any(|word| word == value);
        assert!(fits, "{name}={value}: {accepted}");
        count += 1;
    }
    assert_eq!(count, 3, "{command}");
}
