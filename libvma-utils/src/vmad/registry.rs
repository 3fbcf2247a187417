//! The processes that are served, by their number in the daemon's pid namespace. A record belongs to one
//! process, not to a number: who gets a dead one's number gets nothing else.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::connections::{Connections, Tuple};
use crate::namespace::Namespace;
use crate::peer::Peer;

pub struct Process {
    pub peer: Peer,
    /// Who it was when it introduced itself; its files in the notify directory are this user's.
    pub uid: u32,
    /// The network that its connections are in.
    pub namespace: Rc<Namespace>,
    pub connections: Connections,
}

pub struct Registry {
    processes: HashMap<i32, Process>,
    limit: usize,
}

impl Registry {
    pub fn new(limit: u32) -> Registry {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Registry { processes: HashMap::new(), limit }
    }

    pub fn get(&self, pid: i32) -> Option<&Process> {
        self.processes.get(&pid)
    }

    pub fn get_mut(&mut self, pid: i32) -> Option<&mut Process> {
        self.processes.get_mut(&pid)
    }

    pub fn is_full(&self) -> bool {
        self.processes.len() >= self.limit
    }

    /// May this user have a place more? A user with most of the places leaves the last eighth to the others: a loop
    /// of one user's programs would take all. Root may have all.
    pub fn has_place_for(&self, uid: u32) -> bool {
        let own = self.processes.values().filter(|process| process.uid == uid).count();
        let free = self.limit.saturating_sub(self.processes.len());
        free > 0 && (uid == 0 || own <= self.limit / 2 || free > self.limit / 8)
    }

    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Those whose death was not dealt with yet.
    pub fn dead(&self) -> Vec<i32> {
        let dead = self.processes.iter().filter(|(_, process)| process.peer.is_dead());
        dead.map(|(pid, _)| *pid).collect()
    }

    /// Adds a process, in place of one of the same number.
    pub fn insert(&mut self, process: Process) {
        self.processes.insert(process.peer.pid().as_raw_nonzero().get(), process);
    }

    pub fn remove(&mut self, pid: i32) -> Option<Process> {
        self.processes.remove(&pid)
    }

    /// Those of `claimed` that a living process claims, too, such as a child that has inherited the
    /// connection: as long as one lives, nobody may end them.
    pub fn claimed_by_others(
        &self,
        namespace: &Rc<Namespace>,
        claimed: &HashSet<Tuple>,
    ) -> HashSet<Tuple> {
        let others = self.processes.values().filter(|process| {
            process.namespace.identity() == namespace.identity() && !process.peer.is_dead()
        });
        let tuples = others.flat_map(|process| process.connections.waited_for());
        tuples.map(|(tuple, _)| tuple).filter(|tuple| claimed.contains(tuple)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use libvma_dev::agent::{State, TcpState};
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::namespace::Namespaces;

    struct Sleeper(Child);

    impl Sleeper {
        fn new() -> Sleeper {
            Sleeper(Command::new("sleep").arg("100").spawn().expect("it runs"))
        }

        fn pid(&self) -> i32 {
            i32::try_from(self.0.id()).expect("a pid")
        }

        fn process(&self, namespaces: &mut Namespaces) -> Process {
            self.process_of(0, namespaces)
        }

        fn process_of(&self, uid: u32, namespaces: &mut Namespaces) -> Process {
            let peer = Peer::of(self.pid()).expect("it lives");
            let namespace = namespaces.of(peer.pid()).expect("ours");
            Process { peer, uid, namespace, connections: Connections::new(9) }
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn one_user_leaves_places_to_the_others() {
        let (mut namespaces, mut registry) = (Namespaces::new(), Registry::new(16));
        let sleepers: Vec<Sleeper> = (0..16).map(|_| Sleeper::new()).collect();
        let (others, last) = sleepers.split_at(14);
        for sleeper in others {
            assert!(registry.has_place_for(1000));
            registry.insert(sleeper.process_of(1000, &mut namespaces));
        }
        assert!(!registry.has_place_for(1000) && !registry.is_full());
        for sleeper in last {
            assert!(registry.has_place_for(0) && registry.has_place_for(1001));
            registry.insert(sleeper.process_of(1001, &mut namespaces));
        }
        for uid in [0, 1000, 1001] {
            assert!(!registry.has_place_for(uid));
        }
    }

    #[test]
    fn a_connection_is_somebody_elses_as_long_as_that_process_lives() {
        let (mut namespaces, mut registry) = (Namespaces::new(), Registry::new(2));
        let sleepers = [Sleeper::new(), Sleeper::new()];
        for sleeper in &sleepers {
            assert!(!registry.is_full());
            let mut process = sleeper.process(&mut namespaces);
            process.connections.apply(&State {
                pid: sleeper.pid(),
                fd: 3,
                local: "10.0.0.1:80".parse().expect("an address"),
                peer: "10.0.0.2:4000".parse().expect("an address"),
                state: TcpState::Established,
            });
            registry.insert(process);
        }
        assert!(registry.is_full());
        let [mut first, second] = sleepers;
        let dead = registry.remove(second.pid()).expect("it is there");
        let claimed: HashSet<Tuple> =
            dead.connections.waited_for().map(|(tuple, _)| tuple).collect();
        assert_eq!(registry.claimed_by_others(&dead.namespace, &claimed), claimed);
        assert_eq!(registry.dead(), []);

        first.0.kill().expect("it is ours");
        let process = registry.get(first.pid()).expect("it is there");
        poll(&mut [PollFd::new(&process.peer, PollFlags::IN)], None).expect("no error");
        assert_eq!(registry.dead(), [first.pid()]);
        assert!(registry.claimed_by_others(&dead.namespace, &claimed).is_empty());
    }
}
