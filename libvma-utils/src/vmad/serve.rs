//! What a message does: who may say it, what is kept of it, what is answered. `death` has what follows
//! when a process is no more.
//!
//! Whatever comes here may come from anybody. What is refused is logged, but only so often: a flood
//! must not fill the disk.

mod death;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use libvma_dev::agent::{self, Action, Flow, Header, Init, Malformed, Message, State};
use zerocopy::{FromBytes, IntoBytes};

use crate::connections::{Connections, Update, waits};
use crate::endpoint::{Datagram, Endpoint, Sender};
use crate::kernel;
use crate::logging::Limit;
use crate::namespace::{Namespace, Namespaces};
use crate::notify_dir::NotifyDir;
use crate::peer::Peer;
use crate::registry::{Process, Registry};
use crate::resets::Resets;
use crate::traffic::Traffic;

/// All that the messages are about.
pub struct Served {
    pub registry: Registry,
    pub namespaces: Namespaces,
    pub resets: Resets,
    pub traffic: Traffic,
    pub notify_dir: NotifyDir,
    /// Connections kept of each process.
    pub max_sockets: u32,
    pub refusals: Limit,
}

/// Refusals that are logged in each such while.
pub const REFUSALS: (u32, Duration) = (20, Duration::from_secs(5));

/// More than any message, so that every excess is noticed.
pub const BUFFER: usize = 64;

impl Served {
    /// Obeys one datagram, or refuses it. Returns a process that is to be watched from now on.
    pub fn obey(&mut self, endpoint: &Endpoint, datagram: &Datagram, buffer: &[u8]) -> Option<i32> {
        let sender = &datagram.sender;
        if datagram.truncated {
            self.refuse(sender, &format!("{} bytes are no message", datagram.bytes));
            return None;
        }
        let bytes = buffer.get(..datagram.bytes)?;
        log::trace!("[{}] {bytes:02x?}", sender.pid);
        let message = match Message::parse(bytes) {
            Ok(message) => message,
            Err(malformed) => {
                self.refuse(sender, &malformed.to_string());
                if let Some(pid) = self.waits_for_answer(sender, malformed, bytes) {
                    self.answer(endpoint, sender, Flow::answer(pid, false).as_bytes());
                }
                return None;
            }
        };
        log::debug!("getting message ([{}] {})", message.pid(), name(&message));
        if let Message::Init(init) = message {
            return self.init(endpoint, sender, init);
        }
        if let Err(why) = self.check_sender(sender, message.pid()) {
            self.refuse_or_ignore(sender, why);
            return None;
        }
        match message {
            Message::Init(_) => {}
            Message::State(state) => self.state(sender, &state),
            Message::Exit { pid } => self.exit(sender.pid, pid),
            Message::Flow(flow) => self.flow(endpoint, sender, &flow),
        }
        None
    }

    fn init(&mut self, endpoint: &Endpoint, sender: &Sender, init: Init) -> Option<i32> {
        let peer = match Peer::of(sender.pid) {
            Ok(peer) => peer,
            Err(error) => {
                self.refuse(sender, &format!("who it is cannot be found out: {error}"));
                return None;
            }
        };
        if let Err(why) = speaks_of_itself(&peer, init.pid) {
            self.refuse_or_ignore(sender, why);
            return None;
        }
        if !peer.is_of(sender.uid) {
            // The sender was another one, is dead, and its number is another user's now.
            log::debug!("[{}] is not of user {} any more", init.pid, sender.uid);
            return None;
        }
        if init.version > agent::VERSION {
            log::error!(
                "Protocol message mismatch (VMA_AGENT_VER = {}): process {} speaks version {}",
                agent::VERSION,
                init.pid,
                init.version
            );
            self.answer(endpoint, sender, init.answer().as_bytes());
            return None;
        }
        self.make_room(sender);
        let is_known = self.registry.get(sender.pid).is_some();
        if !is_known && !self.registry.has_place_for(sender.uid) {
            let many = self.registry.len();
            let why = match self.registry.is_full() {
                true => format!("{many} processes are served, which is the limit (max_processes)"),
                false => format!(
                    "{many} processes are served, most of them user {}'s: the last places are for others \
                     (max_processes)",
                    sender.uid
                ),
            };
            self.refuse(sender, &why);
            return None;
        }
        // Asked before the look whether it lives still, so it is the namespace of this very process.
        let namespace = self.namespaces.of(peer.pid());
        let namespace = match namespace {
            Ok(namespace) if !peer.is_dead() => namespace,
            Ok(_) => {
                log::debug!("[{}] is dead already", init.pid);
                return None;
            }
            Err(error) => {
                self.refuse(sender, &format!("its network namespace cannot be opened: {error}"));
                return None;
            }
        };
        if self.registry.remove(sender.pid).is_some() {
            log::debug!("[{}] introduces itself anew", init.pid);
            self.traffic.forget(sender.pid);
        }
        let connections = Connections::new(self.max_sockets);
        self.registry.insert(Process { peer, uid: sender.uid, namespace, connections });
        let library = init.library;
        log::debug!("[{}] put into the storage (library version 0x{library:x})", init.pid);
        self.answer(endpoint, sender, init.answer().as_bytes());
        Some(sender.pid)
    }

    /// Deals with the death of a process whose number came back, and of others if places are short.
    fn make_room(&mut self, sender: &Sender) {
        if self.registry.get(sender.pid).is_some_and(|known| known.peer.is_dead()) {
            self.bury(sender.pid);
        }
        if !self.registry.has_place_for(sender.uid) {
            for dead in self.registry.dead() {
                self.bury(dead);
            }
        }
    }

    fn state(&mut self, sender: &Sender, state: &State) {
        let pid = state.pid;
        let (fd, told) = (state.fd, state.state);
        let Some(process) = self.registry.get_mut(sender.pid) else { return };
        let address = state.local.ip();
        if waits(told) && !address.is_unspecified() {
            let known = process.connections.tuple(fd);
            let new = known.is_none_or(|known| known.local.ip() != address);
            if new && let Err(why) = local(&process.namespace, address) {
                process.connections.forget(fd);
                self.refuse(sender, &why);
                return;
            }
        }
        match process.connections.apply(state) {
            Update::Stored => log::debug!("[{pid}] update fid: {fd} type: 1 state: {told}"),
            Update::Removed => log::debug!("[{pid}] remove fid: {fd} type: 1 state: {told}"),
            Update::Full => {
                let many = process.connections.len();
                let why =
                    format!("{many} of its connections are known, which is the limit (fid: {fd})");
                self.refuse(sender, &why);
            }
            Update::Impossible(why) => self.refuse(sender, &format!("fid: {fd}: {why}")),
        }
    }

    fn exit(&mut self, key: i32, pid: i32) {
        self.traffic.forget(key);
        self.registry.remove(key);
        log::debug!("[{pid}] remove from the storage");
    }

    fn flow(&mut self, endpoint: &Endpoint, sender: &Sender, flow: &Flow) {
        let Some(process) = self.registry.get(sender.pid) else { return };
        let done = if process.peer.may_steer() {
            let namespace = &process.namespace;
            let done = match flow.action {
                Action::Add => self.traffic.add(sender.pid, namespace, flow),
                Action::Delete => self.traffic.delete(sender.pid, namespace, flow),
            };
            if let Err(error) = &done {
                self.refuse(sender, &format!("its flow could not be set: {error:#}"));
            }
            done.is_ok()
        } else {
            self.refuse(sender, "without CAP_NET_ADMIN it may not lead packets to a TAP");
            false
        };
        let (pid, kind, interface, tap) = (flow.pid, flow.kind as u8, flow.interface, flow.tap);
        let action = if flow.action == Action::Add { "add" } else { "del" };
        let result = if done { "" } else { ": failed" };
        log::debug!("[{pid}] {action} flow type: {kind} if_id: {interface} tap_id: {tap}{result}");
        if flow.wants_answer {
            self.answer(endpoint, sender, Flow::answer(flow.pid, done).as_bytes());
        }
    }

    /// Whether the sender is registered, and the very process that it speaks of.
    fn check_sender(&mut self, sender: &Sender, pid: i32) -> Result<(), Why> {
        let Some(process) = self.registry.get(sender.pid) else {
            return match Peer::of(sender.pid) {
                Ok(peer) => speaks_of_itself(&peer, pid).and(Err(Why::Unknown)),
                // Dead, and dealt with: a late message.
                Err(_) => Err(Why::Unknown),
            };
        };
        if process.peer.is_dead() && Peer::of(sender.pid).is_ok() {
            // Somebody has the number now who has not introduced itself. (A zombie's last words are
            // read after its death; they count.)
            self.bury(sender.pid);
            return Err(Why::Unknown);
        }
        speaks_of_itself(&process.peer, pid)
    }

    /// Who sent FLOW with a kind or an action that nobody defined waits for an answer as any other.
    fn waits_for_answer(
        &mut self,
        sender: &Sender,
        malformed: Malformed,
        bytes: &[u8],
    ) -> Option<i32> {
        let (Malformed::FlowKind(_) | Malformed::Action(_)) = malformed else { return None };
        let header = Header::read_from_prefix(bytes).ok()?.0;
        let pid = header.pid.get();
        (header.status == 1 && self.check_sender(sender, pid).is_ok()).then_some(pid)
    }

    fn answer(&mut self, endpoint: &Endpoint, sender: &Sender, answer: &[u8]) {
        if let Err(error) = endpoint.reply(sender, &self.notify_dir, answer) {
            self.refuse(sender, &format!("it cannot be answered: {error}"));
        }
    }

    fn refuse_or_ignore(&mut self, sender: &Sender, why: Why) {
        match why {
            Why::Unknown => log::debug!("[{}] is not in the storage", sender.pid),
            Why::Refused(why) => self.refuse(sender, &why),
        }
    }

    fn refuse(&mut self, sender: &Sender, why: &str) {
        let now = Instant::now();
        self.tell_refusals(now);
        if self.refusals.pass(now) {
            let Sender { pid, uid, .. } = sender;
            log::warn!("refused a message of process {pid} of user {uid}: {why}");
        }
    }

    /// Tells how many refusals were not told, when it is time.
    pub fn tell_refusals(&mut self, now: Instant) {
        if let Some(left_out) = self.refusals.due(now) {
            log::warn!("refused {left_out} more messages in {} s", REFUSALS.1.as_secs());
        }
    }
}

/// Why a message is not obeyed.
enum Why {
    /// Nobody knows the process. That is usual when the daemon was restarted, and no news.
    Unknown,
    Refused(String),
}

/// Whether a process may speak of `pid`: only of itself.
fn speaks_of_itself(peer: &Peer, pid: i32) -> Result<(), Why> {
    if pid == peer.own_pid() {
        return Ok(());
    }
    Err(Why::Refused(format!("it speaks of process {pid}")))
}

fn local(namespace: &Namespace, address: IpAddr) -> Result<(), String> {
    match kernel::is_local(namespace, address) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{address} is no address of its network")),
        Err(error) => Err(format!("whether {address} is its address cannot be told: {error}")),
    }
}

fn name(message: &Message) -> &'static str {
    match message {
        Message::Init(_) => "INIT",
        Message::State(_) => "STATE",
        Message::Exit { .. } => "EXIT",
        Message::Flow(_) => "FLOW",
    }
}
