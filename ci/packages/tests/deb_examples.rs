//! The examples of the Debian package libvma-dev: built as its README says, and run over the packaged library.

use std::process::{Child, Command, Stdio};

use packages::{PLAIN, Peer, Root, Run, dist, wait_for};

/// Their folder in the package.
const EXAMPLES: &str = "/usr/share/doc/libvma-dev/examples";
/// The folder in which they are built and run.
const PLACE: &str = "/var/tmp/examples";
const LOG: &str = "/var/tmp/example.log";

// covers: EXT-01
#[test]
fn the_packaged_examples_are_built_as_their_readme_says_and_run() {
    let root = Root::fresh(&PLAIN);
    let peer = Peer::of(&root);
    root.install(&[dist::deb("libvma"), dist::deb("libvma-dev")]);
    build_all(&root);
    root.shell("ip route add 224.0.0.0/4 dev veth0").succeeds();
    peer.command("ip").args(["route", "add", "224.0.0.0/4", "dev", "veth1"]).succeeds();
    let before = root.kernel_datagrams();

    let filter = Example::start(&root, "filter", "10.99.0.1 5000 ABC");
    let quotes = r#"for quote in 'ABC 1' ABCD 'XYZ 2' 'ABC end'; do printf %s "$quote""#;
    say(&peer, &format!("{quotes} >/dev/udp/10.99.0.1/5000; done"));
    assert_eq!(filter.end(), "ready\nABC 1\nABC end\n2 dropped, 0 others\n");

    let echo = Example::start(&root, "zcopy_echo", "10.99.0.1 5000 3");
    let ask = "exec 3<>/dev/udp/10.99.0.1/5000; for word in one two six; do printf $word >&3; head -c 3 <&3; done";
    assert_eq!(say(&peer, ask), "onetwosix");
    assert_eq!(echo.end(), "ready\n3 lent, 0 copied\n");

    let feed = Example::start(&root, "market_data", "239.1.1.1 5000 10.99.0.1 16");
    let send = r"for number in 00 01 04 05 10; do printf '\x00\x00\x00\x'$number >/dev/udp/239.1.1.1/5000; done";
    say(&peer, send);
    assert_eq!(feed.end(), "ready\n5 messages, 12 missing, 5 stamped\nkept [0, 16]\n");

    assert_eq!(root.kernel_datagrams() - before, 0, "datagrams went by the kernel");
}

/// The commands of the README, with the sources, header and module of the package. The root has no compiler, so the host's
/// runs them there.
fn build_all(root: &Root) {
    let readme = root.read(&format!("{EXAMPLES}/README.md"));
    let commands: Vec<&str> = readme.lines().filter(|line| line.starts_with("cc ")).collect();
    let place = root.path(PLACE);
    std::fs::create_dir(&place).expect("the root is writable");
    let mut built = 0;
    for entry in std::fs::read_dir(root.path(EXAMPLES)).expect("the package brings it") {
        let source = entry.expect("a readable folder").path();
        let name = source.file_name().expect("a file").to_str().expect("text").to_owned();
        if !name.ends_with(".c") {
            continue;
        }
        let command = commands.iter().find(|command| command.contains(&format!(" {name} ")));
        let command = command.unwrap_or_else(|| panic!("{name} is not in {readme}"));
        std::fs::copy(&source, place.join(&name)).expect("the root is writable");
        let says = Command::new("sh")
            .args(["-e", "-c", command])
            .current_dir(&place)
            .env("PKG_CONFIG_PATH", root.path("/usr/lib/pkgconfig"))
            .output_of_success();
        assert_eq!(says, "", "{command}");
        built += 1;
    }
    assert_eq!(built, commands.len(), "{commands:?}");
}

/// An example that runs over the library.
struct Example<'a> {
    root: &'a Root,
    process: Child,
}

impl<'a> Example<'a> {
    fn start(root: &'a Root, name: &str, words: &str) -> Example<'a> {
        let line = format!("LD_PRELOAD=libvma.so exec {PLACE}/{name} {words} >{LOG} 2>{LOG}.err");
        root.write(LOG, "");
        let process = root.shell(&line).stdout(Stdio::null()).spawn().expect("nsenter is there");
        let example = Example { root, process };
        wait_for("the example is ready", || {
            example.root.read(LOG).starts_with("ready\n").then_some(())
        });
        example
    }

    /// Its output, when it is over.
    fn end(mut self) -> String {
        let status = wait_for("the example ends", || self.process.try_wait().expect("our child"));
        let errors = self.root.read(&format!("{LOG}.err"));
        assert!(status.success(), "{status}: {errors}");
        self.root.read(LOG)
    }
}

/// A line of bash on the peer's host; returns its output.
fn say(peer: &Peer<'_>, line: &str) -> String {
    peer.command("timeout").args(["20", "bash", "-e", "-c", line]).succeeds()
}
