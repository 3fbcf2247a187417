//! What comes in: callers, what they say, what is said to us.

use core::mem::MaybeUninit;

use rustix::event::epoll;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::time::Timespec;

use super::wire::{LENGTH, Message, ProcessId, Status};
use super::{
    Bells, Host, Key, Known, LINK, MOST_GUESTS, MOST_TURNED_AWAY, NEGATIVE_NANOS, PATIENCE_NANOS,
    Rendezvous, Watched, Whose,
};
use crate::sys::{Fd, unix_socket};

/// Callers taken, and messages of one peer read, before others get their turn.
const AT_ONCE: usize = 16;
/// Turns that [`Rendezvous::serve_all`] takes at most: a peer may go on for ever.
const MOST_TURNS: usize = 256;
/// How long an answer holds that contradicts what we know.
const DOUBT_NANOS: u64 = 10_000_000;

impl<M, L: Copy + Eq> Rendezvous<M, L> {
    /// Attends to callers and peers until none of them has more to say.
    pub fn serve_all<H: Host<Memory = M, Link = L>>(&mut self, host: &mut H, now: u64) {
        let mut turns = 0..MOST_TURNS;
        while turns.next().is_some() && self.serve(host, now) {}
    }

    /// Attends to callers and peers that have something to say; one that has more gets another turn. False: none has.
    pub fn serve<H: Host<Memory = M, Link = L>>(&mut self, host: &mut H, now: u64) -> bool {
        let mut events = [const { MaybeUninit::uninit() }; 64];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.watcher, &mut events, Some(&at_once)) else {
            return false;
        };
        for event in &*events {
            let data = event.data;
            self.attend(host, data.u64(), now);
        }
        !events.is_empty()
    }

    fn attend<H: Host<Memory = M, Link = L>>(&mut self, host: &mut H, token: u64, now: u64) {
        match self.watched.get(&token) {
            Some(Watched::Post { .. }) => self.welcome(host, token, now),
            Some(Watched::Guest { .. }) => self.hear_guest(host, token),
            Some(Watched::Call { .. }) => self.hear_answer(host, token, now),
            Some(Watched::Link { .. }) => self.hear_peer(host, token),
            // Removed by an event before this one.
            None => {}
        }
    }

    fn welcome<H: Host<Memory = M, Link = L>>(&mut self, host: &mut H, token: u64, now: u64) {
        let is_itself = self.is_itself(host);
        for _ in 0..AT_ONCE {
            let Some(Watched::Post { listener }) = self.watched.get(&token) else { return };
            let connection = match unix_socket::accept(listener) {
                Ok(Some(connection)) => connection,
                Ok(None) => return,
                // The program has used up its descriptors.
                Err(_) => return self.stop_hearing(token, now),
            };
            if self.turned_away >= MOST_TURNED_AWAY {
                return self.stop_hearing(token, now);
            }
            if !is_itself {
                self.turned_away += 1;
                continue;
            }
            if unix_socket::peer_user(&connection) != Some(self.user) {
                self.note_stranger("another user's");
                self.turned_away += 1;
                continue;
            }
            let is_guest = |watched: &&Watched<M, L>| matches!(watched, Watched::Guest { .. });
            if self.watched.values().filter(is_guest).count() >= MOST_GUESTS
                || self.afford(LINK).is_err()
            {
                self.turned_away += 1;
                continue;
            }
            let until = now.saturating_add(PATIENCE_NANOS);
            if let Ok(guest) = self.watch(Watched::Guest { connection, until }) {
                // What it has to say usually came along.
                self.hear_guest(host, guest);
            }
        }
    }

    fn hear_guest<H: Host<Memory = M, Link = L>>(&mut self, host: &mut H, token: u64) {
        let Some(Watched::Guest { connection, .. }) = self.watched.get(&token) else { return };
        let heard = hear(connection);
        if matches!(heard, Heard::Nothing) {
            return;
        }
        let Some(Watched::Guest { connection, .. }) = self.remove(token) else { return };
        let Heard::Message(Message::Hello { process, key }, [Some(memory), Some(bell)]) = heard
        else {
            if !matches!(heard, Heard::End) {
                self.note_stranger("a strange");
            }
            return;
        };
        let taken = match self.judge(process, key) {
            Ok(()) => host.take(memory, bell),
            Err(status) => {
                if status == Status::Known
                    && let Some(link) = self.link_with(process)
                {
                    host.answered(link);
                }
                return self.reply(&connection, key, status, None);
            }
        };
        let Some((link, bell)) = taken else {
            return self.reply(&connection, key, Status::Refused, None);
        };
        host.answered(link);
        self.reply(&connection, key, Status::Linked, Some(&bell));
        // If the answer did not get through, the connection is at its end, which ends the link.
        if self
            .watch(Watched::Link { connection, peer: process, link, bells: Bells::default() })
            .is_err()
        {
            host.end(link);
        }
        self.forget_negatives();
        host.somebody_found();
    }

    /// Shall a caller have a link?
    fn judge(&self, process: ProcessId, key: Key) -> Result<(), Status> {
        if !self.is_posted(key) || process == self.process() {
            Err(Status::NotServed)
        } else if self.link_with(process).is_some() {
            Err(Status::Known)
        } else {
            Ok(())
        }
    }

    fn reply(&self, connection: &Fd, key: Key, status: Status, bell: Option<&Fd>) {
        let answer = Message::Answer { process: self.process(), key, status }.emit();
        let bell = bell.map(AsFd::as_fd);
        let _ = unix_socket::send(connection, &answer, bell.as_slice());
    }

    fn hear_answer<H: Host<Memory = M, Link = L>>(&mut self, host: &mut H, token: u64, now: u64) {
        let Some(Watched::Call { connection, .. }) = self.watched.get(&token) else { return };
        let heard = hear(connection);
        if matches!(heard, Heard::Nothing) {
            return;
        }
        let Some(Watched::Call { connection, key, memory, .. }) = self.remove(token) else {
            return;
        };
        let nobody = Known::Nobody { until: now.saturating_add(NEGATIVE_NANOS) };
        let (process, status, bell) = match heard {
            Heard::Message(Message::Answer { process, key: of, status }, [bell, _])
                if of == key && process != self.process() =>
            {
                (process, status, bell)
            }
            Heard::End => return self.answer(host, key, nobody),
            _ => {
                self.note_stranger("a strange");
                return self.answer(host, key, nobody);
            }
        };
        let known = match (status, bell) {
            (Status::Linked, Some(bell)) => match host.make(memory, bell) {
                Some(link) => {
                    self.forget_negatives();
                    match self.watch(Watched::Link {
                        connection,
                        peer: process,
                        link,
                        bells: Bells::default(),
                    }) {
                        Ok(_) => Known::Link(link),
                        Err(_) => {
                            host.end(link);
                            nobody
                        }
                    }
                }
                None => nobody,
            },
            (Status::Known, _) => match self.link_by_other_call(host, process, now) {
                Some(link) => Known::Link(link),
                None => Known::Nobody { until: now.saturating_add(DOUBT_NANOS) },
            },
            (Status::Linked | Status::NotServed | Status::Refused, _) => nobody,
        };
        self.answer(host, key, known);
    }

    /// A process says that we have a link already: perhaps by its answer to another call, which
    /// was sent before and not read yet.
    fn link_by_other_call<H: Host<Memory = M, Link = L>>(
        &mut self,
        host: &mut H,
        process: ProcessId,
        now: u64,
    ) -> Option<L> {
        if let Some(link) = self.link_with(process) {
            return Some(link);
        }
        let calls = self.watched.iter();
        let calls = calls.filter(|(_, watched)| matches!(watched, Watched::Call { .. }));
        let calls: Vec<u64> = calls.map(|(token, _)| *token).collect();
        for token in calls {
            // At most as deep as there are calls: each takes itself out first.
            self.hear_answer(host, token, now);
        }
        self.link_with(process)
    }

    fn hear_peer<H: Host<Memory = M, Link = L>>(&mut self, host: &mut H, token: u64) {
        for _ in 0..AT_ONCE {
            let Some(Watched::Link { connection, link, .. }) = self.watched.get(&token) else {
                return;
            };
            let link = *link;
            match hear(connection) {
                Heard::Nothing => return,
                Heard::Message(Message::Posted { key }, _) => {
                    if let Some(Known::Nobody { .. }) = self.answers.get(&key) {
                        self.answers.remove(&key);
                    }
                    // It may also be a better one than what is known.
                    self.news += 1;
                }
                Heard::Message(Message::Gone { key }, _) => {
                    if self.answers.get(&key) == Some(&Known::Link(link)) {
                        self.answers.remove(&key);
                        host.void_answers();
                    }
                }
                Heard::Message(Message::Half { connection }, [Some(half), _]) => {
                    host.inherit(link, connection, half);
                }
                // Without its descriptor if this process may have no more of them: it is sent again.
                Heard::Message(Message::Bell { number }, [bell, _]) => {
                    if let (Some(bell), Ok(number)) = (bell, u32::try_from(number))
                        && self.afford_bell(token, number, Whose::Peers)
                    {
                        host.take_bell(link, number, bell);
                    }
                }
                Heard::End | Heard::Noise | Heard::Message(..) => {
                    return self.end_link(host, token);
                }
            }
        }
    }
}

enum Heard {
    Nothing,
    Message(Message, [Option<Fd>; unix_socket::MOST_DESCRIPTORS]),
    /// Something that is no message of ours.
    Noise,
    End,
}

fn hear(connection: &Fd) -> Heard {
    let mut buffer = [0; LENGTH];
    match unix_socket::receive(connection, &mut buffer) {
        Err(Errno::AGAIN) => Heard::Nothing,
        Err(Errno::MSGSIZE) => Heard::Noise,
        Err(_) => Heard::End,
        Ok(received) if received.len == 0 => Heard::End,
        Ok(received) => {
            let message = buffer.get(..received.len).and_then(Message::parse);
            message.map_or(Heard::Noise, |message| Heard::Message(message, received.descriptors))
        }
    }
}
