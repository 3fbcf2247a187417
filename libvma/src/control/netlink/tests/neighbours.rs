//! Neighbours: reading the ARP table, and having the kernel fill it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::*;
use crate::config::Config;
use crate::config::settings::Settings;
use crate::control::{Control, Effect};

/// Applies all messages that wait at the monitor; returns the sum of their effects.
fn followed(control: &mut Control, monitor: &mut Monitor) -> Effect {
    let mut all = Effect::default();
    for change in changes(monitor) {
        let one = control.apply(change);
        all.next_hops |= one.next_hops;
        all.flows |= one.flows;
        all.unanswered = all.unanswered.or(one.unanswered);
    }
    all
}

// covers: LIM-25
#[test]
fn an_answer_to_one_does_not_keep_the_news_from_others() {
    in_namespace(|| {
        pair();
        let (ifindex, peer) = (index("v0"), addr("10.0.0.2"));
        let config = Config::new(&Settings::read(Vec::new()));
        let (mut control, mut monitor) = Control::open(&config).unwrap();
        // The first one to ask waits. Each of the others is answered ahead of the monitor's message.
        assert_eq!(control.neighbour(ifindex, peer), None);
        for (last, state) in [(2, "reachable"), (3, "stale"), (3, "failed"), (4, "reachable")] {
            let mac = [2, 0, 0, 0, 0, last];
            ip(&format!(
                "neigh replace 10.0.0.2 lladdr 02:00:00:00:00:0{last} nud {state} dev v0\n"
            ));
            let answer = control.neighbour(ifindex, peer);
            if control.neighbours.get(&(ifindex, peer)).is_none_or(|known| !known.state.is_valid())
            {
                assert_eq!(answer, Some(mac).filter(|_| state != "failed"), "{state}");
            }
            assert!(followed(&mut control, &mut monitor).next_hops, "{state}: nobody is told");
        }
    });
}

// covers: LIM-25
#[test]
fn a_stale_address_is_used_and_confirmed() {
    in_namespace(|| {
        pair();
        let (ifindex, peer) = (index("v0"), addr("10.0.0.2"));
        ip("neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 nud stale dev v0\n");
        let config = Config::new(&Settings::read(Vec::new()));
        let (mut control, _monitor) = Control::open(&config).unwrap();
        assert_eq!(control.neighbour(ifindex, peer), Some([2, 0, 0, 0, 0, 2]));
        let state = |control: &mut Control| {
            control.netlink.neighbour(ifindex, peer).unwrap().unwrap().state
        };
        assert_eq!(state(&mut control), NudState::Delay, "the kernel is about to ask");
    });
}

// covers: LIM-25
#[test]
fn a_neighbour_that_is_tried_again_is_not_given_up() {
    in_namespace(|| {
        pair();
        let (ifindex, peer) = (index("v0"), addr("10.0.0.66"));
        sysctl("neigh/v0/retrans_time_ms", "20");
        let config = Config::new(&Settings::read(Vec::new()));
        let (mut control, mut monitor) = Control::open(&config).unwrap();
        assert_eq!(control.neighbour(ifindex, peer), None);
        assert!(!control.has_given_up(ifindex, peer), "it has just begun");
        until(
            &mut monitor,
            |change| matches!(change, Change::Neighbour(now) if now.state == NudState::Failed),
        );
        assert!(control.has_given_up(ifindex, peer));
        sysctl("neigh/v0/retrans_time_ms", "1000");
        assert_eq!(control.neighbour(ifindex, peer), None);
        assert!(!control.has_given_up(ifindex, peer), "that failure was of an earlier attempt");
    });
}

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
