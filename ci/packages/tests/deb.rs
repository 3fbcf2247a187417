//! The Debian packages on a Debian 12 without an init, as in a container: what they bring, how they
//! come and go, and what they leave.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use packages::{Entry, PLAIN, Root, Run, Tree, dist};

/// Of the package libvma, with their modes.
const LIBVMA: &[(&str, u32)] = &[
    ("/usr/lib/libvma-debug.so", 0o644),
    ("/usr/sbin/vmad", 0o755),
    ("/etc/init.d/vma", 0o755),
    ("/etc/libvma.conf", 0o644),
    ("/etc/security/limits.d/30-libvma-limits.conf", 0o644),
    ("/etc/vma/vmad.toml", 0o644),
    ("/lib/systemd/system/vma.service", 0o644),
    ("/usr/share/doc/libvma/README.txt", 0o644),
    ("/usr/share/doc/libvma/VMA_VERSION", 0o644),
    ("/usr/share/doc/libvma/architecture.md", 0o644),
    ("/usr/share/doc/libvma/compatibility.md", 0o644),
    ("/usr/share/doc/libvma/containers.md", 0o644),
    ("/usr/share/doc/libvma/extra-api.md", 0o644),
    ("/usr/share/doc/libvma/installation.md", 0o644),
    ("/usr/share/doc/libvma/interposition.md", 0o644),
    ("/usr/share/doc/libvma/monitoring.md", 0o644),
    ("/usr/share/doc/libvma/parameters.md", 0o644),
    ("/usr/share/doc/libvma/performance.md", 0o644),
    ("/usr/share/doc/libvma/performance.svg", 0o644),
    ("/usr/share/doc/libvma/release-notes.md", 0o644),
    ("/usr/share/doc/libvma/socket-options.md", 0o644),
    ("/usr/share/doc/libvma/user-manual.md", 0o644),
    ("/usr/share/doc/libvma/changelog.Debian.gz", 0o644),
    ("/usr/share/doc/libvma/changelog.gz", 0o644),
    ("/usr/share/doc/libvma/copyright", 0o644),
    ("/usr/share/lintian/overrides/libvma", 0o644),
    ("/usr/share/man/man7/vma.7.gz", 0o644),
    ("/usr/share/man/man8/vmad.8.gz", 0o644),
];
const UTILS: &[(&str, u32)] = &[
    ("/usr/bin/udp_lat", 0o755),
    ("/usr/bin/vma_conf", 0o755),
    ("/usr/bin/vma_stats", 0o755),
    ("/usr/share/doc/libvma-utils/changelog.Debian.gz", 0o644),
    ("/usr/share/doc/libvma-utils/copyright", 0o644),
    ("/usr/share/lintian/overrides/libvma-utils", 0o644),
    ("/usr/share/man/man8/udp_lat.8.gz", 0o644),
    ("/usr/share/man/man8/vma_conf.8.gz", 0o644),
    ("/usr/share/man/man8/vma_stats.8.gz", 0o644),
];
const DEV: &[(&str, u32)] = &[
    ("/usr/include/mellanox/vma_extra.h", 0o644),
    ("/usr/lib/pkgconfig/libvma.pc", 0o644),
    ("/usr/share/doc/libvma-dev/changelog.Debian.gz", 0o644),
    ("/usr/share/doc/libvma-dev/copyright", 0o644),
    ("/usr/share/doc/libvma-dev/examples/README.md", 0o644),
    ("/usr/share/doc/libvma-dev/examples/filter.c", 0o644),
    ("/usr/share/doc/libvma-dev/examples/filter.rs", 0o644),
    ("/usr/share/doc/libvma-dev/examples/market_data.c", 0o644),
    ("/usr/share/doc/libvma-dev/examples/market_data.rs", 0o644),
    ("/usr/share/doc/libvma-dev/examples/socketxtreme_server.c", 0o644),
    ("/usr/share/doc/libvma-dev/examples/socketxtreme_server.rs", 0o644),
    ("/usr/share/doc/libvma-dev/examples/zcopy_echo.c", 0o644),
    ("/usr/share/doc/libvma-dev/examples/zcopy_echo.rs", 0o644),
    ("/usr/share/lintian/overrides/libvma-dev", 0o644),
];
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn all() -> Vec<PathBuf> {
    ["libvma", "libvma-utils", "libvma-dev"].map(dist::deb).into()
}

// covers: INS-01, INS-02, INS-03, INS-04, INS-05, INS-06, INS-10, INS-11, INS-13, INS-45
#[test]
fn the_packages_bring_exactly_their_files() {
    let root = Root::fresh(&PLAIN);
    root.install(&all());
    let library = format!("/usr/lib/libvma.so.{VERSION}");
    let of_library = [("/usr/lib/libvma.so", 0), ("/usr/lib/libvma.so.9", 0), (&*library, 0o644)];
    let libvma: Vec<_> = LIBVMA.iter().copied().chain(of_library).collect();
    for (package, files) in [("libvma", &*libvma), ("libvma-utils", UTILS), ("libvma-dev", DEV)] {
        let listed = root.command("dpkg").args(["-L", package]).succeeds();
        let listed: BTreeSet<&str> =
            listed.lines().filter(|line| !root.path(line).is_dir()).collect();
        let expected: BTreeSet<&str> = files.iter().map(|(path, _)| *path).collect();
        assert_eq!(listed, expected, "files of {package}");
        for (path, mode) in files {
            let metadata = std::fs::symlink_metadata(root.path(path)).expect(path);
            if metadata.is_symlink() {
                let to = std::fs::read_link(root.path(path)).expect(path);
                assert_eq!(to, PathBuf::from(format!("libvma.so.{VERSION}")), "{path}");
            } else {
                assert_eq!(metadata.permissions().mode() & 0o7777, *mode, "mode of {path}");
            }
        }
        let says = root.command("dpkg").args(["--verify", package]).succeeds();
        assert_eq!(says, "", "files of {package} that are not as packed");
    }
}

// covers: EXT-01
#[test]
fn the_header_compiles_from_its_installed_place() {
    let root = Root::fresh(&PLAIN);
    root.install(&all());
    // The module leads to the header; the root has no compiler, so the host's reads it there.
    let module = root.read("/usr/lib/pkgconfig/libvma.pc");
    assert!(module.contains("\nincludedir=${pcfiledir}/../../include\n"), "{module}");
    assert!(module.contains("\nCflags: -I${includedir}\n"), "{module}");
    let include = root.path("/usr/lib/pkgconfig").join("../../include");
    for compiler in [&["cc", "-std=c11", "-x", "c"][..], &["c++", "-std=c++17", "-x", "c++"]] {
        let script = format!(
            "echo '#include <mellanox/vma_extra.h>' | {} -Wall -Werror -fsyntax-only -I '{}' -",
            compiler.join(" "),
            include.display()
        );
        std::process::Command::new("sh").arg("-c").arg(script).succeeds();
    }
}

// covers: INS-15
#[test]
fn dpkg_tells_about_the_package_or_that_it_is_not_installed() {
    let root = Root::fresh(&PLAIN);
    let (code, says) = root.command("dpkg").args(["-s", "libvma"]).fails();
    assert!(code == 1 && says.contains("'libvma' is not installed"), "{says}");
    root.install(&all());
    for package in ["libvma", "libvma-utils", "libvma-dev"] {
        let says = root.command("dpkg").args(["-s", package]).succeeds();
        assert!(says.contains("Status: install ok installed"), "{says}");
        assert!(says.contains(&format!("Version: {}", packed_version())), "{says}");
    }
}

// covers: INS-02, RUN-24, LOG-14
#[test]
fn programs_find_the_library_by_its_name_alone() {
    let root = Root::fresh(&PLAIN);
    root.install(&[dist::deb("libvma")]);
    // The trigger has run: the loader's cache knows it, and that name is not the debug library.
    let known = root.command("ldconfig").arg("-p").succeeds();
    assert!(known.contains("\tlibvma.so.9 (libc6,x86-64) => "), "{known}");
    let link = std::fs::read_link(root.path("/usr/lib/libvma.so.9")).expect("the link is there");
    assert_eq!(link, PathBuf::from(format!("libvma.so.{VERSION}")));
    let identity = root.read("/usr/share/doc/libvma/VMA_VERSION");
    let identity = identity.trim();
    assert!(identity.starts_with(&format!("VMA_VERSION: {} ", packed_version())), "{identity}");
    for library in ["libvma.so", "libvma.so.9", "libvma-debug.so"] {
        // The loader would complain on standard error, and go on.
        let says = root.shell(&format!("LD_PRELOAD={library} true")).output_of_success();
        assert_eq!(says, "", "of {library}");
        let line = format!(
            "VMA_TRACELEVEL=info LD_PRELOAD={library} sockperf server -i 127.0.0.1 -p 0 2>&1 & sleep 1; kill $!"
        );
        let says = root.shell(&line).output_of_success();
        let mark = if library.contains("debug") { " -*- DEBUG -*-" } else { "" };
        assert!(says.contains(&format!("VMA INFO: {identity}{mark}\n")), "of {library}: {says}");
    }
}

/// `strings libvma.so | grep VMA_VERSION`, without strings.
#[test]
fn the_library_file_tells_its_version_in_a_line_of_its_own() {
    let root = Root::fresh(&PLAIN);
    root.install(&[dist::deb("libvma")]);
    let identity = root.read("/usr/share/doc/libvma/VMA_VERSION").trim().to_owned();
    let debug = format!("{identity} -*- DEBUG -*-");
    for (library, expected) in [("libvma.so", identity), ("libvma-debug.so", debug)] {
        let found = root
            .command("grep")
            .args(["--text", "--only-matching", "^VMA_VERSION: .*"])
            .arg(format!("/usr/lib/{library}"))
            .succeeds();
        assert_eq!(found.trim(), expected, "of {library}");
    }
}

// covers: INS-14
#[test]
fn the_manual_pages_can_be_read() {
    let root = Root::fresh(&PLAIN);
    root.install(&all());
    for (section, page) in
        [(7, "vma"), (8, "vmad"), (8, "vma_stats"), (8, "vma_conf"), (8, "udp_lat")]
    {
        let says = root.shell(&format!("MANWIDTH=80 man {section} {page}")).succeeds();
        let title = format!("{}({section})", page.to_uppercase());
        assert!(says.starts_with(&title), "{title}: {says}");
        let line = format!("man --warnings {section} {page} >/dev/null");
        assert_eq!(root.shell(&line).output_of_success(), "", "{title}");
    }
}

// covers: INS-36
#[test]
fn installing_in_a_container_succeeds_and_starts_nothing() {
    let root = Root::fresh(&PLAIN);
    let says = root.install(&all());
    assert!(!vmad_runs(&root), "there is no init: {says}");
    assert_eq!(root.command("dpkg").arg("--audit").output_of_success(), "");
    root.command("dpkg").args(["--purge", "libvma-utils", "libvma-dev", "libvma"]).succeeds();

    // As in the images for Docker: nothing may be started.
    root.allow_services(false);
    root.install(&all());
    assert!(!vmad_runs(&root), "policy-rc.d said no");
    assert_eq!(root.command("dpkg").arg("--audit").output_of_success(), "");
}

#[test]
fn installing_succeeds_where_the_daemon_cannot_run() {
    let root = Root::fresh(&PLAIN);
    root.allow_services(true);
    std::fs::create_dir(root.path("/etc/vma")).expect("it is ours");
    root.write("/etc/vma/vmad.toml", "socket = 7\n");
    let says = root.install(&all());
    assert!(says.contains("initscript vma, action \"start\" failed"), "{says}");
    assert_eq!(root.command("dpkg").arg("--audit").output_of_success(), "");
}

#[test]
fn the_daemon_starts_with_the_package_and_stops_with_it() {
    let root = Root::fresh(&PLAIN);
    root.allow_services(true);
    root.install(&[dist::deb("libvma")]);
    assert!(vmad_runs(&root), "after the installation");
    root.shell("/etc/init.d/vma status").succeeds();
    root.command("dpkg").args(["--remove", "libvma"]).succeeds();
    assert!(!vmad_runs(&root), "after the removal");
}

// covers: INS-16, INS-17
#[test]
fn removal_keeps_an_edited_configuration_and_says_where_it_is() {
    let root = Root::fresh(&PLAIN);
    root.install(&all());
    let edited = root.read("/etc/libvma.conf") + "\nuse os tcp_server *:443\n";
    root.write("/etc/libvma.conf", &edited);
    for package in ["libvma-utils", "libvma-dev"] {
        root.command("dpkg").args(["-r", package]).succeeds();
    }
    let says = root.command("dpkg").args(["-r", "libvma"]).output_of_success();
    assert!(says.contains("stays in /etc/libvma.conf"), "{says}");
    assert_eq!(root.read("/etc/libvma.conf"), edited);
    for path in
        ["/usr/lib/libvma.so", "/usr/lib/libvma-debug.so", "/usr/sbin/vmad", "/usr/bin/vma_stats"]
    {
        assert!(!root.path(path).exists(), "{path} is still there");
    }
    // And it is found again, with the service.
    root.install(&[dist::deb("libvma")]);
    assert_eq!(root.read("/etc/libvma.conf"), edited);
    root.shell("/etc/init.d/vma start").succeeds();
}

#[test]
fn libvma_stays_as_long_as_the_other_packages_need_it() {
    let root = Root::fresh(&PLAIN);
    root.install(&all());
    let (_, says) = root.command("dpkg").args(["-r", "libvma"]).fails();
    assert!(says.contains("libvma-utils depends on libvma (= "), "{says}");
}

#[test]
fn purge_leaves_nothing() {
    let root = Root::fresh(&PLAIN);
    root.allow_services(true);
    let before = root.tree();
    root.install(&all());
    root.write("/etc/libvma.conf", "use os tcp_server *:443\n");
    // Dies without cleaning up.
    root.shell("kill -KILL $(cat /run/vmad.pid)").succeeds();
    root.command("dpkg").args(["--purge", "libvma-utils", "libvma-dev", "libvma"]).succeeds();
    let after = root.tree();
    let names = |tree: &Tree| -> BTreeSet<PathBuf> {
        tree.keys().filter(|path| !is_of_the_package_manager(path)).cloned().collect()
    };
    let left: Vec<_> = names(&after).difference(&names(&before)).cloned().collect();
    assert!(left.is_empty(), "left over: {left:?}");
    let lost: Vec<_> = names(&before).difference(&names(&after)).cloned().collect();
    assert!(lost.is_empty(), "gone: {lost:?}");
    let changed: Vec<_> = before
        .iter()
        .filter(|(path, entry)| {
            matches!(entry, Entry::File { .. })
                && !is_of_the_package_manager(path)
                && after.get(*path) != Some(entry)
        })
        .collect();
    assert!(changed.is_empty(), "changed: {changed:?}");
}

/// What dpkg, ldconfig and man-db keep of their own, and what this test or a running program put there.
fn is_of_the_package_manager(path: &Path) -> bool {
    let of = ["var/lib/dpkg", "var/log", "var/cache", "var/tmp", "etc/ld.so.cache", "tmp/vma"];
    of.iter().any(|folder| path.starts_with(folder))
        // deb-systemd-helper and update-rc.d make their folders once, for all packages.
        || ["var/lib/systemd", "var/lib/systemd/deb-systemd-helper-enabled",
            "var/lib/systemd/deb-systemd-helper-masked"].iter().any(|folder| path == Path::new(folder))
}

fn vmad_runs(root: &Root) -> bool {
    root.command("pgrep").args(["-x", "vmad"]).output().expect("procps is there").status.success()
}

/// X.Y.Z-R, as the file is called.
fn packed_version() -> String {
    let path = dist::deb("libvma");
    let name = path.file_name().expect("a file").to_string_lossy().into_owned();
    name.split('_').nth(1).expect("name_version_architecture.deb").to_owned()
}
