//! Neighbours: reading the ARP table, and having the kernel fill it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::*;

#[test]
fn permanent_neighbour_is_seen_and_left_alone() {
    in_namespace(|| {
        pair();
        let ifindex = index("v0");
        let mut monitor = Monitor::open().unwrap();
        let mut netlink = Netlink::open().unwrap();
        assert_eq!(netlink.neighbour(ifindex, addr("10.0.0.9")).unwrap(), None);
        ip("neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 nud permanent dev v0\n\
             neigh add proxy 10.0.0.8 dev v0\n");
        let fixed = Neighbour {
            ifindex,
            addr: addr("10.0.0.9"),
            mac: Some([2, 0, 0, 0, 0, 9]),
            state: NudState::Permanent,
        };
        assert_eq!(changes(&mut monitor), [Change::Neighbour(fixed)], "and no proxy entry");
        assert!(fixed.state.is_valid());
        assert!(netlink.neighbours().unwrap().contains(&fixed));
        netlink.probe_neighbour(ifindex, fixed.addr).unwrap();
        assert_eq!(netlink.neighbour(ifindex, fixed.addr).unwrap(), Some(fixed));
        ip("neigh del 10.0.0.9 dev v0\n");
        until(&mut monitor, |change| {
            *change == Change::NeighbourGone { ifindex, addr: fixed.addr }
        });
        assert_eq!(netlink.probe_neighbour(9999, fixed.addr).unwrap_err().errno, Errno::NODEV);
    });
}

// covers: LIM-25
#[test]
fn probe_resolves_a_neighbour_in_another_namespace() {
    in_namespace(|| {
        let here = File::open("/proc/thread-self/ns/net").unwrap();
        unshare(UnshareFlags::NEWNET).unwrap();
        let there = File::open("/proc/thread-self/ns/net").unwrap();
        let enter = |space: &File| {
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap()
        };
        enter(&here);
        pair();
        let peer = format!("/proc/{}/fd/{}", std::process::id(), there.as_raw_fd());
        ip(&format!("link set v1 netns {peer}\n"));
        enter(&there);
        ip("link set v1 address 02:00:00:00:00:02\nlink set v1 up\naddr add 10.0.0.2/24 dev v1\n");
        enter(&here);

        let ifindex = index("v0");
        let mut monitor = Monitor::open().unwrap();
        let mut netlink = Netlink::open().unwrap();
        let resolved = |mac| {
            move |change: &Change| {
                let (addr, mac, state) = (addr("10.0.0.2"), Some(mac), NudState::Reachable);
                *change == Change::Neighbour(Neighbour { ifindex, addr, mac, state })
            }
        };
        let failed = |host| {
            move |change: &Change| {
                let (addr, state) = (addr(host), NudState::Failed);
                *change == Change::Neighbour(Neighbour { ifindex, addr, mac: None, state })
            }
        };
        netlink.probe_neighbour(ifindex, addr("10.0.0.2")).unwrap();
        until(&mut monitor, resolved([2, 0, 0, 0, 0, 2]));
        let found = netlink.neighbour(ifindex, addr("10.0.0.2")).unwrap().unwrap();
        assert_eq!((found.mac, found.state), (Some([2, 0, 0, 0, 0, 2]), NudState::Reachable));

        // The peer gets another card. A stale entry is first asked for at its old address, then
        // everywhere.
        enter(&there);
        ip("link set v1 down\nlink set v1 address 02:00:00:00:00:03\nlink set v1 up\n");
        enter(&here);
        ip("neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 nud stale dev v0\n");
        sysctl("neigh/v0/delay_first_probe_time", "0");
        sysctl("neigh/v0/retrans_time_ms", "20");
        netlink.probe_neighbour(ifindex, addr("10.0.0.2")).unwrap();
        until(&mut monitor, failed("10.0.0.2"));
        netlink.probe_neighbour(ifindex, addr("10.0.0.2")).unwrap();
        until(&mut monitor, resolved([2, 0, 0, 0, 0, 3]));

        // Nobody has this one.
        netlink.probe_neighbour(ifindex, addr("10.0.0.66")).unwrap();
        until(&mut monitor, failed("10.0.0.66"));
    });
}
