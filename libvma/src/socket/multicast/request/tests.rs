use super::*;

/// A `sockaddr_storage` with this address.
fn storage(address: &str) -> Vec<u8> {
    let mut bytes = vec![0; STORAGE];
    let family = match address.parse().unwrap() {
        std::net::IpAddr::V4(ip) => {
            bytes[4..8].copy_from_slice(&ip.octets());
            libc::AF_INET
        }
        std::net::IpAddr::V6(ip) => {
            bytes[8..24].copy_from_slice(&ip.octets());
            libc::AF_INET6
        }
    };
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    bytes
}

/// `group_req`, with whatever follows.
fn group_request(interface: u32, group: &str, rest: &[u8]) -> Vec<u8> {
    [&interface.to_ne_bytes()[..], &[0; 4], &storage(group), rest].concat()
}

fn served(group: &str, by: By, change: Change) -> Read {
    let group = match group.parse().unwrap() {
        std::net::IpAddr::V4(ip) => ip,
        std::net::IpAddr::V6(ip) => ipv6_stand_ins::of(ip).unwrap(),
    };
    Read::Served(Request { group, by, change })
}

const V4: i32 = libc::IPPROTO_IP;
const V6: i32 = libc::IPPROTO_IPV6;

#[test]
fn a_group_is_joined_by_an_index_an_address_or_neither() {
    let group = [239, 1, 1, 1];
    let plain = [group, [10, 0, 0, 1]].concat();
    let numbered = [group, [10, 0, 0, 1], 7u32.to_ne_bytes()].concat();
    let any = [group, [0; 4]].concat();
    let address = By::Address([10, 0, 0, 1].into());
    for (value, by) in [(plain, address), (numbered, By::Index(7)), (any, By::Route)] {
        let expected = |change| served("239.1.1.1", by, change);
        assert_eq!(read(V4, libc::IP_ADD_MEMBERSHIP, &value), expected(Change::Join));
        assert_eq!(read(V4, libc::IP_DROP_MEMBERSHIP, &value), expected(Change::Leave));
    }
    let six: std::net::Ipv6Addr = "ff05::7".parse().unwrap();
    let value = [&six.octets()[..], &7u32.to_ne_bytes()].concat();
    let expected = |change| served("ff05::7", By::Index(7), change);
    assert_eq!(read(V6, libc::IPV6_ADD_MEMBERSHIP, &value), expected(Change::Join));
    assert_eq!(read(V6, libc::IPV6_DROP_MEMBERSHIP, &value), expected(Change::Leave));
}

#[test]
fn the_calls_for_either_family_are_read_alike() {
    for (level, group, source) in [(V4, "239.1.1.1", "10.0.0.2"), (V6, "ff05::7", "fd00::2")] {
        let stand_in = source_at(&storage(source), 0).unwrap();
        let value = group_request(3, group, &storage(source));
        let all: [(i32, Change); 6] = [
            (libc::MCAST_JOIN_GROUP, Change::Join),
            (libc::MCAST_LEAVE_GROUP, Change::Leave),
            (libc::MCAST_JOIN_SOURCE_GROUP, Change::JoinSource(stand_in)),
            (libc::MCAST_LEAVE_SOURCE_GROUP, Change::LeaveSource(stand_in)),
            (libc::MCAST_BLOCK_SOURCE, Change::Block(stand_in)),
            (libc::MCAST_UNBLOCK_SOURCE, Change::Unblock(stand_in)),
        ];
        for (name, change) in all {
            assert!(is_one(level, name));
            assert_eq!(read(level, name, &value), served(group, By::Index(3), change));
        }
        let filter = [&1u32.to_ne_bytes()[..], &1u32.to_ne_bytes(), &storage(source)].concat();
        let value = group_request(0, group, &filter);
        let change = Change::Filter(SourceMode::Include, vec![stand_in]);
        assert_eq!(read(level, libc::MCAST_MSFILTER, &value), served(group, By::Route, change));
    }
}

#[test]
fn sources_and_filters_of_ipv4_are_read() {
    let one = [[239, 1, 1, 1], [10, 0, 0, 1], [10, 0, 0, 2]].concat();
    let by = By::Address([10, 0, 0, 1].into());
    let change = Change::JoinSource([10, 0, 0, 2].into());
    assert_eq!(read(V4, libc::IP_ADD_SOURCE_MEMBERSHIP, &one), served("239.1.1.1", by, change));
    let (exclude, two) = (0u32.to_ne_bytes(), 2u32.to_ne_bytes());
    let mut filter =
        [[239, 1, 1, 1], [10, 0, 0, 1], exclude, two, [10, 0, 0, 2], [10, 0, 0, 3]].concat();
    let sources = vec![[10, 0, 0, 2].into(), [10, 0, 0, 3].into()];
    let change = Change::Filter(SourceMode::Exclude, sources);
    assert_eq!(read(V4, libc::IP_MSFILTER, &filter), served("239.1.1.1", by, change));
    filter.pop();
    assert_eq!(read(V4, libc::IP_MSFILTER, &filter), Read::Unknown);
}

#[test]
fn groups_of_a_link_are_the_kernels() {
    let value = group_request(3, "ff02::fb", &[]);
    assert_eq!(read(V6, libc::MCAST_JOIN_GROUP, &value), Read::Kernels);
    assert_eq!(read(V6, libc::MCAST_JOIN_GROUP, &value[..12]), Read::Unknown);
    // Such a source, too, but of a group that is served.
    let value = group_request(3, "ff05::7", &storage("fe80::1"));
    assert!(matches!(read(V6, libc::MCAST_BLOCK_SOURCE, &value), Read::Served(_)));
}

#[test]
fn other_options_are_none() {
    for name in
        [libc::IP_MULTICAST_IF, libc::IP_MULTICAST_LOOP, libc::IP_MULTICAST_ALL, libc::IP_TTL]
    {
        assert!(!is_one(V4, name));
    }
    for name in [libc::IPV6_MULTICAST_IF, libc::IPV6_MULTICAST_HOPS, libc::IP_ADD_MEMBERSHIP] {
        assert!(!is_one(V6, name));
    }
    assert!(!is_one(libc::SOL_SOCKET, libc::MCAST_JOIN_GROUP));
}
