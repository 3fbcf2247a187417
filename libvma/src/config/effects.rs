//! For every parameter in effect: a value, what it makes of [`Config`], and the test that shows
//! what that does to a socket or a thread. Those without effect have their reason in the table.

use super::params;
use super::rules::Moment;
use super::settings::Settings;
use super::*;

/// What a parameter became, as text.
type Seen = fn(&Config, &Settings) -> String;

struct Effect {
    name: &'static str,
    /// Not the default.
    value: &'static str,
    seen: Seen,
    becomes: &'static str,
    /// The test's function.
    shown_by: &'static str,
}

const fn effect(
    name: &'static str,
    value: &'static str,
    seen: Seen,
    becomes: &'static str,
    shown_by: &'static str,
) -> Effect {
    Effect { name, value, seen, becomes, shown_by }
}

macro_rules! field {
    ($name:ident) => {
        |config, _| format!("{:?}", config.$name)
    };
}

/// What the rules of the process make of a datagram to a group, or from one.
fn group(config: &Config, settings: &Settings, moment: Moment) -> String {
    let mut config = config.clone();
    config.rules = Rules::load(settings);
    let at = std::net::SocketAddrV4::new(std::net::Ipv4Addr::new(239, 1, 1, 1), 5);
    config.rules.decide(moment, at, None).map_or("ours".into(), |place| place.to_string())
}

#[rustfmt::skip] // a table reads as rows
const EFFECTS: &[Effect] = &[
    effect("VMA_SPEC", "latency", field!(rx_poll), "-1", "a_profile_is_in_the_banner_and_what_has_no_effect_is_told_at_debug"),
    effect("VMA_TRACELEVEL", "debug", field!(trace_level), "Debug", "no_banner_at_level_none"),
    effect("VMA_LOG_DETAILS", "3", field!(log_details), "3", "debug_lines_tell_process_and_thread"),
    effect("VMA_LOG_COLORS", "0", field!(log_colors), "false", "colours_are_for_terminals"),
    effect("VMA_LOG_FILE", "/tmp/x", field!(log_file), "\"/tmp/x\"", "the_log_can_go_to_a_file"),
    effect("VMA_PCAP", "/tmp/x", field!(capture_file), "\"/tmp/x\"", "datagrams_of_an_interface_are_captured_both_ways"),
    effect("VMA_PCAP_SNAPLEN", "96", field!(capture_snap_len), "96", "a_ring_of_capture_files_is_bounded_and_packets_are_cut"),
    effect("VMA_PCAP_FILE_SIZE", "1M", field!(capture_file_size), "1048576", "a_ring_of_capture_files_is_bounded_and_packets_are_cut"),
    effect("VMA_PCAP_FILES", "3", field!(capture_files), "3", "a_ring_of_capture_files_is_bounded_and_packets_are_cut"),
    effect("VMA_STATS_FILE", "/tmp/x.%d", field!(stats_file), "\"/tmp/x.%d\"", "counters_go_to_the_file_that_is_said"),
    effect("VMA_STATS_SHMEM_DIR", "", field!(stats_directory), "\"\"", "an_empty_directory_is_no_file"),
    effect("VMA_VMAD_NOTIFY_DIR", "/tmp/x", field!(notify_directory), "\"/tmp/x\"", "the_daemon_and_its_files_are_as_the_protocol_says"),
    effect("VMA_STATS_FD_NUM", "2", field!(stats_sockets), "2", "sockets_without_a_place_count_in_the_totals"),
    effect("VMA_CPU_USAGE_STATS", "1", field!(measures_polling), "true", "the_share_of_polling_is_measured_if_said"),
    effect("VMA_CONFIG_FILE", "/tmp/x", |_, settings| settings.text("VMA_CONFIG_FILE").into(), "/tmp/x", "a_receiver_is_the_kernels_by_address_and_port"),
    effect("VMA_APPLICATION_ID", "x", |_, settings| settings.text("VMA_APPLICATION_ID").into(), "x", "a_section_is_for_its_programs_and_ids"),
    effect("VMA_HANDLE_SIGINTR", "1", field!(handle_sigintr), "true", "an_interrupt_is_logged_and_then_takes_its_course"),
    effect("VMA_HANDLE_SIGSEGV", "1", field!(handle_sigsegv), "true", "a_crash_logs_a_backtrace_and_is_still_a_crash"),
    effect("VMA_NETLINK_TIMER", "100", field!(refresh_msec), "100", "routes_are_asked_for_again_as_often_as_said"),
    effect("VMA_TCP_MAX_SYN_RATE", "2", field!(tcp_max_syn_rate), "2", "a_listener_takes_as_many_connections_a_second_as_is_said"),
    effect("VMA_TX_BUFS", "4k", field!(tx_bufs), "4096", "an_interface_has_as_many_frames_as_said"),
    effect("VMA_TX_MC_LOOPBACK", "0", field!(tx_mc_loopback), "false", "sockets_begin_with_the_loopback_that_is_said"),
    effect("VMA_TX_NONBLOCKED_EAGAINS", "1", field!(tx_nonblocked_eagains), "true", "a_send_that_does_not_wait_is_done_or_says_eagain"),
    effect("VMA_RX_BUFS", "512", field!(rx_bufs), "512", "an_interface_has_as_many_frames_as_said"),
    effect("VMA_RX_WRE", "256", field!(rx_wre), "256", "as_many_packets_may_come_before_a_poll_as_said"),
    effect("VMA_RX_BYTES_MIN", "64K", field!(rx_bytes_min), "65536", "a_small_receive_buffer_is_as_large_as_the_least_one"),
    effect("VMA_RX_POLL", "-1", field!(rx_poll), "-1", "polling_before_a_sleep_takes_as_long_as_said"),
    effect("VMA_RX_POLL_INIT", "-1", field!(rx_poll_init), "-1", "polling_before_a_sleep_takes_as_long_as_said"),
    effect("VMA_RX_UDP_POLL_OS_RATIO", "1", field!(rx_udp_poll_os_ratio), "1", "a_look_at_the_kernel_with_every_poll_does_not_hang"),
    effect("VMA_RX_POLL_YIELD", "1", field!(rx_poll_yield), "true", "a_polling_thread_yields_if_it_should"),
    effect("VMA_RX_CQ_DRAIN_RATE_NSEC", "1000", field!(rx_drain_nanos), "1000", "what_has_arrived_is_taken_as_often_as_said_though_something_is_queued"),
    effect("VMA_GRO_STREAMS_MAX", "0", field!(gro_streams), "0", "a_batch_gets_few_acknowledgments_for_as_many_connections_as_is_said"),
    effect("VMA_TCP_3T_RULES", "1", field!(tcp_3t_rules), "true", "connections_are_steered_by_as_much_as_is_said"),
    effect("VMA_UDP_3T_RULES", "1", field!(udp_3t_rules), "true", "connected_sockets_are_steered_by_as_much_as_is_said"),
    effect("VMA_SELECT_POLL", "-1", field!(select_poll), "-1", "select_polls_as_long_as_said"),
    effect("VMA_SELECT_POLL_OS_FORCE", "1", field!(select_poll_os_ratio), "1", "the_kernels_descriptors_are_looked_at_as_often_as_said"),
    effect("VMA_SELECT_POLL_OS_RATIO", "0", field!(select_poll_os_ratio), "0", "the_kernels_descriptors_are_looked_at_as_often_as_said"),
    effect("VMA_PROGRESS_ENGINE_INTERVAL", "0", field!(progress_interval_msec), "0", "rings_that_nobody_polls_are_drained_as_said"),
    effect("VMA_PROGRESS_ENGINE_WCE_MAX", "0", field!(progress_most), "0", "the_internal_thread_takes_as_many_packets_at_once_as_said"),
    effect("VMA_OFFLOADED_SOCKETS", "0", field!(offloaded_sockets), "false", "switched_off_by_vma_offloaded_sockets"),
    effect("VMA_SOCKETXTREME", "1", field!(socketxtreme), "true", "datagrams_come_as_completions"),
    effect("VMA_TCP_TIMESTAMP_OPTION", "0", field!(tcp_timestamps), "0", "connections_have_time_stamps_if_said"),
    effect("VMA_TCP_NODELAY", "1", field!(tcp_nodelay), "true", "sockets_begin_as_is_said"),
    effect("VMA_TCP_QUICKACK", "1", field!(tcp_quickack), "true", "every_segment_is_acknowledged_at_once_if_said"),
    effect("VMA_EXCEPTION_HANDLING", "2", field!(exceptions), "Refuse", "an_option_that_is_not_offloaded_is_treated_as_said"),
    effect("VMA_INTERNAL_THREAD_AFFINITY", "0x5", field!(internal_thread_cpus), "[0, 2]", "the_internal_thread_runs_where_it_should"),
    effect("VMA_INTERNAL_THREAD_CPUSET", "/x", field!(internal_thread_cpuset), "\"/x\"", "the_internal_thread_runs_where_it_should"),
    effect("VMA_INTERNAL_THREAD_ARM_CQ", "1", field!(internal_thread_arm), "true", "rings_that_nobody_polls_are_drained_as_said"),
    effect("VMA_INTERNAL_THREAD_TCP_TIMER_HANDLING", "1", field!(internal_thread_timers), "true", "timers_run_at_once_if_said"),
    effect("VMA_MTU", "1400", field!(mtu), "Some(1400)", "datagrams_are_cut_to_the_mtu_that_is_said"),
    effect("VMA_MSS", "1000", field!(mss), "Some(1000)", "segments_are_no_larger_than_is_said"),
    effect("VMA_TCP_CC_ALGO", "reno", field!(tcp_congestion), "Some(0)", "sockets_begin_as_is_said"),
    effect("VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME", "1", field!(dummy_at_getsockname), "true", "getsockname_is_followed_by_a_dummy_send_if_said"),
    effect("VMA_RX_POLL_ON_TX_TCP", "1", field!(rx_poll_on_tx_tcp), "true", "a_send_call_takes_what_has_arrived_if_said"),
    effect("VMA_XDP", "all", field!(xdp), "All", "switched_off_by_vma_xdp"),
    effect("VMA_XDP_MODE", "generic", field!(xdp_mode), "Generic", "the_steering_program_runs_where_is_said"),
    effect("VMA_XDP_ATTACH", "foreground", field!(attaches_in_background), "false", "an_interface_is_attached_when_is_said"),
    effect("VMA_LOCAL", "0", field!(local), "false", "nothing_is_found_where_it_is_switched_off"),
    effect("VMA_IO_URING", "1", field!(io_uring), "true", "io_uring_is_there_if_asked_for"),
    effect("VMA_TX_OFFLOAD", "0", |config, settings| group(config, settings, Moment::Send), "VMA_TX_OFFLOAD=0", "parameters_of_2008_are_rules_for_multicast"),
    effect("VMA_RX_OFFLOAD", "0", |config, settings| group(config, settings, Moment::Join), "VMA_RX_OFFLOAD=0", "parameters_of_2008_are_rules_for_multicast"),
    effect("VMA_TX_BLOCK", "always", field!(tx_block), "Always", "whether_a_send_waits_is_the_sockets_or_forced"),
];

fn read(pairs: &[(&str, &str)]) -> (Config, Settings) {
    let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let settings = Settings::read(pairs);
    (Config::new(&settings), settings)
}

#[test]
fn every_parameter_has_an_observable_or_a_reason() {
    for param in params::all() {
        let rows = EFFECTS.iter().filter(|one| one.name == param.name).count();
        assert_eq!(rows == 1, param.is_in_effect(), "{}: {rows} rows", param.name);
    }
    assert_eq!(EFFECTS.len(), params::all().filter(|param| param.is_in_effect()).count());
}

#[test]
fn every_parameter_in_effect_changes_what_the_library_reads() {
    let default = read(&[]);
    for one in EFFECTS {
        let (config, settings) = read(&[(one.name, one.value)]);
        assert_eq!(settings.complaints, Vec::<String>::new(), "{}", one.name);
        assert_eq!((one.seen)(&config, &settings), one.becomes, "{}", one.name);
        assert_ne!((one.seen)(&default.0, &default.1), one.becomes, "{}", one.name);
    }
}

/// Appends every Rust source below a folder.
fn sources(folder: &std::path::Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *text += &std::fs::read_to_string(&path).expect("a source");
        }
    }
}

#[test]
fn every_effect_is_shown_by_a_test_that_there_is() {
    let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    for folder in ["src", "tests"] {
        sources(&package.join(folder), &mut text);
    }
    for one in EFFECTS {
        let found = ["", "    "].iter().any(|indent| {
            text.contains(&format!("{indent}#[test]\n{indent}fn {}() {{", one.shown_by))
        });
        assert!(found, "{}: there is no test {}", one.name, one.shown_by);
    }
}
