//! What follows when a process is dead that has not said goodbye: its rules go, its files go, and the
//! peers of its connections are told.

use std::collections::HashSet;

use crate::connections::Tuple;
use crate::kernel;
use crate::registry::Process;

use super::Served;

impl Served {
    /// Deals with the death of a process; nothing if it is not known.
    pub fn bury(&mut self, pid: i32) {
        let Some(process) = self.registry.remove(pid) else { return };
        let own_pid = process.peer.own_pid();
        log::debug!("[{own_pid}] detect abnormal termination");
        self.traffic.forget(pid);
        let peers = self.tell_peers(&process);
        self.notify_dir.remove(own_pid, process.uid);
        // No news if it had no connections.
        let level = if peers > 0 { log::Level::Info } else { log::Level::Debug };
        log::log!(level, "process {pid} died: telling the peers of {peers} connections");
        log::debug!("[{own_pid}] remove from the storage");
    }

    /// Starts the reset of all connections that were its own; how many.
    fn tell_peers(&mut self, process: &Process) -> usize {
        let own_pid = process.peer.own_pid();
        let mut left: HashSet<Tuple> =
            process.connections.waited_for().map(|(tuple, _)| tuple).collect();
        if left.is_empty() {
            return 0;
        }
        for tuple in self.registry.claimed_by_others(&process.namespace, &left) {
            log::debug!("[{own_pid}] {tuple} lives on in another process");
            left.remove(&tuple);
        }
        match kernel::in_kernel(&process.namespace, &left) {
            Ok(known) => {
                for tuple in known {
                    log::debug!("[{own_pid}] {tuple} is the kernel's");
                    left.remove(&tuple);
                }
            }
            Err(error) => {
                // To reset what may be somebody else's is worse than a peer that waits.
                log::error!(
                    "process {own_pid} died, but the kernel's connections cannot be read ({error}); \
                     no peer is told"
                );
                return 0;
            }
        }
        for Tuple { local, peer } in &left {
            self.resets.start(&process.namespace, *local, *peer);
        }
        left.len()
    }
}
