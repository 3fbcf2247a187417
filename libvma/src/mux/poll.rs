//! poll(2) over offloaded and other descriptors.

use super::OsTurn;
use crate::shard::SocketId;
use crate::socket::Stack;
use crate::socket::wait::{Next, Wait};
use crate::sys::wait::{PollFd, PollSet, ppoll};

/// An offloaded socket among the descriptors: its position and its name.
#[derive(Clone, Copy)]
pub struct Member {
    pub at: usize,
    pub id: SocketId,
}

const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;
const WRITABLE: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND;

/// Fills in `revents` as poll(2) does; returns how many are non-zero, or the errno. `timeout` in
/// nanoseconds, None for ever; `mask` as for ppoll(2).
pub fn poll(
    stack: &Stack,
    turn: &OsTurn,
    fds: &mut [PollFd],
    members: &[Member],
    timeout: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Result<usize, i32> {
    let (patience, mask) = super::patience(stack, mask);
    let mut wait = Wait::new(patience, timeout, false);
    let mut asked = false;
    loop {
        fds.iter_mut().for_each(|entry| entry.revents = 0);
        let ours = look(stack, fds, members)?;
        // Never asked yet and nothing of ours: it may be the kernel's descriptor that is ready,
        // and with a zero timeout this is the only look there will be.
        if turn.is_now(stack.config.select_poll_os_ratio) || ours == 0 && !asked {
            asked = true;
            if ask_kernel(stack, fds, members)? > 0 {
                return Ok(fds.iter().filter(|entry| entry.revents != 0).count());
            }
        }
        if ours > 0 {
            return Ok(ours);
        }
        if timeout == Some(0) {
            // The mask may let a pending signal through.
            let interrupted =
                mask.is_some() && sleep(stack, fds, members, &mut wait, mask) == Next::Interrupted;
            return if interrupted { Err(libc::EINTR) } else { Ok(0) };
        }
        match wait.after_miss() {
            Next::PollAgain => {}
            Next::TimedOut => return Ok(0),
            Next::Interrupted => return Err(libc::EINTR),
            Next::Sleep => match sleep(stack, fds, members, &mut wait, mask) {
                Next::TimedOut => {
                    fds.iter_mut().for_each(|entry| entry.revents = 0);
                    return Ok(0);
                }
                Next::Interrupted => return Err(libc::EINTR),
                // Whoever was ready shows in the next round.
                Next::PollAgain | Next::Sleep => asked = false,
            },
        }
    }
}

/// Polls the rings and marks our ready sockets.
fn look(stack: &Stack, fds: &mut [PollFd], members: &[Member]) -> Result<usize, i32> {
    // In a signal handler that got past the wrapper: the kernel's word alone.
    let Ok(mut state) = stack.shard.lock() else { return Ok(0) };
    state.poll();
    let mut ready = 0;
    for member in members {
        let Some(entry) = fds.get_mut(member.at) else { continue };
        let Some((endpoint, _)) = state.socket(member.id) else { continue };
        if endpoint.is_readable() {
            entry.revents |= entry.events & (READABLE | WRITABLE);
        }
        ready += usize::from(entry.revents != 0);
    }
    Ok(ready)
}

/// Asks the kernel about all of them, the shadows included; adds to `revents`.
fn ask_kernel(stack: &Stack, fds: &mut [PollFd], members: &[Member]) -> Result<usize, i32> {
    // `revents` of ours is kept apart: the kernel overwrites the field.
    let mut kept = [0i16; 64];
    let mut rest: Vec<i16> = Vec::new();
    if members.len() > kept.len() {
        rest = members.iter().map(|m| fds.get(m.at).map_or(0, |entry| entry.revents)).collect();
    } else {
        for (slot, member) in kept.iter_mut().zip(members) {
            *slot = fds.get(member.at).map_or(0, |entry| entry.revents);
        }
    }
    let ready = ppoll(fds, Some(0), None)?;
    let kept = if rest.is_empty() { &kept[..] } else { &rest[..] };
    let mut state = stack.shard.lock().ok();
    for (member, ours) in members.iter().zip(kept) {
        let Some(entry) = fds.get_mut(member.at) else { continue };
        if entry.revents & !WRITABLE != 0
            && let Some(state) = state.as_mut()
            && let Some((_, socket)) = state.socket(member.id)
        {
            // The program will call recv() on the kernel's word: the shadow must be asked then.
            socket.os_ready = true;
            socket.os_error |= entry.revents & libc::POLLERR != 0;
        }
        entry.revents |= ours;
    }
    Ok(ready)
}

fn sleep(
    stack: &Stack,
    fds: &[PollFd],
    members: &[Member],
    wait: &mut Wait,
    mask: Option<&libc::sigset_t>,
) -> Next {
    let Ok(mut state) = stack.shard.lock() else { return Next::PollAgain };
    let Some((sleeper, waker)) = state.new_sleeper() else {
        drop(state);
        crate::sys::thread::nap_millis(1);
        return Next::PollAgain;
    };
    for member in members {
        state.sleep_on(member.id, sleeper);
    }
    let mut all = PollSet::default();
    fds.iter().for_each(|entry| all.add(*entry));
    all.add_readable(waker);
    state.sleep_on_rings(|fd| all.add_readable(fd));
    let missed = members.iter().any(|member| {
        let wanted = fds.get(member.at).is_some_and(|entry| entry.events & READABLE != 0);
        wanted && state.socket(member.id).is_some_and(|(endpoint, _)| endpoint.is_readable())
    });
    drop(state);
    let next = if missed { Next::PollAgain } else { wait.sleep(all.as_mut_slice(), mask) };
    if let Ok(mut state) = stack.shard.lock() {
        for member in members {
            state.leave(member.id, sleeper);
        }
        state.end_sleeper(sleeper);
    }
    next
}
