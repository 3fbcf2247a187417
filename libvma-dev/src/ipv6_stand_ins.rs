//! IPv6 addresses of other hosts, and this one's as they see it, where addresses are IPv4.
//!
//! The library knows IPv4 addresses. For each IPv6 address that it meets on an interface it has a *stand-in* in 0.0.0.0/8, a network that no
//! packet comes from and none goes to (RFC 6890 section 2.2.2). Headers are translated where frames enter and leave (`device::xdp`), the
//! kernel and the program are told the real address, and whatever lies between is the same code for both families. The stand-in of
//! `::1`, over which nothing goes but shared memory, is another one ([`crate::ipv6_loopback`]).
//!
//! A stand-in has the ones' complement sum of its address (as the prefixes of RFC 6296 have), so that TCP's and UDP's checksums, of the
//! pseudo-header of either family, are the same: a translation touches no checksum.
//!
//! A multicast group of more than a link (RFC 4291 section 2.7) has a stand-in of its own kind, which is no multicast address of IPv4:
//! [`is_multicast`] knows both.
//!
//! The table only grows, to what fits; what finds no place is the kernel's. It is of this process: a child has its parent's entries, another process has others.
//! Nearly always they agree all the same, because an address says which stand-in it would have first; links between processes carry those of
//! addresses that all know alike ([`alike_everywhere`]). It is read and extended without a lock, from any thread.

use core::net::{Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Addresses that may have the same sum: a power of two. Whatever has no place is the kernel's.
const LEVELS: usize = 16;
/// Groups that may: a power of two. They are fewer.
const LEVELS_OF_GROUPS: usize = 4;
/// In the number of a level: it is one of groups.
const GROUPS: u8 = 128;
/// Ones' complement sums.
const SUMS: usize = 65_535;

/// The halves of an address, the second one disguised: both are 0 in an empty place.
struct Place {
    upper: AtomicU64,
    lower: AtomicU64,
}

/// No interface identifier in use, so that a lower half of 0 has a disguise that is none.
const DISGUISE: u64 = 0x5bd1_e995_9e37_79b9;

/// Untouched pages of it are no memory.
static PLACES: [[Place; SUMS]; LEVELS + LEVELS_OF_GROUPS] =
    [const { [const { Place { upper: AtomicU64::new(0), lower: AtomicU64::new(0) } }; SUMS] };
        LEVELS + LEVELS_OF_GROUPS];

/// The address of a listener on `::` that takes IPv6 only (IPV6_V6ONLY); a listener that takes both has 0.0.0.0. The table has no
/// place for this address.
pub const ANY: Ipv4Addr = Ipv4Addr::new(0, 255, 255, 255);

/// Does a socket with this address take what comes to that one?
#[inline]
pub fn covers(bound: Ipv4Addr, address: Ipv4Addr) -> bool {
    bound.is_unspecified() || bound == address || bound == ANY && is_one(address)
}

/// Does the address stand for one of IPv6?
#[inline]
pub fn is_one(address: Ipv4Addr) -> bool {
    let [first, level, ..] = address.octets();
    first == 0 && level != 0
}

/// Does the address stand for a group of IPv6?
#[inline]
pub fn is_group(address: Ipv4Addr) -> bool {
    let [first, level, ..] = address.octets();
    first == 0 && level & GROUPS != 0 && address != ANY
}

/// Is it a group's address, of either family?
#[inline]
pub fn is_multicast(address: Ipv4Addr) -> bool {
    address.is_multicast() || is_group(address)
}

/// Can the address have a stand-in: is it one that a packet between hosts comes from or goes to? A link-local address is not,
/// for it means nothing without its interface; only the next hop to another address may be one, and [`of_neighbour`] gives it a stand-in.
pub fn is_served(address: Ipv6Addr) -> bool {
    is_host(address) || is_served_group(address)
}

/// Is it one that a packet between hosts comes from?
pub fn is_host(address: Ipv6Addr) -> bool {
    !address.is_multicast() && !address.is_unicast_link_local() && has_place(address)
}

/// A group whose scope (RFC 7346 section 2) is the interface or the link means nothing without that either.
fn is_served_group(address: Ipv6Addr) -> bool {
    let [_, scope, ..] = address.octets();
    address.is_multicast() && (3..=14).contains(&(scope & 0xf)) && has_place(address)
}

/// Not of ::/16, which are no addresses of hosts: `::`, `::1`, IPv4-mapped ones.
fn has_place(address: Ipv6Addr) -> bool {
    let (upper, lower) = halves(address);
    upper >> 48 != 0 && lower != DISGUISE
}

/// The stand-in of an address, which it gets now if it had none. `None`: the library does not serve it, or has no place for it.
pub fn of(address: Ipv6Addr) -> Option<Ipv4Addr> {
    if is_served(address) { place(address) } else { None }
}

/// As [`of`], for the table of neighbours.
pub fn of_neighbour(address: Ipv6Addr) -> Option<Ipv4Addr> {
    if address.is_multicast() || !has_place(address) { None } else { place(address) }
}

fn place(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let (upper, lower) = halves(address);
    let disguised = lower ^ DISGUISE;
    let own = |field: &AtomicU64, half| match field.compare_exchange(0, half, Relaxed, Relaxed) {
        Ok(_) => true,
        Err(there) => there == half,
    };
    candidates(address).find_map(|(stand_in, place)| {
        // The thread that wins the second half has the place, also if another one won the first: two threads that bring one
        // address agree.
        let taken = own(&place.upper, upper) && own(&place.lower, disguised);
        taken.then_some(stand_in)
    })
}

/// The stand-in that an address has.
#[inline]
pub fn known(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let (upper, lower) = halves(address);
    let disguised = lower ^ DISGUISE;
    candidates(address)
        .take_while(|(_, place)| place.upper.load(Relaxed) != 0)
        .find(|(_, place)| {
            place.upper.load(Relaxed) == upper && place.lower.load(Relaxed) == disguised
        })
        .map(|(stand_in, _)| stand_in)
}

/// The address that a stand-in stands for.
#[inline]
pub fn real(stand_in: Ipv4Addr) -> Option<Ipv6Addr> {
    if stand_in == ANY {
        return Some(Ipv6Addr::UNSPECIFIED);
    }
    let [0, level, high, low] = stand_in.octets() else { return None };
    let places = PLACES.get(index(level)?)?;
    let place = places.get(usize::from(u16::from_be_bytes([high, low])))?;
    let (upper, disguised) = (place.upper.load(Relaxed), place.lower.load(Relaxed));
    let is_whole = upper != 0 && disguised != 0;
    is_whole.then(|| Ipv6Addr::from(u128::from(upper) << 64 | u128::from(disguised ^ DISGUISE)))
}

/// The stand-ins that an address can have, in the order in which it takes the first that is free. The table of this process is left alone.
pub fn choices(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    candidates(address).map(|(stand_in, _)| stand_in)
}

/// Those of a host's addresses, of either family, by which all of its processes that know them mean the same. An address is none of them if
/// it came when another one had its first place, here or perhaps elsewhere.
pub fn alike_everywhere(hosts: &[Ipv4Addr]) -> Vec<Ipv4Addr> {
    let mut chosen: Vec<_> =
        hosts.iter().filter_map(|address| Some((first_choice(*address)?, *address))).collect();
    // An address may be there twice, on two interfaces.
    chosen.sort_unstable();
    chosen.dedup();
    let rivals = |address: Ipv4Addr| {
        let from = chosen.partition_point(|(first, _)| *first < address);
        chosen.iter().skip(from).take_while(|(first, _)| *first == address).count()
    };
    let is_alike =
        |own: &Ipv4Addr| !is_one(*own) || first_choice(*own) == Some(*own) && rivals(*own) == 1;
    hosts.iter().copied().filter(is_alike).collect()
}

/// The stand-in that the same address has if it comes first.
fn first_choice(stand_in: Ipv4Addr) -> Option<Ipv4Addr> {
    candidates(real(stand_in)?).next().map(|(first, _)| first)
}

/// The bytes of the longest packet to, or from, an address on a link or path of this MTU, as all count them here: with an IPv4
/// header, of IPv6, too.
#[inline]
pub fn room(address: Ipv4Addr, mtu: u32) -> u32 {
    // 40 bytes in the place of 20.
    if is_one(address) { mtu.saturating_sub(20) } else { mtu }
}

/// The MTU of a link or path with this room.
#[inline]
pub fn mtu(address: Ipv4Addr, room: u32) -> u32 {
    if is_one(address) { room.saturating_add(20) } else { room }
}

fn halves(address: Ipv6Addr) -> (u64, u64) {
    let bits = u128::from(address);
    ((bits >> 64) as u64, bits as u64)
}

/// Where the table has the level of this number: those of groups behind the others.
fn index(level: u8) -> Option<usize> {
    let (levels, before) = match level & GROUPS {
        0 => (LEVELS, 0),
        _ => (LEVELS_OF_GROUPS, LEVELS),
    };
    let step = usize::from(level & !GROUPS).checked_sub(1)?;
    (step < levels).then_some(before + step)
}

/// The stand-ins that an address can have, with their places. Which one is first the address says, also in other processes.
#[inline]
fn candidates(address: Ipv6Addr) -> impl Iterator<Item = (Ipv4Addr, &'static Place)> {
    let sum: u32 = address.segments().iter().map(|word| u32::from(*word)).sum();
    let (upper, lower) = halves(address);
    // A multiplicative hash.
    let product = (upper.rotate_left(32) ^ lower).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (levels, kind) = match address.is_multicast() {
        true => (LEVELS_OF_GROUPS, GROUPS),
        false => (LEVELS, 0),
    };
    (0..levels).filter_map(move |step| {
        // The upper bits of the product depend on all of the address.
        let level = ((product >> 60) as usize + step) & (levels - 1);
        let number = kind | (level as u8 + 1);
        // The words of the stand-in have the same sum, modulo 65535.
        let rest = (sum + SUMS as u32 - u32::from(number)) % SUMS as u32;
        let [_, _, high, low] = rest.to_be_bytes();
        let place = PLACES.get(index(number)?)?.get(rest as usize)?;
        Some((Ipv4Addr::new(0, number, high, low), place))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    /// As a checksum's sum comes out: 0 only if all words are.
    fn folded(words: &[u16]) -> u16 {
        let sum: u32 = words.iter().map(|word| u32::from(*word)).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    }

    #[test]
    fn an_address_keeps_its_stand_in() {
        let one = address("2001:db8::17");
        assert_eq!(known(one), None);
        let stand_in = of(one).unwrap();
        assert!(is_one(stand_in));
        assert_eq!(
            (of(one), known(one), real(stand_in)),
            (Some(stand_in), Some(stand_in), Some(one))
        );
    }

    #[test]
    fn the_choices_of_an_address_take_no_place() {
        let one = address("2001:db8::18:17");
        let all: Vec<_> = choices(one).collect();
        assert_eq!((all.len(), known(one)), (LEVELS, None));
        assert_eq!(of(one), all.first().copied());
    }

    #[test]
    fn addresses_of_one_sum_have_their_own_as_far_as_there_is_room() {
        let alike = |n: u16| Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0x100 + n, 0x200 - n);
        let some: Vec<_> = (0..LEVELS as u16).map(|n| of(alike(n)).unwrap()).collect();
        let distinct: std::collections::HashSet<_> = some.iter().collect();
        assert_eq!(distinct.len(), LEVELS);
        for (n, stand_in) in some.iter().enumerate() {
            assert_eq!(real(*stand_in), Some(alike(n as u16)));
        }
        assert_eq!((of(alike(100)), known(alike(100))), (None, None));
    }

    #[test]
    fn a_host_knows_which_addresses_all_its_processes_have_alike() {
        let alike = |n: u16| Ipv6Addr::new(0x2001, 0xdb8, 3, 0, 0, 0, 0x300 + n, 0x900 - n);
        let first = |address| candidates(address).next().unwrap().0;
        let one = alike(0);
        // Of the same sum, one of another level, and one of the same.
        let other = (1..0x300).map(alike).find(|other| first(*other) != first(one)).unwrap();
        let rival = (1..0x300).map(alike).find(|other| first(*other) == first(one)).unwrap();
        let [one, other] = [one, other].map(|address| of(address).unwrap());
        assert_eq!(alike_everywhere(&[one, other]), [one, other]);
        // It came too late here, and elsewhere it may have been the first.
        let rival = of(rival).unwrap();
        assert_eq!(alike_everywhere(&[one, other, rival]), [other]);
        assert_eq!(alike_everywhere(&[rival]), [Ipv4Addr::UNSPECIFIED; 0]);
        let four = Ipv4Addr::new(10, 0, 0, 1);
        assert_eq!(alike_everywhere(&[four, one, other, one]), [four, one, other, one]);
        assert_eq!(alike_everywhere(&[rival, one, four, other]), [four, other]);
    }

    #[test]
    fn a_checksum_is_that_of_the_address() {
        for n in 0..2000u32 {
            let bits = u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834);
            // Of 2000::/3, as all that are routed (RFC 4291 section 2.5.4).
            let address = Ipv6Addr::from(bits << 3 >> 3 | 0x2000 << 112);
            let [a, b, c, d] = of(address).unwrap().octets();
            let words = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
            assert_eq!(folded(&words), folded(&address.segments()), "{address}");
        }
    }

    #[test]
    fn only_addresses_of_hosts_have_one() {
        for not in ["::", "::1", "::ffff:10.0.0.1", "ff02::1", "fe80::1"] {
            assert_eq!(of(address(not)), None, "{not}");
        }
        let gateway = address("fe80::1:2");
        assert_eq!(of_neighbour(gateway).and_then(real), Some(gateway));
        assert!(of_neighbour(address("ff02::2")).is_none());
        // Of the same half as the disguise, and of no other.
        assert!(of(address("2001:db8::5bd1:e995:9e37:79b9")).is_none());
        for foreign in [[0, 0, 0, 0], [0, 99, 0, 0], [10, 1, 2, 3], [127, 255, 255, 255]] {
            assert_eq!(real(Ipv4Addr::from(foreign)), None);
        }
        assert!(!is_one(Ipv4Addr::UNSPECIFIED));
        assert_eq!(real(ANY), Some(Ipv6Addr::UNSPECIFIED));
    }

    #[test]
    fn groups_have_stand_ins_that_are_multicast_addresses() {
        for text in ["ff05::1:3", "ff0e::db8:1", "ff18::7", "ff3e:40:2001:db8::1"] {
            let group = address(text);
            let stand_in = of(group).unwrap();
            assert_eq!((real(stand_in), known(group)), (Some(group), Some(stand_in)));
            assert!(is_one(stand_in) && is_group(stand_in) && is_multicast(stand_in));
            assert!(is_served(group) && !is_host(group));
            assert!(of_neighbour(group).is_none());
        }
        // Of an interface or a link, and of scopes that are reserved.
        for text in ["ff01::1", "ff02::fb", "ff12::1", "ff00::1", "ff0f::1"] {
            assert_eq!(of(address(text)), None, "{text}");
        }
        let alike = |n: u16| Ipv6Addr::new(0xff05, 0, 1, 0, 0, 0, 0x100 + n, 0x200 - n);
        let some: Vec<_> = (0..10).filter_map(|n| of(alike(n))).collect();
        assert_eq!(some.len(), LEVELS_OF_GROUPS);
        let host = of(address("2001:db8::19")).unwrap();
        for other in [host, ANY, Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(10, 200, 0, 1)] {
            assert!(!is_multicast(other), "{other}");
        }
        assert!(
            is_multicast(Ipv4Addr::new(239, 1, 1, 1)) && !is_group(Ipv4Addr::new(239, 1, 1, 1))
        );
    }

    #[test]
    fn who_takes_ipv6_only_takes_no_ipv4() {
        let six = of(address("2001:db8::18")).unwrap();
        let four = Ipv4Addr::new(10, 0, 0, 1);
        assert!(covers(ANY, six) && !covers(ANY, four));
        assert!(covers(Ipv4Addr::UNSPECIFIED, six) && covers(Ipv4Addr::UNSPECIFIED, four));
        assert!(covers(six, six) && !covers(six, four) && !covers(four, six));
    }

    #[test]
    fn threads_that_bring_an_address_agree() {
        for round in 0..200u16 {
            let address = Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, round);
            let other = Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, round, 0);
            std::thread::scope(|scope| {
                let ask = |address| scope.spawn(move || of(address).unwrap());
                let threads = [ask(address), ask(other), ask(address)];
                let [a, b, c] = threads.map(|thread| thread.join().unwrap());
                assert_eq!(a, c);
                assert_eq!((real(a), real(b)), (Some(address), Some(other)));
            });
        }
    }
}
