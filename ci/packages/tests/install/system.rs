//! Installations that are used: by an ordinary user into a folder of his, and by root.

use packages::{PLAIN, Root, Run};

use crate::sources::{TREE, bring, script};

/// A program that makes an Internet socket, upon which the library shows its banner.
const PROGRAM: &str = "bash -c 'echo hello >/dev/udp/127.0.0.1/9'";

// covers: INS-28
#[test]
fn an_ordinary_user_installs_into_a_folder_of_his() {
    let root = Root::fresh(&PLAIN);
    bring(&root);
    root.shell("useradd --create-home user").succeeds();
    let user =
        |line: &str| root.shell(&format!("setpriv --reuid=user --regid=user --init-groups {line}"));

    let install = format!("{TREE}/packaging/install.sh --no-build --prefix=/home/user/vma");
    let said = user(&install).succeeds();
    let library = "/home/user/vma/lib/libvma.so";
    assert!(said.contains(&format!("LD_PRELOAD={library} program\n")), "{said}");
    let setting = "VMA_CONFIG_FILE=/home/user/vma/etc/libvma.conf";
    assert!(said.contains(setting), "{said}");
    assert!(!said.contains("init.d"), "{said}");

    let run = |extra: &str| {
        user(&format!("env LD_PRELOAD={library} {extra} {PROGRAM}")).output_of_success()
    };
    let version = format!("VMA_VERSION: {}", env!("CARGO_PKG_VERSION"));
    assert!(run("VMA_TRACELEVEL=info").contains(&version), "{}", run("VMA_TRACELEVEL=info"));
    assert_eq!(run("VMA_TRACELEVEL=none"), "");

    user(&format!("{install} --uninstall")).succeeds();
    let left = root.shell("ls -A /home/user/vma 2>/dev/null || true").succeeds();
    assert_eq!(left, "");
}

// covers: INS-31
#[test]
fn the_library_in_the_build_tree_is_the_one_that_the_banner_names() {
    let root = Root::fresh(&PLAIN);
    bring(&root);
    let banner = |library: &str| {
        let library = format!("{TREE}/target/{library}/libvma.so");
        root.shell(&format!("LD_PRELOAD={library} VMA_TRACELEVEL=info {PROGRAM}"))
            .output_of_success()
    };
    let released = banner("release");
    assert!(
        released.contains("VMA_VERSION: ") && !released.contains("-*- DEBUG -*-"),
        "{released}"
    );
    let debug = banner("debug-library");
    assert!(debug.contains("-*- DEBUG -*-"), "{debug}");
}

// covers: INS-28, INS-02, INS-27, DMN-01
#[test]
fn root_installs_into_the_system_and_starts_the_daemon() {
    let root = Root::fresh(&PLAIN);
    bring(&root);
    // The loader's cache is made anew by both.
    root.command("ldconfig").succeeds();
    let before = names(&root);

    let said = script(&root, &["--no-build"]).succeeds();
    assert!(said.contains("LD_PRELOAD=libvma.so program\n"), "{said}");
    assert!(said.contains("/etc/init.d/vma start\n"), "{said}");
    assert!(!said.contains("VMA_CONFIG_FILE"), "{said}");

    let output = root
        .shell(&format!("LD_PRELOAD=libvma.so VMA_TRACELEVEL=info {PROGRAM}"))
        .output_of_success();
    assert!(output.contains("VMA_VERSION: "), "{output}");
    root.command("/etc/init.d/vma").arg("start").succeeds();
    let status = root.command("/etc/init.d/vma").arg("status").succeeds();
    assert!(status.starts_with("vmad is running... pid="), "{status}");
    let executed = root.shell("readlink /proc/$(cat /run/vmad.pid)/exe").succeeds();
    assert_eq!(executed, "/usr/local/sbin/vmad\n");
    let page = root.shell("man --where vmad").succeeds();
    assert!(page.starts_with("/usr/local/") && page.ends_with("/man8/vmad.8.gz\n"), "{page}");

    script(&root, &["--uninstall"]).succeeds();
    let running = root.shell("pgrep -x vmad || true").succeeds();
    assert_eq!(running, "", "the daemon was stopped");
    let mut after = names(&root);
    // The daemon's own: the folder where programs meet it, and its log where there is no syslog.
    after.retain(|name| !name.starts_with("tmp/vma") && name != "var/log/vmad.log");
    assert_eq!(after, before);
}

// covers: INS-28
#[test]
fn the_daemon_of_another_folder_reads_the_configuration_there() {
    let root = Root::fresh(&PLAIN);
    bring(&root);
    script(&root, &["--no-build", "--prefix=/opt/vma"]).succeeds();
    root.write("/opt/vma/etc/vma/vmad.toml", "pid_file = '/run/opt.pid'\n");
    root.command("/opt/vma/etc/init.d/vma").arg("start").succeeds();
    root.shell("readlink /proc/$(cat /run/opt.pid)/exe | grep -qx /opt/vma/sbin/vmad").succeeds();
    root.command("/opt/vma/etc/init.d/vma").arg("stop").succeeds();
    root.shell("test ! -e /run/opt.pid").succeeds();
}

/// The names of all that lies in the root, without what any program changes.
fn names(root: &Root) -> Vec<String> {
    let tree = root.tree();
    let names = tree.keys().map(|path| path.display().to_string());
    names.filter(|name| !name.starts_with("var/cache/") && !name.starts_with("run/")).collect()
}
