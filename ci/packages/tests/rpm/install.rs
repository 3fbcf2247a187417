//! Installed packages: what is where, who owns it, and that it works.

use std::fs;

use packages::{PLAIN, Run, dist};

use crate::made::{Made, next_version, of_dist};
use crate::system::System;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const EVERYTHING: &[&str] = &["libvma", "libvma-devel", "libvma-utils"];

/// Files and folders of a package, `X.Y.Z` for the version.
const LIBVMA: &str = "\
/etc/libvma.conf
/etc/rc.d/init.d/vma
/etc/security/limits.d/30-libvma-limits.conf
/etc/vma
/etc/vma/vmad.toml
/usr/lib/systemd/system/vma.service
/usr/lib64/libvma-debug.so
/usr/lib64/libvma.so
/usr/lib64/libvma.so.9
/usr/lib64/libvma.so.X.Y.Z
/usr/sbin/vmad
/usr/share/doc/libvma
/usr/share/doc/libvma/CHANGELOG.md
/usr/share/doc/libvma/README.txt
/usr/share/doc/libvma/VMA_VERSION
/usr/share/doc/libvma/architecture.md
/usr/share/doc/libvma/compatibility.md
/usr/share/doc/libvma/containers.md
/usr/share/doc/libvma/extra-api.md
/usr/share/doc/libvma/installation.md
/usr/share/doc/libvma/interposition.md
/usr/share/doc/libvma/monitoring.md
/usr/share/doc/libvma/parameters.md
/usr/share/doc/libvma/performance.md
/usr/share/doc/libvma/performance.svg
/usr/share/doc/libvma/release-notes.md
/usr/share/doc/libvma/socket-options.md
/usr/share/doc/libvma/user-manual.md
/usr/share/licenses/libvma
/usr/share/licenses/libvma/LICENSE-APACHE
/usr/share/licenses/libvma/LICENSE-MIT
/usr/share/man/man7/vma.7.gz
/usr/share/man/man8/vmad.8.gz
";
const UTILS: &str = "\
/usr/bin/udp_lat
/usr/bin/vma_conf
/usr/bin/vma_stats
/usr/share/man/man8/udp_lat.8.gz
/usr/share/man/man8/vma_conf.8.gz
/usr/share/man/man8/vma_stats.8.gz
";
const DEVEL: &str = "\
/usr/include/mellanox
/usr/include/mellanox/vma_extra.h
/usr/lib64/pkgconfig/libvma.pc
/usr/share/doc/libvma-devel
/usr/share/doc/libvma-devel/examples
/usr/share/doc/libvma-devel/examples/README.md
/usr/share/doc/libvma-devel/examples/filter.c
/usr/share/doc/libvma-devel/examples/filter.rs
/usr/share/doc/libvma-devel/examples/market_data.c
/usr/share/doc/libvma-devel/examples/market_data.rs
/usr/share/doc/libvma-devel/examples/socketxtreme_server.c
/usr/share/doc/libvma-devel/examples/socketxtreme_server.rs
/usr/share/doc/libvma-devel/examples/zcopy_echo.c
/usr/share/doc/libvma-devel/examples/zcopy_echo.rs
";

// covers: INS-01, INS-03, INS-04, INS-05, INS-06, INS-09, INS-10, INS-11, INS-13, INS-15, INS-45
#[test]
fn every_file_is_in_its_place_and_verifies() {
    let system = System::fresh(&PLAIN);
    let missing = system.rpm(["-q", "libvma"]).fails().1;
    assert_eq!(missing, "package libvma is not installed\n");

    let said =
        system.rpm(["-i"]).args(EVERYTHING.iter().map(|name| dist::rpm(name))).output_of_success();
    assert_eq!(said, "", "an installation has nothing to tell");

    for (name, files) in [("libvma", LIBVMA), ("libvma-utils", UTILS), ("libvma-devel", DEVEL)] {
        let files = files.replace("X.Y.Z", VERSION);
        assert_eq!(system.rpm(["-ql", name]).succeeds(), files, "{name}");
        assert_eq!(system.rpm(["-V", name]).output_of_success(), "", "{name}");
        let told = system.rpm(["-qil", name]).succeeds();
        for line in
            [&format!("Name        : {name}\n"), &format!("Version     : {VERSION}\n"), &files]
        {
            assert!(told.contains(line.as_str()), "no {line} in {told}");
        }
    }
    let settings = system.rpm(["-qc", "libvma"]).succeeds();
    for file in ["/etc/libvma.conf", "/etc/vma/vmad.toml"] {
        assert!(settings.lines().any(|line| line == file), "{settings}");
    }
}

// covers: INS-02, INS-03, INS-04, INS-31
#[test]
fn programs_find_the_library_by_its_name() {
    let system = System::with(&PLAIN, &["libvma"]);
    for link in ["libvma.so", "libvma.so.9"] {
        let path = format!("/usr/lib64/{link}");
        let target = fs::read_link(system.path(&path)).expect("a link");
        assert_eq!(target.to_str(), Some(format!("libvma.so.{VERSION}").as_str()), "{link}");
        let owner = system.rpm(["-qf", "--queryformat", "%{name}", &path]).succeeds();
        assert_eq!(owner, "libvma", "{link}");
    }

    // The scriptlet told the loader.
    let known = system.shell("ldconfig -p").succeeds();
    for name in ["libvma.so", "libvma.so.9", "libvma-debug.so"] {
        let line = format!("\t{name} (libc6,x86-64) => /usr/lib64/{name}\n");
        assert!(known.contains(&line), "{line} in {known}");
    }

    let release = system.read("/usr/share/doc/libvma/VMA_VERSION");
    let release = release.trim_end();
    assert!(release.starts_with(&format!("VMA_VERSION: {VERSION}-")), "{release}");
    assert!(banner(&system, "libvma.so").contains(release));
    let debug = banner(&system, "libvma-debug.so");
    assert!(debug.contains(&format!("{release} -*- DEBUG -*-")), "{debug}");
}

// covers: RUN-08
#[test]
fn the_debug_library_logs_each_call_and_the_other_does_not() {
    let system = System::with(&PLAIN, EVERYTHING);
    let lines = |library: &str, level: &str| {
        // The level is known from the end of the first socket() on.
        let call = "exec 3<>/dev/udp/127.0.0.1/9; echo hello >&3";
        let mut program = system
            .shell(&format!("VMA_TRACELEVEL={level} LD_PRELOAD={library} bash -c '{call}' 2>&1"));
        let output = program.succeeds();
        let of = |level: &str| {
            let start = format!("VMA {level}: ");
            output
                .lines()
                .filter(|line| line.contains(&start))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        (of("FINE"), of("FINER"))
    };
    let (fine, finer) = lines("libvma-debug.so", "fine");
    for call in ["FINE: connect(", "FINE: dup2("] {
        assert!(fine.iter().any(|line| line.contains(call)), "{call}: {fine:?}");
    }
    assert!(finer.is_empty(), "{finer:?}");
    let (_, finer) = lines("libvma-debug.so", "all");
    assert!(!finer.is_empty());
    assert_eq!(lines("libvma.so", "all"), (Vec::new(), Vec::new()));
}

/// What a program with a socket prints under a library.
fn banner(system: &System, library: &str) -> String {
    system
        .shell(&format!(
            "VMA_TRACELEVEL=info LD_PRELOAD={library} bash -c 'exec 3<>/dev/udp/127.0.0.1/9'"
        ))
        .output_of_success()
}

// covers: INS-10, INS-14, INS-45
#[test]
fn the_tools_run_and_have_manual_pages() {
    let system = System::with(&PLAIN, EVERYTHING);
    for tool in ["udp_lat", "vma_conf", "vma_stats", "vmad"] {
        let help = system.shell(&format!("{tool} --help")).output_of_success();
        assert!(help.contains(tool), "{tool} --help: {help}");
    }
    for page in ["7 vma", "8 vmad", "8 udp_lat", "8 vma_conf", "8 vma_stats"] {
        let (_, name) = page.split_once(' ').expect("section and name");
        let text = system.shell(&format!("man {page} | cat")).succeeds();
        assert!(text.contains(&format!("{name} - ")), "man {page}: {text}");
    }
    let module = system.read("/usr/lib64/pkgconfig/libvma.pc");
    assert!(module.lines().any(|line| line == format!("Version: {VERSION}")), "{module}");
}

#[test]
fn sub_packages_want_the_library_of_exactly_their_build() {
    let system = System::fresh(&PLAIN);
    let (arch, release) = ("x86-64", of_dist("%{release}"));
    for name in ["libvma-utils", "libvma-devel"] {
        let refused = system.rpm(["-i"]).arg(dist::rpm(name)).fails().1;
        let wanted = format!("libvma({arch}) = {VERSION}-{release} is needed by {name}-{VERSION}");
        assert!(refused.contains(&wanted), "{refused}");
    }

    let next = next_version();
    let made = Made::new(&next, "# of the next version\n");
    system.rpm(["-i"]).arg(dist::rpm("libvma")).succeeds();
    let refused = system.rpm(["-i"]).arg(made.rpm("libvma-utils")).fails().1;
    let wanted = format!("libvma({arch}) = {next}-{release} is needed by libvma-utils-{next}");
    assert!(refused.contains(&wanted), "{refused}");
}
