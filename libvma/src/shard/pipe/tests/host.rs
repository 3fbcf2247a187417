//! A model of two processes: what the socket layer does with a pipe, without sockets.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::rc::Rc;

use libvma_engine::tcp::Events;

use super::model::{Model, Notes, Record, Wire};
use super::rest::Rest;
use crate::device::shm::LinkId;
use crate::shard::SocketId;
use crate::shard::pipe::message::{Message, Offer};
use crate::shard::pipe::{Pipe, Pipes, Turn, Way};

/// One direction of the kernel's connection.
#[derive(Default)]
pub struct Kernel {
    pub bytes: VecDeque<u8>,
    pub shut: bool,
    /// The sender has ended it by RST, which is seen behind the bytes.
    pub reset: bool,
    /// There is no reader any more.
    pub deaf: bool,
}

/// One process with one socket.
pub struct Host {
    pub pipes: Pipes,
    pub carrier: Model,
    pub index: Option<u32>,
    incoming: Wire,
    kernel_in: Rc<RefCell<Kernel>>,
    kernel_out: Rc<RefCell<Kernel>>,
    /// How many bytes the kernel's connection holds.
    pub kernel_room: usize,
    pub sent: Vec<u8>,
    pub got: Vec<u8>,
    pub at_end: bool,
    /// The program was told that the connection is reset.
    pub failed: bool,
    /// The kernel ends the connection by RST when the process ends (SO_LINGER).
    armed: bool,
    pub shut: bool,
    /// When the process ended, it had been told of the peer's end, and had told of its own.
    pub knew_both_ends: bool,
    pub events: Events,
    /// It looks for bytes in the kernel that nobody has told of.
    pub finds: bool,
    /// Bytes that went by the kernel because the link was full.
    pub overflowed: usize,
    /// In nanoseconds.
    pub now: u64,
    /// The peer's half of the kernel's connection, which it has left.
    pub peers_half: Option<Rest>,
}

pub fn link() -> LinkId {
    LinkId::from_mac([2, 0, 0, 0, 0, 1]).expect("a link's address")
}

pub fn socket() -> SocketId {
    SocketId::from_bits(1 << 32).expect("a name")
}

/// The inode of the client's socket.
pub const CLIENT: u32 = 40_000;
pub const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 80);

/// A client and a server that are linked.
pub fn hosts() -> (Host, Host) {
    let wires: [Wire; 2] = Default::default();
    let notes = Notes::default();
    let kernels: [Rc<RefCell<Kernel>>; 2] = Default::default();
    let host = |own: usize| Host {
        pipes: Pipes::default(),
        carrier: Model::new(wires[own].clone(), notes.clone(), own),
        index: None,
        incoming: wires[1 - own].clone(),
        kernel_in: kernels[1 - own].clone(),
        kernel_out: kernels[own].clone(),
        kernel_room: usize::MAX,
        sent: Vec::new(),
        got: Vec::new(),
        at_end: false,
        failed: false,
        armed: false,
        shut: false,
        knew_both_ends: false,
        events: Events::NONE,
        finds: own == 0,
        overflowed: 0,
        now: 0,
        peers_half: None,
    };
    (host(0), host(1))
}

/// A client that has read nothing of what the server has sent by the pipe.
pub fn with_unread(bytes: &[u8]) -> (Host, Host) {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    server.accept(1 << 20);
    server.send(bytes);
    while client.deliver() {}
    (client, server)
}

impl Host {
    pub fn pipe(&mut self) -> &mut Pipe {
        self.pipes.get(self.index.expect("a pipe")).expect("a pipe")
    }

    pub fn with<T>(&mut self, call: impl FnOnce(&mut Pipe, &mut Model) -> T) -> T {
        let pipe = self.pipes.get(self.index.expect("a pipe")).expect("a pipe");
        call(pipe, &mut self.carrier)
    }

    pub fn offer(&mut self, limit: u32) {
        self.seek(limit);
        self.offer_late(limit);
    }

    /// A client whose peer has not answered yet.
    pub fn seek(&mut self, limit: u32) {
        self.index = Some(self.pipes.add(socket(), u64::from(limit), 0).0);
    }

    /// It has answered.
    pub fn offer_late(&mut self, limit: u32) {
        let offer = Offer { socket: CLIENT, destination: SERVER, limit };
        assert!(self.with(|pipe, carrier| pipe.offer(carrier, link(), offer, 0)));
    }

    /// Accepts before the offer has come.
    pub fn accept_early(&mut self, limit: u64) {
        let (index, _) = self.pipes.add(socket(), limit, 0);
        self.pipes.expect_offer(index, CLIENT, SERVER);
        self.index = Some(index);
    }

    /// Accepts; false if there is no offer.
    pub fn accept(&mut self, limit: u64) -> bool {
        let Some((link, from, offer)) = self.pipes.take_offer(CLIENT, SERVER) else { return false };
        let (index, pipe) = self.pipes.add(socket(), limit, 0);
        assert!(pipe.confirm(&mut self.carrier, link, from, offer.limit));
        self.index = Some(index);
        true
    }

    /// Takes one message of the peer's; false if there is none.
    pub fn deliver(&mut self) -> bool {
        let taken = self.take_message();
        if taken {
            self.arm();
        }
        taken
    }

    /// The same without what follows from the message in the kernel.
    pub fn take_message(&mut self) -> bool {
        let Some(record) = self.incoming.borrow_mut().pop_front() else { return false };
        let Record { kind, header, payload } = record;
        let payload = self.carrier.received(payload);
        let message = Message::decode(kind, header).expect("a message");
        let told = self.pipes.input(&mut self.carrier, link(), message, payload);
        if let Some((_, events)) = told {
            self.events = self.events.union(events);
        }
        true
    }

    /// What everyone who polls does: bytes that come between those of the pipe are read before these go back,
    /// and the kernel's half is armed before bytes come back.
    pub fn arm(&mut self) {
        if let Some(index) = self.index
            && let Some(pipe) = self.pipes.get(index).filter(|pipe| pipe.wants_prefetch())
        {
            prefetch(pipe, &self.kernel_in);
            pipe.settle(&mut self.carrier);
        }
        if let Some(index) = self.index
            && let Some(pipe) = self.pipes.get(index).filter(|pipe| pipe.wants_arming())
        {
            pipe.arm(true);
            self.armed = true;
            pipe.settle(&mut self.carrier);
        }
    }

    /// Room on the link again.
    pub fn relieve(&mut self) {
        self.pipes.relieved(&mut self.carrier, link());
    }

    fn send_by_kernel(&mut self, bytes: &[u8]) -> usize {
        let mut kernel = self.kernel_out.borrow_mut();
        assert!(!kernel.shut || bytes.is_empty(), "sent after the end");
        if kernel.deaf && self.peers_half.as_ref().is_some_and(|rest| !rest.half().closed) {
            return bytes.len();
        }
        if kernel.deaf && !bytes.is_empty() {
            self.kernel_in.borrow_mut().reset = true;
            return bytes.len();
        }
        let count = bytes.len().min(self.kernel_room.saturating_sub(kernel.bytes.len()));
        kernel.bytes.extend(&bytes[..count]);
        count
    }

    /// What the internal thread does: the backlog goes, a late end is told. True if anything went.
    pub fn tend(&mut self) -> bool {
        if self.index.is_none() {
            return false;
        }
        self.arm();
        let backlog = self.pipe().backlog().to_vec();
        let gone = self.send_by_kernel(&backlog);
        self.pipe().backlog_gone(gone);
        if self.pipe().is_end_the_kernels() {
            self.armed = !self.pipe().backlog().is_empty();
            let armed = self.armed;
            self.pipe().arm(armed);
        }
        if self.shut && self.pipe().is_end_the_kernels() && self.pipe().backlog().is_empty() {
            self.kernel_out.borrow_mut().shut = true;
        }
        gone > 0
    }

    /// Sends what there is room for; returns how much.
    pub fn send(&mut self, bytes: &[u8]) -> usize {
        self.tend();
        let count = match self.index.map_or(Way::Kernel, |_| self.pipe().way()) {
            Way::Kernel => {
                let count = self.send_by_kernel(bytes);
                if self.index.is_some() {
                    self.pipe().kernel_sent(count as u64);
                }
                count
            }
            Way::Pipe => {
                let data = bytes.chunks(3).map(IoSlice::new).collect::<Vec<_>>();
                let written = self.with(|pipe, carrier| pipe.write(carrier, &data, 0, bytes.len()));
                let count = written.bytes;
                let now = self.now;
                let overflows = count < bytes.len()
                    && self.with(|pipe, carrier| pipe.may_overflow(carrier, now));
                let more = if overflows { self.send_by_kernel(&bytes[count..]) } else { 0 };
                self.pipe().kernel_sent(more as u64);
                if more > 0 {
                    self.pipe().note_overflow(bytes.len() - count);
                }
                self.overflowed += more;
                count + more
            }
            Way::Nowhere | Way::Shut => 0,
        };
        let count = if count == 0 { self.keep_promise(bytes) } else { count };
        self.sent.extend_from_slice(&bytes[..count]);
        count
    }

    /// The program was told that it may send, and there is no room any more.
    fn keep_promise(&mut self, bytes: &[u8]) -> usize {
        if self.index.is_none() || bytes.is_empty() {
            return 0;
        }
        if self.pipe().may_wait_behind() {
            self.pipe().wait_behind(bytes);
            self.pipe().arm(true);
            self.armed = true;
            self.tend();
            return bytes.len();
        }
        let data = [IoSlice::new(bytes)];
        self.with(|pipe, carrier| pipe.write_promised(carrier, &data, 0, bytes.len())).bytes
    }

    /// Asks as poll(2) does whether the program may send.
    pub fn is_writable(&mut self) -> bool {
        self.tend();
        let told = match self.pipe().way() {
            Way::Pipe => self.with(|pipe, carrier| {
                pipe.look_at_link(carrier);
                pipe.is_writable()
            }),
            Way::Kernel => self.kernel_out.borrow().bytes.len() < self.kernel_room,
            Way::Nowhere | Way::Shut => false,
        };
        if told {
            self.pipe().promise_room();
        }
        told
    }

    /// What the shadow's news are for: bytes in the kernel that nobody has told of.
    fn find_bytes(&mut self) {
        let there = self.kernel_in.borrow().bytes.len();
        if there > 0 && self.index.is_some() && self.pipe().may_find_bytes() {
            while self.deliver() {}
            self.pipe().find_bytes(there as u64);
        }
    }

    /// Has all that comes next in the queue.
    pub fn prefetch(&mut self) {
        let pipe = self.pipes.get(self.index.expect("a pipe")).expect("a pipe");
        prefetch(pipe, &self.kernel_in);
    }

    /// Reads up to so many bytes; returns how many.
    pub fn receive(&mut self, room: usize) -> usize {
        self.hear_peers_half();
        if self.finds && self.index.is_some() && self.pipe().turn() == Turn::Pipe {
            self.find_bytes();
        }
        let mut room = room;
        if self.index.is_some() && self.pipe().may_have_switched() {
            let there = self.kernel_in.borrow().bytes.len();
            while self.deliver() {}
            if self.pipe().may_have_switched() && there > 0 {
                room = room.min(there);
            }
        }
        let turn = match self.index {
            Some(_) => self.with(|pipe, carrier| {
                pipe.use_it(carrier);
                pipe.turn()
            }),
            None => Turn::Kernel { most: u64::MAX },
        };
        match turn {
            Turn::Kernel { .. } if self.index.is_some() && self.pipe().take_reset() => {
                self.failed = true;
                0
            }
            Turn::Kernel { most } => {
                let most = usize::try_from(most).unwrap_or(usize::MAX).min(room);
                let mut kernel = self.kernel_in.borrow_mut();
                let count = kernel.bytes.len().min(most);
                let ended = kernel.shut && kernel.bytes.is_empty() && room > 0;
                let reset = kernel.reset && kernel.bytes.is_empty();
                self.got.extend(kernel.bytes.drain(..count));
                drop(kernel);
                if ended && !reset && self.index.is_some() && self.pipe().lacks_bytes() {
                    self.pipe().note_loss();
                } else {
                    self.failed |= reset;
                    self.at_end |= ended && !reset && !self.failed;
                }
                if self.index.is_some() {
                    self.pipe().kernel_read(count as u64);
                }
                count
            }
            Turn::Pipe => {
                let mut bytes = vec![0; room];
                let (one, two) = bytes.split_at_mut(room / 3);
                let mut out = [IoSliceMut::new(one), IoSliceMut::new(two)];
                let count = self.with(|pipe, carrier| {
                    let count = pipe.copy_out(carrier, 0, &mut out, 0);
                    pipe.consume(carrier, count);
                    count
                });
                self.got.extend_from_slice(&bytes[..count]);
                count
            }
            Turn::End => {
                let failed = self.pipe().take_reset();
                self.failed |= failed;
                self.at_end |= !failed && !self.failed;
                0
            }
        }
    }

    /// For messages of tests that fail.
    pub fn describe(&mut self) -> String {
        let (waiting, room) = (self.kernel_out.borrow().bytes.len(), self.kernel_room);
        let place = match self.index {
            Some(_) => {
                let pipe = self.pipe();
                format!("{:?} {:?} unread {}", pipe.way(), pipe.turn(), pipe.unread_by_peer())
            }
            None => "no pipe".into(),
        };
        format!("{place}, {waiting} of {room} bytes in the kernel")
    }

    pub fn shut(&mut self) {
        self.shut = true;
        if self.index.is_some() {
            self.with(|pipe, carrier| pipe.shut(carrier));
            self.tend();
        } else {
            self.kernel_out.borrow_mut().shut = true;
        }
    }

    pub fn stop(&mut self) {
        self.with(|pipe, carrier| pipe.leave(carrier, 0));
        self.arm();
    }

    /// The process is killed: the kernel closes its half.
    pub fn kill(&mut self) {
        let unread = !self.kernel_in.borrow().bytes.is_empty();
        let mut kernel = self.kernel_out.borrow_mut();
        kernel.shut = true;
        kernel.reset |= self.armed || unread;
        drop(kernel);
        self.fall_silent();
    }

    fn fall_silent(&mut self) {
        let mut kernel = self.kernel_in.borrow_mut();
        kernel.deaf = true;
        kernel.bytes.clear();
        drop(kernel);
        self.index = None;
    }

    /// The process ends, and leaves its half to its peer if that needs it. True if it did.
    pub fn exit_leaving(&mut self, peer: &mut Host) -> bool {
        while self.deliver() {}
        self.tend();
        let unread = !self.kernel_in.borrow().bytes.is_empty();
        if unread || self.with(|pipe, carrier| pipe.leave_half(carrier)).is_none() {
            self.exit();
            return false;
        }
        self.knew_both_ends = self.pipe().are_both_told();
        self.with(|pipe, carrier| pipe.close(carrier));
        let rest = Rest::default();
        rest.half().room = Some(usize::MAX);
        peer.pipe().take_half(rest.held());
        peer.peers_half = Some(rest);
        self.fall_silent();
        true
    }

    /// Takes the bytes that went into the peer's half, and its end.
    fn hear_peers_half(&mut self) {
        let Some(rest) = &self.peers_half else { return };
        let mut half = rest.half();
        let mut kernel = self.kernel_in.borrow_mut();
        kernel.bytes.extend(half.taken.drain(..));
        kernel.shut |= half.closed;
        kernel.reset |= half.reset || half.closed && half.armed;
    }

    /// The connection is handed on, if that can be done now.
    pub fn hand_on(&mut self) {
        while self.deliver() {}
        self.arm();
        if self.index.is_none() || !self.pipe().is_over() || !self.pipe().backlog().is_empty() {
            return;
        }
        let read = self.pipe().unread() == 0 && !self.pipe().is_reset();
        if read || self.with(|pipe, carrier| pipe.pour(carrier)) {
            self.pipes.wind_up(&mut self.carrier);
            self.index = None;
        }
    }

    /// The process ends, and has no time for what is still to come back.
    pub fn exit(&mut self) {
        while self.deliver() {}
        self.tend();
        self.knew_both_ends = self.pipe().are_both_told();
        let torn = {
            let pipe = self.pipe();
            let unread = pipe.unread() > 0 && !pipe.are_both_told();
            unread || pipe.is_dead() || pipe.has_bytes_on_their_way()
        };
        self.kernel_out.borrow_mut().reset |= torn;
        self.with(|pipe, carrier| pipe.close(carrier));
        self.kill();
    }

    /// The link is found to be over, when all that came by it has been taken.
    pub fn lose_link(&mut self) {
        while self.deliver() {}
        self.pipes.cut(&mut self.carrier, link());
    }

    /// Does the program know, or can it see, that the connection is reset?
    pub fn sees_reset(&mut self) -> bool {
        self.failed
            || self.kernel_in.borrow().reset
            || self.index.is_some() && self.pipe().is_reset()
    }

    /// Frames that nobody has released.
    pub fn held(&self) -> usize {
        self.carrier.held
    }
}

fn prefetch(pipe: &mut Pipe, kernel: &Rc<RefCell<Kernel>>) {
    pipe.prefetch(|room| {
        let mut kernel = kernel.borrow_mut();
        let count = kernel.bytes.len().min(room.len());
        for (to, from) in room.iter_mut().zip(kernel.bytes.drain(..count)) {
            *to = from;
        }
        count
    });
}

/// Takes everything that is under way to its end.
pub fn settle(a: &mut Host, b: &mut Host) {
    loop {
        let mut moved = false;
        for host in [&mut *a, &mut *b] {
            while host.deliver() {
                moved = true;
            }
            host.relieve();
            moved |= host.tend();
            while host.receive(1000) > 0 {
                moved = true;
            }
        }
        if !moved {
            return;
        }
    }
}
