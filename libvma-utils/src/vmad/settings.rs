//! What the daemon goes by: its defaults, over them the configuration file, over that the command
//! line. Every key is checked here, so the rest need not ask.

#[cfg(test)]
mod tests;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use config::{Config, File, FileFormat};
use nix::unistd::{Group, User};
use serde::Deserialize;

use crate::grants::rules::{Rule, Rules};
use crate::options::Given;

/// The file that is read if `--config` names no other; it need not exist.
pub const DEFAULT_FILE: &str = "/etc/vma/vmad.toml";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub socket: PathBuf,
    pub lock_file: PathBuf,
    pub pid_file: PathBuf,
    pub notify_dir: PathBuf,
    /// As `--verbose`: 0 is silence, 4 tells what a user should know, 6 is everything.
    pub log_level: u32,
    pub log_target: Target,
    /// Where the log goes with [`Target::File`], and if there is no syslog daemon.
    pub log_file: PathBuf,
    pub syslog_socket: PathBuf,
    pub max_processes: u32,
    /// Of one process.
    pub max_sockets: u32,
    pub force_rst: bool,
    pub retry_interval: Duration,
    /// Where processes ask for rings.
    pub grant_socket: PathBuf,
    pub grants: Rules,
}

/// Where the log goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Syslog,
    Stdout,
    File,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            socket: libvma_dev::agent::SOCKET.into(),
            lock_file: "/var/lock/vmad.lock".into(),
            pid_file: "/var/run/vmad.pid".into(),
            notify_dir: libvma_dev::agent::DEFAULT_NOTIFY_DIR.into(),
            log_level: 4,
            log_target: Target::Syslog,
            log_file: "/var/log/vmad.log".into(),
            syslog_socket: "/dev/log".into(),
            max_processes: 499,
            max_sockets: 65_599,
            force_rst: false,
            retry_interval: Duration::from_millis(1000),
            grant_socket: libvma_dev::grant::SOCKET.into(),
            grants: Rules::default(),
        }
    }
}

impl Settings {
    /// Reads the file and puts the command line over it. The error names file, key and value.
    pub fn load(given: &Given) -> anyhow::Result<Settings> {
        let keys = match &given.config {
            Some(file) => Keys::read(file, true)?,
            None => Keys::read(Path::new(DEFAULT_FILE), false)?,
        };
        keys.over_defaults(given.console)?.under(given)
    }

    /// The keys in which it differs from `running` that have an effect at the start only.
    pub fn differing_at_start(&self, running: &Settings) -> Vec<&'static str> {
        let Settings {
            socket,
            lock_file,
            pid_file,
            notify_dir,
            max_processes,
            max_sockets,
            grant_socket,
            grants,
            log_level: _,
            log_target: _,
            log_file: _,
            syslog_socket: _,
            force_rst: _,
            retry_interval: _,
        } = self;
        let pairs = [
            ("socket", *socket != running.socket),
            ("lock_file", *lock_file != running.lock_file),
            ("pid_file", *pid_file != running.pid_file),
            ("notify_dir", *notify_dir != running.notify_dir),
            ("max_processes", *max_processes != running.max_processes),
            ("max_sockets", *max_sockets != running.max_sockets),
            ("grant_socket", *grant_socket != running.grant_socket),
            // Without a rule there is no socket to ask by.
            ("[[grant]]", grants.is_empty() != running.grants.is_empty()),
        ];
        pairs.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }

    /// Logs them, for who debugs.
    pub fn tell(&self) {
        log::debug!("CONFIGURATION:");
        log::debug!("package version: {}", libvma_dev::VERSION);
        log::debug!("format version: 0x{:x}", libvma_dev::agent::VERSION);
        log::debug!("log level: {}, target: {:?}", self.log_level, self.log_target);
        log::debug!("log file: {}", self.log_file.display());
        log::debug!("max processes: {}", self.max_processes);
        log::debug!("max sockets: {}", self.max_sockets);
        log::debug!("force rst: {}", if self.force_rst { "on" } else { "off" });
        log::debug!("retry interval: {} ms", self.retry_interval.as_millis());
        log::debug!("lock file: {}", self.lock_file.display());
        log::debug!("pid file: {}", self.pid_file.display());
        log::debug!("sock file: {}", self.socket.display());
        log::debug!("notify dir: {}", self.notify_dir.display());
        log::debug!("grants: {} rules", self.grants.rules.len());
    }

    fn under(mut self, given: &Given) -> anyhow::Result<Settings> {
        if let Some(directory) = &given.notify_dir {
            // The daemon leaves the directory that it was started in.
            self.notify_dir = std::path::absolute(directory)
                .with_context(|| format!("option '--notify-dir': '{}'", directory.display()))?;
        }
        self.max_processes = given.max_processes.unwrap_or(self.max_processes);
        self.max_sockets = given.max_sockets.unwrap_or(self.max_sockets);
        self.log_level = given.verbose.unwrap_or(self.log_level);
        self.retry_interval = given.retry_interval.unwrap_or(self.retry_interval);
        self.force_rst |= given.force_rst;
        Ok(self)
    }
}

/// The keys of the file, by their names there.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    #[serde(skip)]
    file: PathBuf,
    socket: Option<PathBuf>,
    lock_file: Option<PathBuf>,
    pid_file: Option<PathBuf>,
    notify_dir: Option<PathBuf>,
    log_level: Option<i64>,
    log_target: Option<String>,
    log_file: Option<PathBuf>,
    syslog_socket: Option<PathBuf>,
    max_processes: Option<i64>,
    max_sockets: Option<i64>,
    force_rst: Option<bool>,
    retry_interval_ms: Option<i64>,
    grant_socket: Option<PathBuf>,
    grant: Option<Vec<GrantKeys>>,
    max_rings: Option<i64>,
    max_ring_flows: Option<i64>,
    max_ring_memory_mib: Option<i64>,
}

/// Of a table `[[grant]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantKeys {
    interfaces: Vec<String>,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    groups: Vec<String>,
}

impl Keys {
    fn read(file: &Path, must_exist: bool) -> anyhow::Result<Keys> {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => {
                String::new()
            }
            Err(error) => bail!("cannot read {}: {error}", file.display()),
        };
        let keys: Keys = Config::builder()
            .add_source(File::from_str(&text, FileFormat::Toml))
            .build()
            .and_then(Config::try_deserialize)
            .map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?;
        Ok(Keys { file: file.to_owned(), ..keys })
    }

    fn over_defaults(self, console: bool) -> anyhow::Result<Settings> {
        let default = Settings::default();
        Ok(Settings {
            socket: self.socket_path("socket", &self.socket, default.socket)?,
            lock_file: self.path("lock_file", &self.lock_file, default.lock_file)?,
            pid_file: self.path("pid_file", &self.pid_file, default.pid_file)?,
            notify_dir: self.path("notify_dir", &self.notify_dir, default.notify_dir)?,
            log_level: self.number("log_level", self.log_level, 0, default.log_level)?,
            log_target: self.target(console)?,
            log_file: self.path("log_file", &self.log_file, default.log_file)?,
            syslog_socket: self.socket_path(
                "syslog_socket",
                &self.syslog_socket,
                default.syslog_socket,
            )?,
            max_processes: self.number(
                "max_processes",
                self.max_processes,
                1,
                default.max_processes,
            )?,
            max_sockets: self.number("max_sockets", self.max_sockets, 1, default.max_sockets)?,
            force_rst: self.force_rst.unwrap_or(default.force_rst),
            retry_interval: self
                .number("retry_interval_ms", self.retry_interval_ms, 1, 1000)
                .map(|milliseconds| Duration::from_millis(milliseconds.into()))?,
            grant_socket: self.socket_path(
                "grant_socket",
                &self.grant_socket,
                default.grant_socket,
            )?,
            grants: self.grants(default.grants)?,
        })
    }

    fn grants(&self, default: Rules) -> anyhow::Result<Rules> {
        let memory = u32::try_from(default.most_memory >> 20)?;
        let memory = self.number("max_ring_memory_mib", self.max_ring_memory_mib, 1, memory)?;
        let rules = self.grant.iter().flatten().map(|keys| self.rule(keys));
        Ok(Rules {
            rules: rules.collect::<anyhow::Result<_>>()?,
            most_rings: self.number("max_rings", self.max_rings, 1, default.most_rings)?,
            most_flows: self.number(
                "max_ring_flows",
                self.max_ring_flows,
                1,
                default.most_flows,
            )?,
            most_memory: u64::from(memory) << 20,
        })
    }

    fn rule(&self, keys: &GrantKeys) -> anyhow::Result<Rule> {
        let file = self.file.display();
        let at = format!("{file}: [[grant]] interfaces = {:?}", keys.interfaces);
        ensure!(!keys.interfaces.is_empty(), "{at}: name an interface, or \"*\" for all");
        let named = !keys.users.is_empty() || !keys.groups.is_empty();
        ensure!(named, "{at}: name users or groups who may have rings there");
        let users = keys.users.iter().map(|name| {
            let found = User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
            found
                .or_else(|| name.parse().ok())
                .with_context(|| format!("{at}: there is no user '{name}'"))
        });
        let groups = keys.groups.iter().map(|name| {
            let found = Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw());
            found
                .or_else(|| name.parse().ok())
                .with_context(|| format!("{at}: there is no group '{name}'"))
        });
        Ok(Rule {
            interfaces: keys.interfaces.clone(),
            users: users.collect::<anyhow::Result<_>>()?,
            groups: groups.collect::<anyhow::Result<_>>()?,
        })
    }

    fn number(
        &self,
        key: &str,
        value: Option<i64>,
        least: u32,
        default: u32,
    ) -> anyhow::Result<u32> {
        let Some(value) = value else { return Ok(default) };
        let number = u32::try_from(value).ok().filter(|number| *number >= least);
        number.with_context(|| {
            format!("{}: {key} = {value}: it must be {least} to {}", self.file.display(), u32::MAX)
        })
    }

    fn path(
        &self,
        key: &str,
        value: &Option<PathBuf>,
        default: PathBuf,
    ) -> anyhow::Result<PathBuf> {
        let Some(path) = value else { return Ok(default) };
        let (file, shown) = (self.file.display(), path.display());
        // The daemon leaves the directory that it was started in.
        ensure!(path.is_absolute(), "{file}: {key} = '{shown}': it must begin with /");
        Ok(path.clone())
    }

    fn socket_path(
        &self,
        key: &str,
        value: &Option<PathBuf>,
        default: PathBuf,
    ) -> anyhow::Result<PathBuf> {
        let path = self.path(key, value, default)?;
        let bytes = path.as_os_str().as_bytes().len();
        ensure!(
            bytes <= SOCKET_PATH_BYTES,
            "{}: {key} = '{}': a socket's path has at most {SOCKET_PATH_BYTES} bytes, not {bytes}",
            self.file.display(),
            path.display()
        );
        Ok(path)
    }

    fn target(&self, console: bool) -> anyhow::Result<Target> {
        Ok(match self.log_target.as_deref() {
            None | Some("auto") if console => Target::Stdout,
            None | Some("auto" | "syslog") => Target::Syslog,
            Some("file") => Target::File,
            Some("stdout") if console => Target::Stdout,
            Some("stdout") => bail!(
                "{}: log_target = 'stdout': only with --console is there one",
                self.file.display()
            ),
            Some(other) => bail!(
                "{}: log_target = '{other}': it must be auto, syslog, file or stdout",
                self.file.display()
            ),
        })
    }
}

/// Bytes of `sun_path` in unix(7), without the final zero.
const SOCKET_PATH_BYTES: usize = 107;
