//! The host's TCP settings: net.ipv4.tcp_* of sysctl(8), so that an offloaded socket starts as one
//! of the kernel's would; and random numbers for the engine.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use libvma_engine::siphash::Key;
use libvma_engine::tcp::congestion::Algorithm;
use libvma_engine::tcp::connection::window_scale;
use libvma_engine::tcp::listen::ListenSettings;
use libvma_engine::tcp::{Buffer, Millis, Settings};

use crate::config::Config;
use crate::config::rules::Protocol;
use crate::shard::tcp::Setup;
use crate::socket::{Stack, clock};
use crate::sys::sysctl::Sysctl;
use crate::sys::{self, kernel_start};

/// What new sockets start with.
#[derive(Clone, Debug)]
pub struct System {
    pub settings: Settings,
    /// net.ipv4.tcp_ecn.
    ecn: u32,
    listening: OnceLock<Listening>,
}

/// The settings that new listeners start with.
#[derive(Clone, Debug)]
pub struct Listening {
    pub settings: ListenSettings,
    /// The largest backlog.
    pub somaxconn: u32,
}

/// The settings as they were read last.
#[derive(Default)]
pub struct Known(Option<(u64, Arc<System>)>);

impl Known {
    /// The settings of a moment, or of [`AGE_NANOS`] before it at most; or the last ones that could be read, as a program may have lost sight of
    /// /proc since then (chroot(2), seccomp(2)).
    fn at(
        &mut self,
        nanos: u64,
        sysctl: &Sysctl<'_>,
        read: impl FnOnce() -> System,
    ) -> Arc<System> {
        match &mut self.0 {
            Some((since, system)) if nanos.saturating_sub(*since) < AGE_NANOS => system.clone(),
            Some((since, system)) if sysctl.text("ipv4/tcp_rmem").is_none() => {
                *since = nanos;
                system.clone()
            }
            _ => {
                let system = Arc::new(read());
                self.0 = Some((nanos, system.clone()));
                system
            }
        }
    }
}

/// The kernel looks at its settings with each socket. That takes this library some 30 system calls, which a program that opens
/// connections all the time makes once in this time.
const AGE_NANOS: u64 = 1_000_000_000;

/// The settings that a stream socket which is opened now starts with.
pub fn of(stack: &Stack) -> Arc<System> {
    let sysctl = Sysctl::below("/proc/sys/net");
    let read = || read(&stack.config, &sysctl);
    match stack.system.lock() {
        Ok(mut known) => known.at(clock::now().as_nanos(), &sysctl, read),
        Err(_) => Arc::new(read()),
    }
}

/// The second and third of the three numbers of tcp_rmem and tcp_wmem.
fn triple(sysctl: &Sysctl<'_>, name: &str) -> Option<(u32, u32)> {
    let text = sysctl.text(name)?;
    let mut numbers = text.split_whitespace().skip(1).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn read(config: &Config, sysctl: &Sysctl<'_>) -> System {
    let mut settings = Settings::default();
    if let Some((initial, most)) = triple(sysctl, "ipv4/tcp_wmem") {
        // The kernel counts its own overhead, which for a queue of full segments is little.
        let initial = initial.max(16 * 1024).max(settings.send_buffer.limit);
        settings.send_buffer = Buffer { limit: initial, most: most.max(initial), automatic: true };
    }
    if let Some((initial, most)) = triple(sysctl, "ipv4/tcp_rmem") {
        // tcp_adv_win_scale: half of it is the window, for the rest is overhead.
        let limit = initial / 2;
        settings.receive_buffer = Buffer { limit, most: (most / 2).max(limit), automatic: true };
        // tcp_window_scaling of tcp(7): whichever is larger decides, even if the buffer stays below it.
        settings.largest_receive_buffer = most.max(sysctl.number("core/rmem_max").unwrap_or(0));
    }
    settings.sack = sysctl.flag("ipv4/tcp_sack", true);
    settings.timestamps = match config.tcp_timestamps {
        0 => false,
        1 => true,
        _ => sysctl.flag("ipv4/tcp_timestamps", true),
    };
    settings.window_scaling = sysctl.flag("ipv4/tcp_window_scaling", true);
    let ecn = sysctl.number("ipv4/tcp_ecn").unwrap_or(2);
    settings.ecn = ecn == 1;
    settings.ecn_fallback = sysctl.flag("ipv4/tcp_ecn_fallback", true);
    let seconds = |name, default: Millis| sysctl.number(name).map_or(default, Millis::from_secs);
    let count = |name, default: u8| byte(sysctl, name).unwrap_or(default);
    settings.keep_idle = seconds("ipv4/tcp_keepalive_time", settings.keep_idle);
    settings.keep_interval = seconds("ipv4/tcp_keepalive_intvl", settings.keep_interval);
    settings.keep_count = count("ipv4/tcp_keepalive_probes", settings.keep_count);
    if let Some(seconds) = sysctl.number("ipv4/tcp_fin_timeout") {
        settings.fin_timeout = Some(Duration::from_secs(seconds.into()));
    }
    // Linux 6.11 and 6.15; the kernel has the same limits for them as for the options of a socket.
    let micros = |name, default| sysctl.number(name).map_or(default, Millis::from_micros);
    let millis = |name, default| sysctl.number(name).map_or(default, Millis::from_millis);
    settings.least_rto = micros("ipv4/tcp_rto_min_us", settings.least_rto);
    settings.most_rto = millis("ipv4/tcp_rto_max_ms", settings.most_rto);
    settings.syn_retries = count("ipv4/tcp_syn_retries", settings.syn_retries);
    settings.retries = count("ipv4/tcp_retries2", settings.retries);
    settings.rfc_1337 = sysctl.flag("ipv4/tcp_rfc1337", false);
    settings.max_segment = config.max_segment();
    settings.nodelay = config.tcp_nodelay;
    settings.always_quick_ack = config.tcp_quickack;
    let named = sysctl.text("ipv4/tcp_congestion_control");
    settings.congestion = match config.tcp_congestion {
        Some(chosen) => Algorithm::from_parameter(chosen).unwrap_or_default(),
        None => named.and_then(|name| Algorithm::from_name(&name)).unwrap_or(Algorithm::Cubic),
    };
    System { settings, ecn, listening: OnceLock::new() }
}

fn byte(sysctl: &Sysctl<'_>, name: &str) -> Option<u8> {
    sysctl.number(name).map(|value| value.min(255) as u8)
}

impl System {
    /// The kernel's connections have ECN as in RFC 3168, if any, and not Accurate ECN.
    pub fn has_classic_ecn(&self) -> bool {
        self.ecn <= 2
    }

    /// Read with the first listener that has these settings.
    pub fn listening(&self, stack: &Stack) -> &Listening {
        self.listening.get_or_init(|| {
            let sysctl = Sysctl::below("/proc/sys/net");
            let listen = ListenSettings {
                syn_cookies: sysctl.flag("ipv4/tcp_syncookies", true),
                max_syn_rate: stack.config.tcp_max_syn_rate,
                defer_accept: None,
                syn_ack_retries: byte(&sysctl, "ipv4/tcp_synack_retries").unwrap_or(5),
                ecn: self.ecn != 0,
                ..of_listener(&self.settings, &ListenSettings::default())
            };
            let most = sysctl.number("core/somaxconn").unwrap_or(4096);
            Listening { settings: listen, somaxconn: most }
        })
    }
}

/// A listener announces what the connections that it makes will have.
pub fn of_listener(settings: &Settings, base: &ListenSettings) -> ListenSettings {
    ListenSettings {
        window: settings.receive_buffer.limit,
        our_window_scale: window_scale(settings),
        sack: settings.sack,
        timestamps: settings.timestamps,
        window_scaling: settings.window_scaling,
        ..base.clone()
    }
}

/// Random numbers: std seeds its hash tables with 128 bits of the kernel's.
pub fn setup(stack: &Stack) -> Setup {
    let state = RandomState::new();
    // A forked child has its parent's seed: the process and the time tell them apart.
    let own = (sys::thread::process_id(), clock::now().as_nanos());
    let mut secret = [0u8; 32];
    for (at, chunk) in secret.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&state.hash_one((at, own)).to_ne_bytes());
    }
    Setup {
        secret,
        starts: stack.starts.get().copied().flatten(),
        seed: state.hash_one((4, own)),
        streams: stack.config.gro_streams,
        pending: stack.watch.pending(),
    }
}

/// Finds out what connections begin by, which takes up to a millisecond and is not needed before there is an
/// interface to open them over.
pub fn learn_starts(stack: &Stack) {
    if stack.config.rules.leave_all(Protocol::Tcp) {
        return;
    }
    if let Some(starts) = stack.starts.get_or_init(boot_secret)
        && let Ok(mut state) = stack.shard.lock()
    {
        state.set_starts(starts);
    }
}

/// What all processes of this host and network namespace have in common until the next boot, whoever
/// they run as, and nobody outside knows: connections begin by it where they do, so that one that a
/// process opens is later, to a peer that remembers, than those of processes before it (RFC 6528
/// section 3, RFC 6191).
///
/// The boot's name is known to those who get the host's logs, so the kernel's own secret, as it shows in
/// the time stamps of a few pairs of endpoints, goes into it. Where the kernel does not show it, there is
/// no such secret. Users of this host can find it out; those of other hosts cannot.
fn boot_secret() -> Option<[u8; 16]> {
    let text = sys::fd::read_file("/proc/sys/kernel/random/boot_id").ok()?;
    let text = String::from_utf8_lossy(&text).replace('-', "");
    let boot = u128::from_str_radix(text.trim(), 16).ok()?;
    let namespace = sys::machine::network_namespace().unwrap_or(0);
    let nobody = |port| SocketAddrV4::new(NOBODY, port);
    let [a, b, c, d] =
        kernel_start::stamp_offsets(PORTS.map(|port| (nobody(port), nobody(9))))?.map(u64::from);
    let key = Key::new(boot.to_le_bytes());
    let half = |at: u64| key.hash([at, a << 32 | b, c << 32 | d, namespace]);
    let both = u128::from(half(0)) | u128::from(half(1)) << 64;
    Some(both.to_le_bytes())
}

/// Of the loopback interface, and hardly used.
const NOBODY: Ipv4Addr = Ipv4Addr::new(127, 118, 109, 97);
/// They are nobody's either, and the kernel gives them to nobody.
const PORTS: [u16; 4] = [20_641, 20_642, 20_643, 20_644];

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A folder in place of /proc/sys/net.
    struct Host(PathBuf);

    impl Host {
        fn with(test: &str, settings: &[(&str, &str)]) -> Host {
            let name = format!("vma-system-{test}-{}", std::process::id());
            let host = Host(std::env::temp_dir().join(name));
            std::fs::create_dir_all(host.0.join("ipv4")).unwrap();
            for (name, value) in settings {
                host.set(name, value);
            }
            host
        }

        fn set(&self, name: &str, value: &str) {
            std::fs::write(self.0.join("ipv4").join(name), value).unwrap();
        }

        fn read(&self) -> System {
            let config = Config::new(&crate::config::settings::Settings::read([]));
            read(&config, &Sysctl::below(self.0.to_str().unwrap()))
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn timeouts_are_those_of_the_host() {
        let settings = [("tcp_rto_min_us", "50000\n"), ("tcp_rto_max_ms", "30000\n")];
        let host = Host::with("timeouts", &settings);
        let settings = host.read().settings;
        assert_eq!(settings.least_rto, Millis::from_millis(50));
        assert_eq!(settings.most_rto, Millis::from_millis(30_000));
    }

    #[test]
    fn an_older_kernel_has_the_usual_timeouts() {
        let (found, usual) = (Host::with("older", &[]).read().settings, Settings::default());
        assert_eq!(found.least_rto, usual.least_rto);
        assert_eq!(found.most_rto, usual.most_rto);
        assert!(found.ecn_fallback && !found.ecn);
    }

    #[test]
    fn ecn_is_that_of_the_host() {
        let host = Host::with("ecn", &[("tcp_ecn", "1"), ("tcp_ecn_fallback", "0")]);
        let settings = host.read().settings;
        assert!(settings.ecn && !settings.ecn_fallback);
    }

    #[test]
    fn settings_are_followed_after_a_second() {
        let settings = [("tcp_ecn", "0"), ("tcp_rmem", "4096 131072 6291456")];
        let host = Host::with("followed", &settings);
        let mut known = Known::default();
        let sysctl = Sysctl::below(host.0.to_str().unwrap());
        let first = known.at(5_000_000_000, &sysctl, || host.read());
        assert!(!first.settings.ecn);
        host.set("tcp_ecn", "1");
        host.set("tcp_rmem", "4096 400000 6291456");
        let soon = known.at(5_999_999_999, &sysctl, || panic!("read too often"));
        assert!(Arc::ptr_eq(&first, &soon));
        let later = known.at(6_000_000_000, &sysctl, || host.read());
        assert!(later.settings.ecn);
        assert_eq!(later.settings.receive_buffer.limit, 200_000);
        std::fs::remove_dir_all(host.0.join("ipv4")).unwrap();
        let lost = known.at(8_000_000_000, &sysctl, || panic!("nothing can be read"));
        assert!(Arc::ptr_eq(&later, &lost));
    }

    /// tcp(7): the second number is what a socket begins with, the third what it may grow to.
    #[test]
    fn buffers_begin_and_grow_as_on_the_host() {
        let settings = [("tcp_wmem", "4096 16384 4194304"), ("tcp_rmem", "4096 131072 6291456")];
        let host = Host::with("buffers", &settings);
        let found = host.read().settings;
        // The kernel's is small, because it counts what the engine does not.
        let send = Buffer { limit: 87_040, most: 4_194_304, automatic: true };
        assert_eq!(found.send_buffer, send);
        let receive = Buffer { limit: 65_536, most: 3_145_728, automatic: true };
        assert_eq!(found.receive_buffer, receive, "half of it is overhead");
        assert_eq!(found.largest_receive_buffer, 6_291_456);
        // A host that allows no growth.
        host.set("tcp_wmem", "4096 9000000 1000");
        host.set("tcp_rmem", "4096 131072 1000");
        let found = host.read().settings;
        assert_eq!((found.send_buffer.limit, found.send_buffer.most), (9_000_000, 9_000_000));
        assert_eq!((found.receive_buffer.limit, found.receive_buffer.most), (65_536, 65_536));
    }

    #[test]
    fn a_setting_that_is_no_number_leaves_the_default() {
        let settings = [
            ("tcp_rmem", "4096"),
            ("tcp_wmem", "4096 many 1"),
            ("tcp_keepalive_time", "soon"),
            ("tcp_syn_retries", "-1"),
        ];
        let (found, usual) = (Host::with("wrong", &settings).read().settings, Settings::default());
        assert_eq!(found.receive_buffer, usual.receive_buffer);
        assert_eq!(found.send_buffer, usual.send_buffer);
        assert_eq!(found.keep_idle, usual.keep_idle);
        assert_eq!(found.syn_retries, usual.syn_retries);
    }

    #[test]
    fn counts_and_times_of_the_host_have_the_engines_units() {
        let host = Host::with(
            "counts",
            &[
                ("tcp_keepalive_time", "600"),
                ("tcp_keepalive_intvl", "20"),
                ("tcp_keepalive_probes", "3"),
                ("tcp_fin_timeout", "15"),
                ("tcp_retries2", "300"),
                ("tcp_sack", "0"),
                ("tcp_rfc1337", "1"),
            ],
        );
        let found = host.read().settings;
        let keeping = (found.keep_idle, found.keep_interval, found.keep_count);
        assert_eq!(keeping, (Millis::from_secs(600), Millis::from_secs(20), 3));
        assert_eq!(found.fin_timeout, Some(Duration::from_secs(15)));
        assert_eq!(found.retries, 255, "the engine counts so far");
        assert!(!found.sack && found.rfc_1337 && found.timestamps);
    }

    /// VMA_TCP_TIMESTAMP_OPTION and VMA_TCP_CC_ALGO.
    #[test]
    fn what_is_configured_outweighs_the_host() {
        let settings = [("tcp_timestamps", "0"), ("tcp_congestion_control", "reno")];
        let host = Host::with("configured", &settings);
        let with = |environment: &[(&str, &str)]| {
            let owned = environment.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            let config = Config::new(&crate::config::settings::Settings::read(owned));
            read(&config, &Sysctl::below(host.0.to_str().unwrap())).settings
        };
        let stamps = |value| with(&[("VMA_TCP_TIMESTAMP_OPTION", value)]).timestamps;
        assert_eq!((stamps("0"), stamps("1"), stamps("2")), (false, true, false));
        let congestion = |value: &str| with(&[("VMA_TCP_CC_ALGO", value)]).congestion.name();
        let (lwip, cubic) = (congestion("0"), congestion("1"));
        assert_eq!((lwip, cubic), ("reno", "cubic"));
        host.set("tcp_timestamps", "1");
        assert_eq!((stamps("0"), stamps("1"), stamps("2")), (false, true, true));
        host.set("tcp_congestion_control", "vegas");
        assert_eq!(with(&[]).congestion, Algorithm::Cubic, "the engine does not have it");
        host.set("tcp_congestion_control", "reno");
        assert_eq!(with(&[]).congestion.name(), "reno");
    }

    /// RFC 9768: net.ipv4.tcp_ecn of 3 and more is Accurate ECN.
    #[test]
    fn connections_of_the_kernel_have_classic_ecn_up_to_a_setting_of_two() {
        for (value, requests, is_classic) in
            [("0", false, true), ("1", true, true), ("2", false, true), ("3", false, false)]
        {
            let system = Host::with("accurate", &[("tcp_ecn", value)]).read();
            assert_eq!((system.settings.ecn, system.has_classic_ecn()), (requests, is_classic));
        }
    }

    #[test]
    fn a_listener_offers_what_its_connections_will_have() {
        let settings = Settings { sack: false, window_scaling: false, ..Settings::default() };
        let base = ListenSettings { syn_cookies: true, sack: true, ..Default::default() };
        let found = of_listener(&settings, &base);
        assert!(!found.sack && !found.window_scaling);
        assert_eq!(found.window, settings.receive_buffer.limit);
        assert!(found.syn_cookies, "the rest is the host's");
    }
}
