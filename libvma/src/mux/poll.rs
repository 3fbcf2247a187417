//! poll(2) over offloaded and other descriptors.

use super::count::Counting;
use super::{OsTurn, Seen, UNASKED, WRITABLE_DATAGRAM, is_crowded, look};
use crate::shard::SocketId;
use crate::socket::Stack;
use crate::socket::wait::{Next, Shift, Wait};
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
    let (patience, mask) = super::patience(stack, mask);
    let mut wait = Wait::new(patience, timeout, false);
    let mut counting = Counting::begin(turn.calls(question.told), wait.thread());
    let result = answer(stack, turn, &mut question, timeout, mask, (&mut wait, &mut counting));
    counting.end(&result);
    result
}

fn answer(
    stack: &Stack,
    turn: &OsTurn,
    question: &mut Question<'_>,
    timeout: Option<u64>,
    mask: Option<&libc::sigset_t>,
    (wait, counting): (&mut Wait, &mut Counting<'_>),
) -> Result<usize, i32> {
    let mut shift = Shift::new(stack);
    let mut asked = false;
    let mut first = true;
    loop {
        let ours = question.look_at_ours(stack, core::mem::take(&mut first), wait, counting);
        // Never asked yet and nothing of ours: it may be the kernel's descriptor that is ready,
        // and with a zero timeout this is the only look there will be.
        if turn.turn.is_now(stack.config.select_poll_os_ratio) || ours == 0 && !asked {
            asked = true;
            if question.ask_kernel(stack)? {
                return Ok(question.ready());
            }
        }
        if ours > 0 {
            return Ok(ours);
        }
        if timeout == Some(0) {
            // The mask may let a pending signal through.
            let interrupted = mask.is_some()
                && question.sleep(&mut shift, wait, mask, counting) == Next::Interrupted;
            return if interrupted { Err(libc::EINTR) } else { Ok(0) };
        }
        counting.missed();
        match wait.after_miss(&stack.load, || is_crowded(stack)) {
            Next::PollAgain => {}
            Next::TimedOut => return Ok(0),
            Next::Interrupted => return Err(libc::EINTR),
            Next::Sleep => match question.sleep(&mut shift, wait, mask, counting) {
                Next::TimedOut => {
                    question.clear();
                    return Ok(0);
                }
                Next::Interrupted => return Err(libc::EINTR),
                // Whoever was ready shows in the next round.
                Next::PollAgain | Next::Sleep => asked = false,
            },
        }
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

    /// Polls the rings and marks our ready sockets; returns how many.
    fn look_at_ours(
        &mut self,
        stack: &Stack,
        first: bool,
        wait: &mut Wait,
        counting: &mut Counting<'_>,
    ) -> usize {
        self.clear();
        let unasked = self.unasked();
        // In a signal handler that got past the wrapper: the kernel's word alone.
        let Ok(mut state) = stack.shard.lock() else { return 0 };
        if first {
            state.poll();
            if !state.may_polling_pay() {
                wait.without_polling();
            }
        } else {
            state.poll_patiently();
        }
        let mut ready = 0;
        for member in self.members.iter_mut() {
            let seen = look(&mut state, member.id);
            member.alone = seen.is_some_and(|seen| !seen.shared);
            let Some(entry) = self.fds.get_mut(member.at) else { continue };
            if let Some(seen) = seen {
                entry.revents = told(&seen, entry.events, unasked);
                ready += usize::from(entry.revents != 0);
            }
        }
        counting.found_ours(&state, ready);
        ready
    }

    /// Asks the kernel about all that it has a say in; adds to `revents`. Returns whether it said
    /// anything.
    fn ask_kernel(&mut self, stack: &Stack) -> Result<bool, i32> {
        let mut answers = self.kernels();
        let answers = answers.as_mut_slice();
        if answers.is_empty() || ppoll(answers, Some(0), None)? == 0 {
            return Ok(false);
        }
        let mut state = stack.shard.lock().ok();
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
                && let (Some(state), Some(member)) = (state.as_mut(), member)
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
        Ok(any)
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

    fn sleep(
        &self,
        shift: &mut Shift<'_>,
        wait: &mut Wait,
        mask: Option<&libc::sigset_t>,
        counting: &mut Counting<'_>,
    ) -> Next {
        let stack = shift.begin();
        let Ok(mut state) = stack.shard.lock() else { return Next::PollAgain };
        let Some((sleeper, waker)) = state.new_sleeper() else {
            drop(state);
            crate::sys::thread::nap_millis(1);
            return Next::PollAgain;
        };
        let mut missed = false;
        for member in self.members.iter() {
            state.sleep_on(member.id, sleeper);
            let events = self.fds.get(member.at).map_or(0, |entry| entry.events);
            let seen = look(&mut state, member.id);
            // One that became the kernel's, or ceased to be, since it was looked at is among the
            // wrong descriptors now, and nothing of it would end the sleep.
            missed |= match seen {
                None => member.alone,
                Some(seen) => {
                    seen.shared == member.alone || told(&seen, events, self.unasked()) != 0
                }
            };
        }
        let mut all = self.kernels();
        all.add_waker(waker);
        let bound = state.guard_rings(sleeper, |fd| all.add_readable(fd));
        drop(state);
        let next = match missed {
            true => Next::PollAgain,
            false => {
                counting.sleeps();
                let next = wait.sleep(&mut all, mask, bound);
                counting.wakes();
                next
            }
        };
        if let Ok(mut state) = stack.shard.lock() {
            for member in self.members.iter() {
                state.leave(member.id, sleeper);
            }
            state.end_sleeper(sleeper);
            state.run_tcp();
        }
        next
    }
}

/// What is told of a socket of ours that was asked for these events.
fn told(seen: &Seen, asked: i16, unasked: u32) -> i16 {
    // Poll's bits are 16; the sign is none of them.
    (seen.events & (u32::from(asked as u16) | unasked)) as i16
}
