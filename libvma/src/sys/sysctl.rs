//! Settings of the kernel, as /proc/sys shows them to the calling thread's network namespace (sysctl(8)).

use std::cell::OnceCell;

use rustix::fd::{AsFd, IntoRawFd};
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::Fd;

/// A folder of /proc/sys, opened by the first question. To read one of its files costs two thirds of what it costs by
/// the whole path, and a program reads some twenty at its first socket.
pub struct Sysctl<'a> {
    folder: &'a str,
    opened: OnceCell<Option<Fd>>,
}

impl<'a> Sysctl<'a> {
    /// The settings below this folder; none is there if the folder is not.
    pub fn below(folder: &'a str) -> Sysctl<'a> {
        Sysctl { folder, opened: OnceCell::new() }
    }

    fn opened(&self) -> Option<&Fd> {
        let open = || {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat(CWD, self.folder, flags, Mode::empty()).and_then(Fd::adopt_briefly).ok()
        };
        self.opened.get_or_init(open).as_ref()
    }

    /// The line of this file, without the blanks at its ends; None if it is not there or not to be read.
    pub fn text(&self, name: &str) -> Option<String> {
        let folder = self.opened()?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = openat(folder.as_fd(), name, flags, Mode::empty()).ok()?;
        let mut line = [0u8; 1024];
        // One read(2) takes it whole.
        let result = rustix::io::read(&opened, &mut line[..]);
        // SAFETY: it is open and ours, and not used after this line.
        unsafe { rustix::io::close(opened.into_raw_fd()) };
        let line = line.get(..result.ok()?)?;
        Some(String::from_utf8_lossy(line).trim().to_owned())
    }

    /// Its number, where it is one.
    pub fn number(&self, name: &str) -> Option<u32> {
        self.text(name)?.parse().ok()
    }

    /// Whether its number is not 0.
    pub fn flag(&self, name: &str, default: bool) -> bool {
        self.number(name).map_or(default, |value| value != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::Sysctl;

    #[test]
    fn a_setting_is_read_as_sysctl_shows_it() {
        let kernel = Sysctl::below("/proc/sys/kernel");
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        assert_eq!(kernel.text("osrelease").as_deref(), Some(release.trim()));
        let most: u32 =
            std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap().trim().parse().unwrap();
        assert_eq!(kernel.number("pid_max"), Some(most));
        assert!(kernel.flag("pid_max", false), "it is not 0");
    }

    #[test]
    fn what_is_not_there_has_its_default() {
        let kernel = Sysctl::below("/proc/sys/kernel");
        assert_eq!(kernel.number("no such setting"), None);
        assert!(kernel.flag("no such setting", true));
        assert_eq!(kernel.number("osrelease"), None, "it is text");
        assert_eq!(Sysctl::below("/proc/sys/nothing").text("pid_max"), None);
    }
}
