//! The running process: the one place that owns everything and hands it to who needs it.
//!
//! Nothing exists before the first Internet socket; a forked child starts with nothing again
//! (`sys::fork_cell`).

mod attaching;
mod banner;
mod capture;
mod drive;
pub mod dump;
mod guardian;
pub mod inherit;
mod kernels;
mod leave;
mod statistics;
mod streams;
mod thread;

use std::sync::Arc;

use rustix::io::Errno;

use crate::agent::wards::Wards;
use crate::config::Config;
use crate::config::rules::Rules;
use crate::config::settings::{Origin, Setting, Settings};
use crate::control::Control;
use crate::fd::Table;
use crate::log::{self, log_line};
use crate::mux::OsTurn;
use crate::mux::epoll::Epolls;
use crate::shard::Shard;
use crate::socket::brevity::Brevity;
use crate::socket::shadow_news::Shadows;
use crate::socket::stream::watch::Watch;
use crate::socket::{Plane, Remedy, Stack};
use crate::stats::StatsFile;
use crate::sys::fork_cell::ForkCell;
use crate::sys::load::Load;
use crate::sys::lock::Lock;
use crate::sys::wait::Waker;
use crate::sys::{self, Fd, fd, thread as os_thread};

pub struct Process {
    pub stack: Stack,
    pub fds: Table,
    pub epolls: Epolls,
    pub poll_turn: OsTurn,
    /// Where forked children ask for sockets.
    pub requests: Option<inherit::RequestTable>,
    /// Connections that forked children have.
    pub wards: Option<Wards>,
    statistics: statistics::Statistics,
    /// To tell a vfork() child, which shares our memory but must not use it.
    pub id: i32,
    /// The control plane was tried, whatever came of it.
    plane_tried: std::sync::atomic::AtomicBool,
    /// The log says that the program has too few descriptors.
    descriptors_told: std::sync::atomic::AtomicBool,
    /// None unless what passes is captured.
    capturing: Option<capture::Capturing>,
    _log_file: Option<Fd>,
}

static PROCESS: ForkCell<Process> = ForkCell::EMPTY;

/// The process, if it has opened an Internet socket. Two loads.
#[inline]
pub fn current() -> Option<&'static Process> {
    PROCESS.get()
}

/// The process, brought to life by its first Internet socket. None while another thread is at it.
pub fn first_socket() -> Option<&'static Process> {
    let process = PROCESS.get_or_init(start)?;
    inherit::remember(process);
    Some(process)
}

/// `VMA_IO_URING`. Asked before any socket exists, so straight from the environment; libuv asks
/// once per loop.
pub fn allows_io_uring() -> bool {
    match current() {
        Some(process) => process.stack.config.io_uring,
        None if os_thread::is_secure() => false,
        None => std::env::var("VMA_IO_URING")
            .is_ok_and(|value| value.trim().parse::<i64>().is_ok_and(|number| number != 0)),
    }
}

fn start() -> Process {
    let settings = Settings::read(environment());
    let mut config = Config::new(&settings);
    sys::output::trust_socket(2);
    log::set_level(config.trace_level);
    log::set_details(config.log_details);
    log::set_colors(config.log_colors);
    let log_file = open_log(&config);
    if log_file.is_some() || is_banner_wanted(&settings) {
        banner::print(&settings, &config);
    }
    for complaint in &settings.complaints {
        log_line!(Warning, "{complaint}");
    }
    for (param, why) in settings.without_effect() {
        log_line!(Debug, "{} has no effect on this device: {why}", param.name);
    }
    config.rules = Rules::load(&settings);
    if config.measures_polling {
        crate::mux::measure_polling();
    }
    let capturing = capture::Capturing::open(&config);
    let stats = StatsFile::new(&config.stats_file);
    let internal_waker = Waker::new().ok().map(Arc::new);
    let wards = inherit::wards_of_parent();
    let watch = Watch::new(&config.notify_directory, internal_waker.as_ref(), wards);
    Process {
        stack: Stack {
            shard: Shard::captured(capturing.as_ref().map(capture::Capturing::capture)),
            drained: Default::default(),
            hold: Default::default(),
            plane: Lock::new(None),
            attaching: Default::default(),
            shadows: Shadows::open(),
            internal_waker,
            load: Load::open(),
            local: crate::socket::local::Local::new(),
            short_streams: Brevity::of_streams(),
            short_datagrams: Brevity::of_datagrams(),
            stats,
            ended: Lock::new(Default::default()),
            kernels: Default::default(),
            passed: Lock::new(Default::default()),
            system: Lock::default(),
            starts: std::sync::OnceLock::new(),
            extra: Default::default(),
            watch,
            config,
        },
        fds: Table::default(),
        epolls: Epolls::default(),
        poll_turn: OsTurn::default(),
        requests: inherit::RequestTable::new(),
        wards: Wards::new(),
        statistics: statistics::Statistics::new(),
        id: os_thread::process_id(),
        plane_tried: std::sync::atomic::AtomicBool::new(false),
        descriptors_told: std::sync::atomic::AtomicBool::new(false),
        capturing,
        _log_file: log_file,
    }
}

impl Process {
    /// The first UDP socket needs the control plane and the internal thread.
    pub fn ensure_plane(&'static self) {
        use std::sync::atomic::Ordering;
        if self.plane_tried.load(Ordering::Acquire) {
            return;
        }
        // Threads that come together wait for the first one's result.
        let Ok(mut slot) = self.stack.plane.lock() else { return };
        if self.plane_tried.load(Ordering::Acquire) {
            return;
        }
        let (control, monitor) = match Control::open(&self.stack.config) {
            Ok(opened) => opened,
            Err(error) => {
                let what =
                    format_args!("nothing is offloaded, the kernel serves every socket: {error}");
                match error.errno {
                    Errno::MFILE | Errno::NFILE => Remedy::Descriptors.tell(what),
                    _ => log_line!(Warning, "{what}"),
                }
                if self.stack.config.exit_on_failed_start {
                    os_thread::exit_now(255);
                }
                return self.plane_tried.store(true, Ordering::Release);
            }
        };
        let plane = Plane { control, rings: Default::default(), wanted: Default::default() };
        *slot = Some(plane);
        capture::start(self);
        thread::start(self, monitor);
        // Only now: who comes at the same time needs the thread, too.
        self.plane_tried.store(true, Ordering::Release);
    }
}

impl Process {
    /// Gives up the descriptors that keep the ports of closed connections from reuse, and those by which others of the
    /// host find sockets if they count, because the program may have no more. False if there are none. Told once.
    pub fn release_kept_descriptors(&self) -> bool {
        let Ok(mut state) = self.stack.shard.lock() else { return false };
        let released = state.release_kept();
        drop(state);
        let released = released + crate::socket::local::end_posts(&self.stack);
        let told = std::sync::atomic::Ordering::Relaxed;
        if released > 0 && !self.descriptors_told.swap(true, told) {
            log_line!(
                Warning,
                "the program has as many descriptors as RLIMIT_NOFILE allows; libvma closed {released} of its \
                 own, which kept the ports of closed connections from reuse or let other processes of this host \
                 find its sockets. Raise the limit (ulimit -n, LimitNOFILE= of a systemd unit): libvma needs up \
                 to 256 descriptors of it."
            );
        }
        released > 0
    }

    /// Wakes a thread of the program that sleeps in a call of ours.
    pub fn wake_thread(&self, thread: u32) {
        if let Ok(mut state) = self.stack.shard.lock() {
            state.wake_thread(thread);
        }
    }
}

/// A program that reads standard error by a pipe may take the banner for an error. There the banner comes only if the
/// user asks for a log level. The same for a forked child, whose parent had one.
fn is_banner_wanted(settings: &Settings) -> bool {
    let asked = |setting: &Setting| setting.origin == Origin::Environment;
    let journal = std::env::var("JOURNAL_STREAM").ok();
    settings.get("VMA_TRACELEVEL").is_some_and(asked)
        || (!inherit::is_child() && !sys::output::is_read_by_program(2, journal.as_deref()))
}

fn open_log(config: &Config) -> Option<Fd> {
    if config.log_file.is_empty() {
        return None;
    }
    let path = &config.log_file;
    match fd::open_append(path) {
        Ok(file) => {
            log::set_file(file.raw());
            Some(file)
        }
        Err(errno) => {
            log_line!(Warning, "VMA_LOG_FILE={path}: {errno}; logging to stderr");
            None
        }
    }
}

/// The environment, as far as it is text. In a set-uid program it is not to be trusted.
pub fn environment() -> Vec<(String, String)> {
    if os_thread::is_secure() {
        return Vec::new();
    }
    let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
    std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
}
