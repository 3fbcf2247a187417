//! A system of RHEL's kin: one of the harness's, with what RHEL has and Debian has not. The machine's
//! rpm and dnf work on it, from outside; the scriptlets run inside.
//!
//! * The folder of init scripts is /etc/rc.d/init.d, /etc/init.d a link to it (RHEL's package
//!   chkconfig), and the loader looks into /usr/lib64 (RHEL's glibc). Folders of many packages are there.
//! * A package `distribution`, made here, says to rpm that glibc, libgcc and a shell are there, as they
//!   are: its provides are read from the libraries of the system. And a pkg-config, which rpm wants
//!   wherever a package has a file for it.
//! * The database is where RHEL has it. (Debian's rpm is meant for other uses and keeps it in a home.)

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use packages::{Base, Root, Run, dist};

pub struct System(Root);

impl Deref for System {
    type Target = Root;

    fn deref(&self) -> &Root {
        &self.0
    }
}

impl System {
    pub fn fresh(base: &Base) -> System {
        let system = System::of(Root::fresh(base));
        system
            .shell(
                "mkdir -p /etc/init.d /etc/rc.d
                mv /etc/init.d /etc/rc.d
                ln -s rc.d/init.d /etc/init.d
                mkdir -p /usr/lib64/pkgconfig /usr/share/licenses
                echo /usr/lib64 >/etc/ld.so.conf.d/lib64.conf",
            )
            .succeeds();
        let distribution = system.distribution();
        system.rpm(["-i"]).arg(distribution).succeeds();
        system
    }

    /// A system with these packages of `dist/` installed.
    pub fn with(base: &Base, names: &[&str]) -> System {
        let system = System::fresh(base);
        system.rpm(["-i"]).args(names.iter().map(|name| dist::rpm(name))).succeeds();
        system
    }

    /// Nothing but the root and a database of packages.
    pub fn of(root: Root) -> System {
        for folder in ["/root", "/var/lib/rpm"] {
            fs::create_dir_all(root.path(folder)).expect("the root is writable");
        }
        root.write("/root/.rpmmacros", "%_dbpath /var/lib/rpm\n");
        System(root)
    }

    pub fn rpm<Word: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = Word>) -> Command {
        let mut command = self.tool("rpm");
        command.arg("--root").arg(self.mounted()).arg("--force-debian").args(words);
        command
    }

    /// A program of the machine, by the settings of the system.
    pub fn tool(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.outside("env");
        command
            .arg(format!("HOME={}", self.mounted().join("root").display()))
            .arg("LC_ALL=C.UTF-8")
            .arg(program);
        command
    }

    /// The package that stands for all others of a distribution.
    fn distribution(&self) -> PathBuf {
        let folder = self.path("/var/tmp/distribution");
        fs::create_dir_all(&folder).expect("the root is writable");
        let provides: String =
            self.provides().lines().map(|it| format!("Provides: {it}\n")).collect();
        let spec = format!(
            "Name: distribution\nVersion: 1\nRelease: 1\nSummary: What the system has\n\
             License: MIT\nProvides: /bin/sh\nProvides: /usr/bin/pkg-config\n\
             Provides: rtld(GNU_HASH)\n{provides}\
             %description\nglibc, libgcc and a shell.\n%files\n"
        );
        fs::write(folder.join("distribution.spec"), spec).expect("the root is writable");
        let there = self.mounted().join("var/tmp/distribution");
        self.tool("rpmbuild")
            .args(["-bb", "--quiet"])
            .arg("--define")
            .arg(format!("_topdir {}", there.display()))
            .arg("--define")
            .arg(format!("_rpmdir {}", there.display()))
            .arg(there.join("distribution.spec"))
            .succeeds();
        let arch = std::env::consts::ARCH;
        there.join(arch).join(format!("distribution-1-1.{arch}.rpm"))
    }

    /// What rpm's generator finds in the system's C library.
    fn provides(&self) -> String {
        let libraries = self
            .shell("ldconfig -p | sed -n 's/^.* => //p' | grep -E '/(libc|libgcc_s|libm|ld-linux.*)[.]so[.][0-9]+$'")
            .succeeds();
        let mut generator = Command::new("/usr/lib/rpm/find-provides")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("rpm is installed");
        let mut stdin = generator.stdin.take().expect("it is piped");
        for library in libraries.lines() {
            writeln!(stdin, "{}", self.path(library).display()).expect("it reads");
        }
        drop(stdin);
        let output = generator.wait_with_output().expect("it ends");
        let provides = String::from_utf8(output.stdout).expect("text");
        assert!(provides.contains("libc.so.6(GLIBC_2.34)"), "provides of {libraries}: {provides}");
        provides
    }
}
