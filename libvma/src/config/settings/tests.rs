//! What the environment may say and what comes of it.

use super::*;

fn with(pairs: &[(&str, &str)]) -> Settings {
    Settings::read(pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())))
}

#[test]
fn without_a_word_everything_is_its_default() {
    let settings = with(&[("PATH", "/bin"), ("HOME", "/root")]);
    for param in params::all() {
        let expected = Setting { value: param.default.into(), origin: Origin::Default };
        assert_eq!(settings.get(param.name), Some(&expected), "{}", param.name);
    }
    assert_eq!(settings.complaints, Vec::<String>::new());
}

#[test]
fn a_bad_value_is_told_once_with_what_would_be_right_and_what_is_used() {
    let settings = with(&[
        ("VMA_RX_POLL", "many"),
        ("VMA_SELECT_POLL", "-7"),
        ("VMA_XDP_MODE", "fast"),
        ("VMA_OFFLOADED_SOCKETS", "yes"),
        ("VMA_STATS_FD_NUM", "5000"),
        ("VMA_SPEC", "fast"),
    ]);
    assert_eq!(settings.number("VMA_RX_POLL"), 100_000);
    assert_eq!(settings.number("VMA_SELECT_POLL"), 100_000);
    assert_eq!(settings.text("VMA_XDP_MODE"), "auto");
    assert!(settings.flag("VMA_OFFLOADED_SOCKETS"));
    assert_eq!(settings.number("VMA_STATS_FD_NUM"), 1024);
    assert_eq!(settings.spec(), Spec::None);
    assert_eq!(settings.complaints.len(), 6, "{:?}", settings.complaints);
    for complaint in [
        "VMA_RX_POLL=many is not accepted (-1 to 100000000), using 100000",
        "VMA_OFFLOADED_SOCKETS=yes is not accepted (0 or 1), using 1",
        "VMA_STATS_FD_NUM=5000 is not accepted (0 to 1024), using 1024",
        "VMA_XDP_MODE=fast is not accepted (one of auto, native, generic, tc), using auto",
    ] {
        assert!(settings.complaints.iter().any(|said| said == complaint), "{complaint}");
    }
}

#[test]
fn a_bad_value_leaves_the_profile_s() {
    let settings = with(&[("VMA_SPEC", "latency"), ("VMA_RX_POLL", "x")]);
    assert_eq!(settings.number("VMA_RX_POLL"), -1);
    assert!(settings.complaints[0].ends_with("using -1"), "{:?}", settings.complaints);
}

// covers: RUN-13
#[test]
fn the_environment_outweighs_the_profile_which_outweighs_the_default() {
    let settings = with(&[("VMA_SPEC", "15"), ("VMA_TX_WRE", "1024")]);
    assert_eq!(settings.get("VMA_TX_WRE").map(|it| it.origin), Some(Origin::Environment));
    assert_eq!(settings.number("VMA_TX_WRE"), 1024);
    assert_eq!(settings.get("VMA_RX_WRE").map(|it| it.origin), Some(Origin::Profile));
    assert_eq!(settings.number("VMA_RX_WRE"), 256);
    assert_eq!(settings.get("VMA_TX_BUFS").map(|it| it.origin), Some(Origin::Default));
}

/// Name and value of all that differs from the default, in the table's order.
fn changed(spec: &str) -> Vec<(&'static str, String)> {
    let settings = with(&[("VMA_SPEC", spec)]);
    let differs = |param: &&Param| settings.text(param.name) != param.default;
    let changed = params::all().filter(differs).filter(|param| param.name != "VMA_SPEC");
    changed.map(|param| (param.name, settings.text(param.name).to_owned())).collect()
}

// covers: RUN-13
#[test]
fn the_latency_profile_is_the_manual_s() {
    let manual = [
        ("VMA_RING_DEV_MEM_TX", "16384"),
        ("VMA_TX_WRE", "256"),
        ("VMA_TX_WRE_BATCHING", "4"),
        ("VMA_RX_WRE", "256"),
        ("VMA_RX_WRE_BATCHING", "4"),
        ("VMA_RX_POLL", "-1"),
        ("VMA_RX_PREFETCH_BYTES_BEFORE_POLL", "256"),
        ("VMA_GRO_STREAMS_MAX", "0"),
        ("VMA_SELECT_POLL", "-1"),
        ("VMA_SELECT_POLL_OS_FORCE", "1"),
        ("VMA_SELECT_POLL_OS_RATIO", "1"),
        ("VMA_SELECT_SKIP_OS", "1"),
        ("VMA_PROGRESS_ENGINE_INTERVAL", "100"),
        ("VMA_CQ_MODERATION_ENABLE", "0"),
        ("VMA_CQ_AIM_MAX_COUNT", "128"),
        ("VMA_CQ_AIM_INTERVAL_MSEC", "0"),
        ("VMA_CQ_KEEP_QP_FULL", "0"),
        ("VMA_TCP_NODELAY", "1"),
        ("VMA_AVOID_SYS_CALLS_ON_TCP_FD", "1"),
        ("VMA_INTERNAL_THREAD_AFFINITY", "0"),
        ("VMA_THREAD_MODE", "0"),
        ("VMA_MEM_ALLOC_TYPE", "2"),
    ];
    let manual = manual.map(|(name, value)| (name, value.to_owned()));
    assert_eq!(changed("latency"), manual);
}

#[test]
fn every_profile_changes_something_and_numbers_mean_the_same() {
    for spec in Spec::all().filter(|spec| *spec != Spec::None) {
        assert!(!changed(spec.name()).is_empty(), "{spec:?}");
        if let Some(number) = spec.number() {
            assert_eq!(changed(number), changed(spec.name()));
        }
    }
    assert_eq!(changed("none"), []);
    assert!(changed("7750").contains(&("VMA_TRACELEVEL", "warning".into())));
    assert!(changed("29west").contains(&("VMA_RX_POLL", "1".into())));
}

#[test]
fn the_profile_of_one_way_connections_is_the_originals() {
    let original = [
        ("VMA_RING_ALLOCATION_LOGIC_TX", "20"),
        ("VMA_RING_ALLOCATION_LOGIC_RX", "20"),
        ("VMA_RX_POLL", "-1"),
        ("VMA_SELECT_POLL", "-1"),
        ("VMA_SELECT_POLL_OS_RATIO", "0"),
        ("VMA_SELECT_SKIP_OS", "0"),
        ("VMA_CQ_MODERATION_ENABLE", "0"),
        ("VMA_CQ_AIM_INTERVAL_MSEC", "0"),
        ("VMA_MEM_ALLOC_TYPE", "2"),
        ("VMA_RX_POLL_ON_TX_TCP", "1"),
        ("VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME", "1"),
    ];
    let mut original = original.map(|(name, value)| (name, value.to_owned())).to_vec();
    let mut ours = changed("multi_ring_latency");
    original.sort_unstable();
    ours.sort_unstable();
    assert_eq!(ours, original);
}

#[test]
fn former_names_mean_the_present_parameter() {
    let settings = with(&[
        ("VMA_RX_UDP_POLL_OS_RATIO", "1"),
        ("VMA_RX_POLL_OS_RATIO", "2"),
        ("VMA_RX_SKIP_OS", "3"),
        ("VMA_MAX_INLINE", "1000"),
        ("LOG_COLORS", "0"),
    ]);
    assert_eq!(settings.number("VMA_RX_UDP_POLL_OS_RATIO"), 3);
    assert_eq!(settings.number("VMA_TX_MAX_INLINE"), 884);
    assert!(!settings.flag("VMA_LOG_COLORS"));
    let said = &settings.complaints;
    assert!(said.contains(&"VMA_RX_SKIP_OS is now called VMA_RX_UDP_POLL_OS_RATIO".into()));
    assert!(said.contains(&"VMA_MAX_INLINE=1000 is not accepted (0 to 884), using 884".into()));
}

#[test]
fn an_unknown_name_is_told() {
    let settings = with(&[("VMA_RX_POL", "1")]);
    let told = "VMA_RX_POL is not a parameter; did you mean VMA_RX_POLL?";
    assert_eq!(settings.complaints, [told]);
}

// covers: MUX-06, LOG-12
#[test]
fn some_parameters_bring_others_about_unless_these_are_set() {
    let settings = with(&[("VMA_SELECT_POLL_OS_FORCE", "1"), ("VMA_SELECT_SKIP_OS", "7")]);
    assert_eq!(settings.number("VMA_SELECT_POLL_OS_RATIO"), 1);
    assert_eq!(settings.number("VMA_SELECT_SKIP_OS"), 7);
    let debug = with(&[("VMA_TRACELEVEL", "debug")]);
    assert_eq!(debug.number("VMA_LOG_DETAILS"), 2);
    let plain = with(&[("VMA_TRACELEVEL", "4"), ("VMA_LOG_DETAILS", "0")]);
    assert_eq!(plain.number("VMA_LOG_DETAILS"), 0);
    assert_eq!(with(&[("VMA_TRACELEVEL", "details")]).number("VMA_LOG_DETAILS"), 0);
    let timers = with(&[("VMA_TIMER_RESOLUTION_MSEC", "500")]);
    assert_eq!(timers.number("VMA_TCP_TIMER_RESOLUTION_MSEC"), 500);
    assert_eq!(timers.complaints.len(), 1);
}

#[test]
fn what_has_no_effect_is_known_with_its_reason() {
    let settings = with(&[("VMA_CQ_MODERATION_COUNT", "7"), ("VMA_RX_POLL", "7")]);
    let named: Vec<_> = settings.without_effect().map(|(param, _)| param.name).collect();
    assert_eq!(named, ["VMA_CQ_MODERATION_COUNT"]);
}
