//! What the machine is.

/// Is it a guest of Microsoft's hypervisor (Hyper-V, Azure)? Asks the processor, which takes a
/// virtual machine microseconds.
pub fn is_microsoft_guest() -> bool {
    hypervisor().is_some_and(|name| &name == b"Microsoft Hv")
}

/// The name by which a hypervisor introduces itself (Intel SDM volume 2, CPUID: leaf 1 ECX bit 31;
/// Hypervisor Top Level Functional Specification, 2.4).
#[cfg(target_arch = "x86_64")]
fn hypervisor() -> Option<[u8; 12]> {
    use core::arch::x86_64::__cpuid;
    const FEATURES: u32 = 1;
    const PRESENT: u32 = 1 << 31;
    const VENDOR: u32 = 0x4000_0000;
    if __cpuid(FEATURES).ecx & PRESENT == 0 {
        return None;
    }
    let leaf = __cpuid(VENDOR);
    let mut name = [0; 12];
    for (bytes, register) in name.chunks_exact_mut(4).zip([leaf.ebx, leaf.ecx, leaf.edx]) {
        bytes.copy_from_slice(&register.to_le_bytes());
    }
    Some(name)
}

#[cfg(not(target_arch = "x86_64"))]
fn hypervisor() -> Option<[u8; 12]> {
    None
}

/// The inode of this process's PID namespace, which tells it from others until the next boot.
pub fn pid_namespace() -> Option<u64> {
    rustix::fs::stat("/proc/self/ns/pid").ok().map(|stat| stat.st_ino)
}

/// What tells this thread's network namespace from others, until the next boot.
pub fn network_namespace() -> Option<u64> {
    rustix::fs::stat("/proc/thread-self/ns/net").ok().map(|found| found.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux says it, too, where the machine is the kind that has such files.
    #[test]
    fn the_hypervisor_is_the_one_that_linux_found() {
        let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let guest = flags.split_whitespace().any(|flag| flag == "hypervisor");
        assert_eq!(hypervisor().is_some(), guest && cfg!(target_arch = "x86_64"));
        let hyper_v = std::path::Path::new("/sys/bus/vmbus").exists();
        assert!(!hyper_v || is_microsoft_guest());
    }
}
