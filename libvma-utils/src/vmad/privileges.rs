//! What the daemon may do, against what its work needs: said when it starts, not when it is too late.

use anyhow::bail;
use rustix::thread::{CapabilitySet, capabilities};

/// Without this there is no use in running.
const NEEDED: (CapabilitySet, &str, &str) =
    (CapabilitySet::NET_RAW, "CAP_NET_RAW", "to tell the peers of a dead process");

/// Without one of these only a part works.
const USEFUL: [(CapabilitySet, &str, &str); 4] = [
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN", "traffic cannot be led to a TAP"),
    (
        CapabilitySet::SYS_ADMIN,
        "CAP_SYS_ADMIN",
        "processes in other network namespaces cannot be served",
    ),
    (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE", "other users' processes cannot be served"),
    (CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE", "other users' processes get no answers"),
];

/// # Errors
/// Names what is missing and for what, if the daemon cannot work at all. The rest is logged.
pub fn check() -> anyhow::Result<()> {
    let effective = capabilities(None)?.effective;
    let (needed, name, purpose) = NEEDED;
    if !effective.contains(needed) {
        bail!("vmad needs {name} {purpose}: start it as root");
    }
    for (useful, name, lack) in USEFUL {
        if !effective.contains(useful) {
            log::warn!("without {name} {lack}");
        }
    }
    Ok(())
}

/// Warns of what is missing to grant rings. The service does not have it as it is installed: vmad(8) says how.
pub fn check_for_grants() {
    let needed = CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::NET_ADMIN;
    let has = capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
    if !has {
        log::warn!(
            "without CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN no ring can be granted: see vmad(8), RINGS"
        );
    }
    if let Err(error) = std::fs::metadata("/dev/net/tun") {
        log::warn!("without /dev/net/tun no ring can be granted: {error}: see vmad(8), RINGS");
    }
}
