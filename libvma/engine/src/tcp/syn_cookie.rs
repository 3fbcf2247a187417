//! SYN cookies (RFC 4987 section 3.6): a half-open connection kept by its peer instead of here,
//! inside the initial sequence number and the low bits of the time stamp. When to use them is the
//! listener's decision.
//!
//! The sequence number is a secret sum of the endpoints, the peer's initial sequence number, a
//! counter of 64-second periods and, among 24 bits, which of eight MSS values fits the peer. Scale,
//! SACK and ECN fit only into a time stamp, so a peer without that option goes without them.

use super::isn::Secret;
use super::lookup::FlowKey;
use super::seq::Seq;
use crate::time::Instant;
use core::time::Duration;

/// How long a cookie is good for, at least half and at most all of this.
pub const LIFETIME: Duration = Duration::from_secs(PERIOD_SECONDS * VALID_PERIODS as u64);

/// The initial sequence number that answers the SYN `irs` of a peer with this MSS.
pub fn make(secret: &Secret, now: Instant, key: &FlowKey, irs: Seq, peer_mss: u16) -> Seq {
    let period = period(now);
    // What is below the smallest value gets it all the same, as in Linux.
    let index = MSS_VALUES.iter().rposition(|value| *value <= peer_mss).unwrap_or(0);
    let data = salted(secret, key, irs, period).wrapping_add((index as u32) << INDEX_SHIFT);
    Seq::new(secret.cookie_hash(key, UNSALTED))
        .plus(irs.raw())
        .plus(period << DATA_BITS)
        .plus(data & DATA_MASK)
}

/// The peer's MSS, rounded down, if `cookie` was made for these endpoints and `irs` in this period
/// or the one before.
///
/// A guess succeeds once in 270 million times.
pub fn check(secret: &Secret, now: Instant, key: &FlowKey, irs: Seq, cookie: Seq) -> Option<u16> {
    let rest = cookie.minus(secret.cookie_hash(key, UNSALTED)).minus(irs.raw()).raw();
    let now = period(now);
    // Of the period only 8 bits are told; it is the latest one that ends in them.
    let age = now.wrapping_sub(rest >> DATA_BITS) & (u32::MAX >> DATA_BITS);
    if age >= VALID_PERIODS {
        return None;
    }
    let data = rest.wrapping_sub(salted(secret, key, irs, now.wrapping_sub(age))) & DATA_MASK;
    if data & INDEX_MASK != 0 {
        return None;
    }
    MSS_VALUES.get((data >> INDEX_SHIFT) as usize).copied()
}

/// The options of a SYN that a time stamp keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampedOptions {
    /// At most 14.
    pub window_scale: Option<u8>,
    pub sack_permitted: bool,
    pub ecn: bool,
}

impl StampedOptions {
    /// The options inside a clock reading that came back.
    pub fn from_clock(clock: u32) -> StampedOptions {
        let scale = (clock & SCALE_MASK) as u8;
        StampedOptions {
            window_scale: (u32::from(scale) != SCALE_MASK).then_some(scale),
            sack_permitted: clock & SACK_BIT != 0,
            ecn: clock & ECN_BIT != 0,
        }
    }

    /// The latest reading of the clock, not after `clock`, that has the options in its low bits.
    pub fn into_clock(self, clock: u32) -> u32 {
        let scale = self.window_scale.map_or(SCALE_MASK, u32::from) & SCALE_MASK;
        let sack = if self.sack_permitted { SACK_BIT } else { 0 };
        let ecn = if self.ecn { ECN_BIT } else { 0 };
        let bits = scale | sack | ecn;
        let stamped = clock & !STAMP_MASK | bits;
        // The peer must not see the clock run backwards later (RFC 7323 section 5: PAWS).
        if bits > clock & STAMP_MASK {
            stamped.wrapping_sub(STAMP_MASK.wrapping_add(1))
        } else {
            stamped
        }
    }
}

/// MSS values as they are sent: the smallest that make sense, the default (RFC 9293 3.7.1), tunnels
/// and PPPoE, Ethernet with and without room for options, jumbo frames, the loopback's 64 KiB.
const MSS_VALUES: [u16; 8] = [216, 536, 1300, 1400, 1440, 1460, 8960, 65495];

const PERIOD_SECONDS: u64 = 64;
const VALID_PERIODS: u32 = 2;

const DATA_BITS: u32 = 24;
const DATA_MASK: u32 = (1 << DATA_BITS) - 1;

/// The index of the MSS is in the high bits of the data, so that the neighbours of a good number,
/// which a confused peer may acknowledge, are not good.
const INDEX_SHIFT: u32 = 21;
const INDEX_MASK: u32 = (1 << INDEX_SHIFT) - 1;

/// No sequence number and period together are this in the next eight thousand years.
const UNSALTED: u64 = u64::MAX;

// The low bits of a stamped clock, as Linux uses them.
const SCALE_MASK: u32 = 0x0f;
const SACK_BIT: u32 = 0x10;
const ECN_BIT: u32 = 0x20;
const STAMP_MASK: u32 = 0x3f;

fn period(now: Instant) -> u32 {
    (now.as_nanos() / (PERIOD_SECONDS * 1_000_000_000)) as u32
}

fn salted(secret: &Secret, key: &FlowKey, irs: Seq, period: u32) -> u32 {
    secret.cookie_hash(key, u64::from(period) << 32 | u64::from(irs.raw()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use proptest::prelude::*;

    const KEY: FlowKey = FlowKey {
        local: Ipv4Addr::new(10, 0, 0, 1),
        local_port: 80,
        remote: Ipv4Addr::new(10, 0, 0, 2),
        remote_port: 40_000,
    };
    const IRS: Seq = Seq::new(0x8000_1234);

    fn secret() -> Secret {
        Secret::new([7; 32])
    }

    fn seconds(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn mss_is_rounded_down() {
        for (mss, kept) in
            [(100, 216), (536, 536), (1459, 1440), (1460, 1460), (9000, 8960), (65535, 65495)]
        {
            let cookie = make(&secret(), seconds(100), &KEY, IRS, mss);
            assert_eq!(check(&secret(), seconds(101), &KEY, IRS, cookie), Some(kept));
        }
    }

    #[test]
    fn cookies_live_between_one_and_two_periods() {
        let cookie = make(&secret(), seconds(127), &KEY, IRS, 1460);
        assert!(check(&secret(), seconds(191), &KEY, IRS, cookie).is_some());
        assert!(check(&secret(), seconds(192), &KEY, IRS, cookie).is_none());
        // When the eight bits of the period come around, the hash is another one.
        let around = 127 + 256 * 64;
        assert!(check(&secret(), seconds(around), &KEY, IRS, cookie).is_none());
    }

    #[test]
    fn a_cookie_is_good_for_its_connection_only() {
        let now = seconds(1000);
        let cookie = make(&secret(), now, &KEY, IRS, 1460);
        let other = FlowKey { remote_port: 40_001, ..KEY };
        assert_eq!(check(&secret(), now, &other, IRS, cookie), None);
        assert_eq!(check(&Secret::new([8; 32]), now, &KEY, IRS, cookie), None);
        assert_eq!(check(&secret(), now, &KEY, IRS.plus(1), cookie), None);
        for count in 1..1000 {
            assert_eq!(check(&secret(), now, &KEY, IRS, cookie.plus(count)), None);
            assert_eq!(check(&secret(), now, &KEY, IRS, cookie.minus(count)), None);
        }
    }

    #[test]
    fn guesses_fail() {
        let hits = (0..1_000_000u32)
            .filter(|guess| {
                let cookie = Seq::new(guess.wrapping_mul(0x9e37_79b9));
                check(&secret(), seconds(1000), &KEY, IRS, cookie).is_some()
            })
            .count();
        // 2 periods of 256, each 8 values of 2^24: one in 270 million.
        assert!(hits <= 1, "{hits}");
    }

    proptest! {
        #[test]
        fn stamped_options_survive_and_never_lie_ahead(
            clock: u32, window_scale in prop::option::of(0u8..=14), sack_permitted: bool, ecn: bool,
        ) {
            let options = StampedOptions { window_scale, sack_permitted, ecn };
            let stamped = options.into_clock(clock);
            prop_assert!(clock.wrapping_sub(stamped) < 64);
            prop_assert_eq!(StampedOptions::from_clock(stamped), options);
        }

        #[test]
        fn made_cookies_check(now in 0u64..1 << 60, irs: u32, remote: u32, mss in 216u16..) {
            let (now, irs) = (Instant::from_nanos(now), Seq::new(irs));
            let key = FlowKey { remote: Ipv4Addr::from_bits(remote), ..KEY };
            let cookie = make(&secret(), now, &key, irs, mss);
            let kept = check(&secret(), now.saturating_add(Duration::from_secs(64)), &key, irs, cookie);
            prop_assert!(kept.is_some_and(|kept| kept <= mss));
        }
    }
}
