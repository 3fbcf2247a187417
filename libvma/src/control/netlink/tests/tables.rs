//! Whole tables, and how the asking itself behaves.

use super::*;

#[test]
fn links_tell_what_they_are() {
    in_namespace(|| {
        ip("link add v0 mtu 1400 type veth peer name v1\nlink set v0 address 02:00:00:00:00:01\n\
            link add b0 type bridge\nlink set v1 master b0\nlink set v0 up\n");
        let lo = link("lo");
        assert!(lo.loopback && !lo.ether && !lo.up && lo.kind.is_none());
        assert_eq!((lo.index, lo.mtu), (1, 65536));
        let v0 = link("v0");
        assert_eq!(v0.kind.as_deref(), Some("veth"));
        assert_eq!((v0.mtu, v0.mac, v0.master), (1400, Some([2, 0, 0, 0, 0, 1]), None));
        assert!(v0.ether && !v0.loopback && v0.rx_queues >= 1);
        assert!(v0.up && !v0.carrier, "set up, without carrier");
        assert_eq!(link("b0").kind.as_deref(), Some("bridge"));
        assert_eq!(link("v1").master, Some(index("b0")));
        ip("link set v1 up\n");
        // The kernel says so a moment later.
        let soon = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while !link("v0").carrier {
            assert!(std::time::Instant::now() < soon, "no carrier");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    });
}

#[test]
fn addresses_are_the_interfaces_own() {
    in_namespace(|| {
        pair();
        ip("addr add 10.9.0.1 peer 10.9.0.2/32 dev v1\naddr add fd00::1/64 dev v1\n");
        let found = Netlink::open().unwrap().addresses().unwrap();
        let own = |ifindex, text, prefix_len, broadcast| Address {
            ifindex,
            addr: addr(text),
            prefix_len,
            broadcast,
        };
        assert!(found.contains(&own(1, "127.0.0.1", 8, None)));
        assert!(found.contains(&own(index("v0"), "10.0.0.1", 24, Some(addr("10.0.0.255")))));
        assert!(found.contains(&own(index("v1"), "10.9.0.1", 32, None)), "not the peer's");
        assert_eq!(found.len(), 3, "IPv4 only");
    });
}

#[test]
fn reading_needs_no_capability_and_probing_does() {
    in_namespace(|| {
        pair();
        ip("neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 nud permanent dev v0\n");
        let ifindex = index("v0");
        let nobody = rustix::process::Uid::from_raw(65534);
        // Of this thread only; the kernel takes the capabilities away with the id.
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let mut netlink = Netlink::open().unwrap();
        assert_eq!(netlink.links().unwrap().len(), 3);
        assert_eq!(netlink.addresses().unwrap().len(), 2);
        assert_eq!(
            netlink.neighbour(ifindex, addr("10.0.0.9")).unwrap().unwrap().state,
            NudState::Permanent
        );
        assert_eq!(netlink.route(&RouteQuery::to(addr("10.0.0.9"))).unwrap().oif, ifindex);
        assert_eq!(changes(&mut Monitor::open().unwrap()), []);
        let refused = netlink.probe_neighbour(ifindex, addr("10.0.0.10")).unwrap_err();
        assert_eq!(refused, Error { call: "RTM_NEWNEIGH", errno: Errno::PERM });
        assert_eq!(
            refused.to_string(),
            "RTM_NEWNEIGH failed: Operation not permitted (os error 1)"
        );
    });
}

#[test]
fn buffer_that_is_too_small_grows() {
    in_namespace(|| {
        pair();
        let links = Netlink::open().unwrap().links().unwrap();
        assert_eq!(Netlink::with_buffer(64).unwrap().links().unwrap(), links);
        // Room for the acknowledgement, not for the route.
        let mut netlink = Netlink::with_buffer(64).unwrap();
        let query = RouteQuery::to(addr("10.0.0.2"));
        assert_eq!(
            netlink.route(&query).unwrap_err(),
            Error { call: "RTM_GETROUTE", errno: Errno::MSGSIZE }
        );
        assert_eq!(netlink.route(&query).unwrap().kind, RouteKind::Unicast);
    });
}

#[test]
fn dump_is_whole_while_the_table_changes() {
    in_namespace(|| {
        pair();
        let host = |net: u8, n: i32| format!("10.{net}.{}.{}/32 dev v0\n", n / 250, n % 250);
        let add: String = (0..2000)
            .map(|n| format!("addr add {}", host(if n < 1000 { 2 } else { 1 }, n % 1000)))
            .collect();
        ip(&add);
        // The kernel resumes a dump by counting: each one taken away in front hides one further
        // back.
        let del: String = (0..1000).map(|n| format!("addr del {}", host(2, n))).collect();
        let churning = std::thread::spawn(move || ip(&del));
        let mut netlink = Netlink::open().unwrap();
        while !churning.is_finished() {
            match netlink.addresses() {
                Ok(found) => {
                    assert_eq!(found.iter().filter(|own| own.addr.octets()[1] == 1).count(), 1000)
                }
                Err(error) => assert_eq!(error, Error { call: "RTM_GETADDR", errno: Errno::AGAIN }),
            }
        }
        churning.join().unwrap();
        assert_eq!(netlink.addresses().unwrap().len(), 1002);
    });
}

#[test]
fn no_bytes_can_make_the_parsers_panic() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..200_000 {
        // Small numbers make plausible lengths and types.
        let length = (random() % 64) as usize;
        let bytes: Vec<u8> = (0..length)
            .map(|_| {
                let byte = random();
                if byte & 0x100 == 0 { (byte % 40) as u8 } else { byte as u8 }
            })
            .collect();
        let _ = (
            Link::parse(&bytes),
            Link::parse_gone(&bytes),
            Address::parse(&bytes),
            Neighbour::parse(&bytes),
        );
        let _ = Route::parse(&bytes, &RouteQuery::to(addr("10.0.0.1")));
        for message in wire::messages(&bytes) {
            let _ = message.errno();
        }
    }
}
