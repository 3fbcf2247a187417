//! Parameters that change others.

use std::collections::BTreeMap;

use super::settings::Settings;
use crate::log::{self, Level};

/// What outweighs the profile, but not what the environment says of the parameter itself.
pub(super) fn implied(settings: &Settings) -> BTreeMap<&'static str, String> {
    let mut implied = BTreeMap::new();
    if settings.flag("VMA_SELECT_POLL_OS_FORCE") {
        implied.insert("VMA_SELECT_POLL_OS_RATIO", "1".to_owned());
        implied.insert("VMA_SELECT_SKIP_OS", "1".to_owned());
    }
    if settings.number("VMA_RX_POLL") < 0 || settings.number("VMA_SELECT_POLL") < 0 {
        // Who polls for ever gains nothing from fewer interrupts.
        implied.insert("VMA_CQ_MODERATION_ENABLE", "0".to_owned());
    }
    let level = Level::parse(settings.text("VMA_TRACELEVEL"));
    if level.is_some_and(|level| level >= Level::Debug) {
        implied.insert("VMA_LOG_DETAILS", "2".to_owned());
    }
    implied
}

/// What is brought in line whoever said it.
pub(super) fn adjust(settings: &mut Settings) {
    if Level::parse(settings.text("VMA_TRACELEVEL")).is_some_and(|level| level > log::FINEST) {
        let finest = log::FINEST.name();
        settings.imply("VMA_TRACELEVEL", finest.to_ascii_lowercase());
        let why = "finer levels are in the debug library";
        settings.complaints.push(format!("VMA trace level set to max level {finest}: {why}"));
    }
    if !settings.flag("VMA_CQ_MODERATION_ENABLE") {
        settings.imply("VMA_CQ_AIM_INTERVAL_MSEC", 0);
    }
    for (queue, batching) in
        [("VMA_TX_WRE", "VMA_TX_WRE_BATCHING"), ("VMA_RX_WRE", "VMA_RX_WRE_BATCHING")]
    {
        let least = settings.number(batching) * 2;
        settings.imply(queue, settings.number(queue).max(least));
    }
    let most = settings.number("VMA_RX_WRE") / 2;
    for count in ["VMA_CQ_MODERATION_COUNT", "VMA_CQ_AIM_MAX_COUNT"] {
        settings.imply(count, settings.number(count).min(most));
    }
    let level = settings.number("VMA_QP_COMPENSATION_LEVEL");
    settings.imply("VMA_QP_COMPENSATION_LEVEL", level.max(settings.number("VMA_RX_WRE_BATCHING")));
    let (tcp, all) = ("VMA_TCP_TIMER_RESOLUTION_MSEC", "VMA_TIMER_RESOLUTION_MSEC");
    let least = settings.number(all);
    if settings.number(tcp) < least {
        settings.imply(tcp, least);
        settings.complaints.push(format!("{tcp} is less than {all}, using {least}"));
    }
}
