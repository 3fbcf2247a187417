//! poll(2) over offloaded and other descriptors.

use super::count::Counting;
use super::{OsTurn, Seen, UNASKED, WRITABLE_DATAGRAM, look};
use crate::shard::{SleeperId, SocketId};
use crate::socket::Stack;
use crate::socket::block::{Guard, Look, Over, Round, Source, block};
use crate::socket::wait::{Patience, Wait};
use crate::sys::thread;
use crate::sys::wait::{PollFd, PollSet, ppoll};

/// An offloaded socket among the descriptors: its position and its name.
#[derive(Clone, Copy)]
pub struct Member {
    at: usize,
    id: SocketId,
    /// The kernel has nothing to say of it.
    alone: bool,
}

impl Member {
    pub fn new(at: usize, id: SocketId) -> Member {
        Member { at, id, alone: false }
    }

    pub fn id(&self) -> SocketId {
        self.id
    }
}

/// What is told of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// What was asked for, errors and ends: poll(2).
    Unasked,
    /// Only what was asked for: select(2), in whose sets errors and ends mean something else.
    Asked,
}

/// What poll and select have in common.
pub struct Question<'a> {
    pub fds: &'a mut [PollFd],
    /// Ours among them, in their order.
    pub members: &'a mut [Member],
    pub told: Told,
}

/// Fills in `revents` as poll(2) does; returns how many are non-zero, or the errno. `timeout` in
/// nanoseconds, None for ever; `mask` as for ppoll(2).
pub fn poll(
    stack: &Stack,
    turn: &OsTurn,
    mut question: Question<'_>,
    timeout: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Result<usize, i32> {
    let (mut patience, mask) = super::patience(stack, mask);
    if turn.pace.is_kernels() {
        patience = patience.without_polling();
    }
    let (handled, own_number) = thread::interruptions_and_id(false);
    let mut polling = Polling {
        turn,
        counting: Counting::begin(turn.calls(question.told), own_number),
        handled,
        question: &mut question,
        timeout,
        patience,
        masked: mask.is_some(),
        asked: false,
        slept: false,
        told_asleep: false,
        ours: 0,
        since: None,
    };
    let result = match block(stack, &mut polling, mask) {
        Ok(found) => found,
        // The kernel looks once more, too; and it may not have been asked yet.
        Err(over) => polling.look_at_kernels(stack).and_then(|count| match over {
            Over::Interrupted if count == 0 => Err(libc::EINTR),
            _ => Ok(count),
        }),
    };
    let (ours, since) = (polling.ours, polling.since);
    polling.counting.end(&result);
    turn.pace.note(ours, result.unwrap_or(0).saturating_sub(ours), since);
    result
}

/// A call of poll or select under way.
struct Polling<'q, 'd> {
    turn: &'q OsTurn,
    question: &'q mut Question<'d>,
    /// Nanoseconds; None for ever.
    timeout: Option<u64>,
    patience: Patience,
    /// Signal handlers that had run when the call began.
    handled: u32,
    /// The call has a signal mask of its own.
    masked: bool,
    /// The kernel has been asked since the call began, or by the sleep that has just ended.
    asked: bool,
    /// The call sleeps, or has just slept.
    slept: bool,
    /// The sleep that has just ended was told of descriptors of the kernel's: they stand in the question.
    told_asleep: bool,
    /// Sockets of ours that were ready at the last look.
    ours: usize,
    /// The call waits since then, on the shard's clock; None while it has only looked.
    since: Option<u64>,
    counting: Counting<'q>,
}

impl<'a> Source<'a> for Polling<'_, '_> {
    type Found = Result<usize, i32>;

    #[inline]
    fn look(&mut self, stack: &'a Stack, round: Round) -> Look<'a, Result<usize, i32>> {
        let first = round == Round::First;
        if round == Round::Woken {
            // A receive callback may have kept the call from its sleep.
            self.asked = self.slept && !stack.extra.callbacks.are_any();
        }
        let told_asleep = core::mem::take(&mut self.told_asleep);
        if !told_asleep {
            self.question.clear();
        }
        let ours = self.look_at_ours(stack, first);
        self.ours = ours;
        if told_asleep {
            return Look::Found(Ok(self.question.ready()));
        }
        // Never asked yet and nothing of ours: it may be the kernel's descriptor that is ready. With a zero timeout
        // this is the only look there will be; a sleep that begins now asks as well.
        let turn = self.turn.turn.is_now(stack.config.select_poll_os_ratio, first);
        let sleeps = || first && self.timeout != Some(0) && self.patience.sleeps_soon();
        if turn || ours == 0 && !self.asked && !sleeps() {
            self.asked = true;
            match self.question.ask_kernel(stack) {
                Ok(true) => return Look::Found(Ok(self.question.ready())),
                Ok(false) => {}
                Err(errno) => return Look::Found(Err(errno)),
            }
        }
        if ours > 0 || self.timeout == Some(0) && !self.masked {
            return Look::Found(Ok(ours));
        }
        self.counting.missed();
        Look::Nothing(None)
    }

    fn wait(&mut self, _: &Stack, _: Option<&mut Guard<'_>>) -> Wait {
        let wait = Wait::new(self.patience, self.timeout, false).since(self.handled);
        self.since = Some(wait.began());
        wait
    }

    fn enlist(&mut self, state: &mut Guard<'_>, sleeper: SleeperId, fds: &mut PollSet) -> bool {
        let mut missed = false;
        for member in self.question.members.iter() {
            state.sleep_on(member.id, sleeper);
            let events = self.question.fds.get(member.at).map_or(0, |entry| entry.events);
            let seen = look(state, member.id);
            // One that became the kernel's, or ceased to be, since it was looked at is among the
            // wrong descriptors now, and nothing of it would end the sleep.
            missed |= match seen {
                None => member.alone,
                Some(seen) => {
                    let told = told(&seen, events, self.question.unasked());
                    seen.shared == member.alone || told != 0
                }
            };
        }
        *fds = self.question.kernels();
        // The answers of the sleep come here.
        self.question.clear();
        self.slept = !missed;
        if !missed {
            self.counting.sleeps();
        }
        !missed
    }

    fn leave(&mut self, state: &mut Guard<'_>, sleeper: SleeperId, fds: &[PollFd]) {
        self.counting.wakes();
        self.told_asleep = self.question.hear(Some(state), fds);
        for member in self.question.members.iter() {
            state.leave(member.id, sleeper);
        }
    }
}

impl Polling<'_, '_> {
    /// Asks the kernel alone; returns how many descriptors are ready.
    #[cold]
    fn look_at_kernels(&mut self, stack: &Stack) -> Result<usize, i32> {
        self.question.clear();
        self.question.ask_kernel(stack)?;
        Ok(self.question.ready())
    }

    /// Polls the rings and marks our ready sockets; returns how many.
    #[inline]
    fn look_at_ours(&mut self, stack: &Stack, first: bool) -> usize {
        let question = &mut *self.question;
        let unasked = question.unasked();
        // In a signal handler that got past the wrapper: the kernel's word alone.
        let Ok(mut state) = stack.shard.lock() else { return 0 };
        if first {
            state.poll();
        } else {
            state.poll_patiently();
        }
        let mut ready = 0;
        let mut any_served = false;
        for member in question.members.iter_mut() {
            let seen = look(&mut state, member.id);
            member.alone = seen.is_some_and(|seen| !seen.shared);
            let Some(entry) = question.fds.get_mut(member.at) else { continue };
            if let Some(seen) = seen {
                any_served |= seen.served;
                let events = told(&seen, entry.events, unasked);
                entry.revents |= events;
                ready += usize::from(events != 0);
                seen.tell(&mut state, member.id, events as u32);
            }
        }
        if first && !(any_served && state.may_polling_pay()) {
            self.patience = self.patience.without_polling();
        }
        self.counting.found_ours(&state, ready);
        ready
    }
}

impl Question<'_> {
    fn clear(&mut self) {
        self.fds.iter_mut().for_each(|entry| entry.revents = 0);
    }

    fn ready(&self) -> usize {
        self.fds.iter().filter(|entry| entry.revents != 0).count()
    }

    fn unasked(&self) -> u32 {
        if self.told == Told::Unasked { UNASKED } else { 0 }
    }

    /// Asks the kernel about all that it has a say in; adds to `revents`. Returns whether it said
    /// anything.
    fn ask_kernel(&mut self, stack: &Stack) -> Result<bool, i32> {
        let mut answers = self.kernels();
        let answers = answers.as_mut_slice();
        if answers.is_empty() || ppoll(answers, Some(0), None)? == 0 {
            return Ok(false);
        }
        Ok(self.hear(stack.shard.lock().ok().as_mut(), answers))
    }

    /// Adds the kernel's answers about all that it has a say in, in the order of [`Question::kernels`], to `revents`.
    /// Returns whether it said anything.
    fn hear(&mut self, mut state: Option<&mut Guard<'_>>, answers: &[PollFd]) -> bool {
        let mut members = self.members.iter().peekable();
        let mut answers = answers.iter();
        let mut any = false;
        for (at, entry) in self.fds.iter_mut().enumerate() {
            let member = members.next_if(|member| member.at == at);
            if member.is_some_and(|member| member.alone) {
                continue;
            }
            let Some(answer) = answers.next() else { break };
            // The kernel tells of errors and ends always.
            let told = match self.told {
                Told::Unasked => answer.revents,
                Told::Asked => answer.revents & (entry.events | libc::POLLNVAL),
            };
            any |= told != 0;
            entry.revents |= told;
            if answer.revents & !(WRITABLE_DATAGRAM as i16) != 0
                && let (Some(state), Some(member)) = (state.as_deref_mut(), member)
                && let Some((_, socket)) = state.socket(member.id)
            {
                // The program will call recv() or accept() on the kernel's word: the shadow must be
                // asked then.
                socket.order.note_readable();
                if answer.revents & libc::POLLERR != 0 {
                    socket.order.note_error();
                }
            }
        }
        any
    }

    /// The descriptors that the kernel has a say in, in their order.
    fn kernels(&self) -> PollSet {
        let mut kernels = PollSet::default();
        let mut alone =
            self.members.iter().filter(|member| member.alone).map(|member| member.at).peekable();
        for (at, entry) in self.fds.iter().enumerate() {
            if alone.next_if_eq(&at).is_none() {
                kernels.add(PollFd { revents: 0, ..*entry });
            }
        }
        kernels
    }
}

/// What is told of a socket of ours that was asked for these events.
fn told(seen: &Seen, asked: i16, unasked: u32) -> i16 {
    // Poll's bits are 16; the sign is none of them.
    (seen.events & (u32::from(asked as u16) | unasked)) as i16
}

#[cfg(test)]
mod tests;
