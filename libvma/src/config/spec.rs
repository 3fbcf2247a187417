//! `VMA_SPEC`: bundles of values, by name or number. What each sets stands in the table.

/// A profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spec {
    None,
    UltraLatency,
    Latency,
    West29,
    WombatFh,
    Memcached,
    MemcachedInterrupt,
    Rti,
    LowLatency7750,
    MultiRing,
}

/// Name, number (if it has one), what the banner calls it, and what it is for.
struct Entry(Spec, &'static str, Option<&'static str>, &'static str, &'static str);

const ENTRIES: &[Entry] = &[
    Entry(Spec::None, "none", Some("0"), "None", "no profile"),
    Entry(
        Spec::UltraLatency,
        "ultra-latency",
        Some("10"),
        "Ultra Latency",
        "lowest latency of one thread that polls; the kernel's descriptors are hardly looked at",
    ),
    Entry(
        Spec::Latency,
        "latency",
        Some("15"),
        "Latency",
        "low latency in every case, at the cost of processor time and peak bandwidth",
    ),
    Entry(Spec::West29, "29west", Some("29"), "29West LBM Logic", "29West LBM"),
    Entry(Spec::WombatFh, "wombat_fh", Some("554"), "Wombat FH LBM Logic", "Wombat feed handlers"),
    Entry(Spec::Memcached, "mcd", Some("623"), "Memcached Logic", "memcached, polling"),
    Entry(
        Spec::MemcachedInterrupt,
        "mcd-irq",
        Some("624"),
        "Memcached Interrupt Mode",
        "memcached, sleeping",
    ),
    Entry(Spec::Rti, "rti", Some("784"), "RTI Logic", "RTI DDS"),
    Entry(
        Spec::LowLatency7750,
        "7750",
        None,
        "7750 Low Latency Profile",
        "many sockets at low latency",
    ),
    Entry(
        Spec::MultiRing,
        "multi_ring_latency",
        None,
        "Multi Ring Latency Profile",
        "two programs that talk over TCP sockets each of which only sends or only receives",
    ),
];

impl Spec {
    /// By name in any case, or number.
    pub fn parse(text: &str) -> Option<Spec> {
        let found = ENTRIES.iter().find(|entry| {
            entry.1.eq_ignore_ascii_case(text) || entry.2.is_some_and(|number| number == text)
        });
        found.map(|entry| entry.0)
    }

    fn entry(self) -> &'static Entry {
        // Every profile has one; a test says so.
        ENTRIES.iter().find(|entry| entry.0 == self).unwrap_or(&ENTRIES[0])
    }

    pub fn name(self) -> &'static str {
        self.entry().1
    }

    pub fn number(self) -> Option<&'static str> {
        self.entry().2
    }

    /// As in the banner.
    pub fn title(self) -> &'static str {
        self.entry().3
    }

    pub fn purpose(self) -> &'static str {
        self.entry().4
    }

    pub fn all() -> impl Iterator<Item = Spec> {
        ENTRIES.iter().map(|entry| entry.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_have_names_in_any_case_and_numbers() {
        assert_eq!(Spec::parse("Ultra-Latency"), Some(Spec::UltraLatency));
        assert_eq!(Spec::parse("15"), Some(Spec::Latency));
        assert_eq!(Spec::parse("29"), Some(Spec::West29));
        assert_eq!(Spec::parse("29WEST"), Some(Spec::West29));
        assert_eq!(Spec::parse("554"), Some(Spec::WombatFh));
        assert_eq!(Spec::parse("623"), Some(Spec::Memcached));
        assert_eq!(Spec::parse("624"), Some(Spec::MemcachedInterrupt));
        assert_eq!(Spec::parse("784"), Some(Spec::Rti));
        assert_eq!(Spec::parse("7750"), Some(Spec::LowLatency7750));
        assert_eq!(Spec::parse("multi_ring_latency"), Some(Spec::MultiRing));
        assert_eq!(Spec::parse("0"), Some(Spec::None));
        assert_eq!(Spec::parse("fast"), None);
        for spec in Spec::all() {
            assert_eq!(Spec::parse(spec.name()), Some(spec));
            assert_eq!(spec.entry().0, spec);
        }
    }
}
