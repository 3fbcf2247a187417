//! select(2) in terms of poll: its three sets become one list, and back.

use crate::sys::wait::PollFd;

/// The bits of one fd_set, `nfds` of them; the size is the program's (it may be beyond
/// FD_SETSIZE). None for a null pointer.
pub type Set<'a> = Option<&'a mut [usize]>;

const BITS: usize = usize::BITS as usize;

/// What select(2) calls readable, writable, exceptional, in terms of poll(2).
const READ: i16 =
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR;
const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR;
const EXCEPT: i16 = libc::POLLPRI;

/// How many words an fd_set of `nfds` descriptors has.
pub fn words(nfds: usize) -> usize {
    nfds.div_ceil(BITS)
}

/// The descriptors in any of the sets.
pub fn to_list(nfds: usize, sets: &[Set<'_>; 3]) -> Vec<PollFd> {
    let mut list = Vec::new();
    for fd in 0..nfds {
        let mut events = 0;
        for (set, want) in sets.iter().zip([READ, WRITE, EXCEPT]) {
            if contains(set, fd) {
                events |= want;
            }
        }
        if events != 0 {
            list.push(PollFd { fd: fd as i32, events, revents: 0 });
        }
    }
    list
}

/// Writes the result back into the sets; returns how many bits are set, or EBADF.
pub fn from_list(nfds: usize, list: &[PollFd], sets: &mut [Set<'_>; 3]) -> Result<usize, i32> {
    if list.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        return Err(libc::EBADF);
    }
    let asked: Vec<[bool; 3]> = list
        .iter()
        .map(|entry| [0, 1, 2].map(|which| contains(&sets[which], entry.fd as usize)))
        .collect();
    for set in sets.iter_mut().flatten() {
        clear(set, nfds);
    }
    let mut bits = 0;
    for (entry, asked) in list.iter().zip(asked) {
        for ((set, asked), mask) in sets.iter_mut().zip(asked).zip([READ, WRITE, EXCEPT]) {
            if asked && entry.revents & mask != 0 {
                insert(set, entry.fd as usize);
                bits += 1;
            }
        }
    }
    Ok(bits)
}

/// A timeout leaves all sets empty.
pub fn clear_all(nfds: usize, sets: &mut [Set<'_>; 3]) {
    for set in sets.iter_mut().flatten() {
        clear(set, nfds);
    }
}

fn contains(set: &Set<'_>, fd: usize) -> bool {
    set.as_ref()
        .and_then(|words| words.get(fd / BITS))
        .is_some_and(|word| word >> (fd % BITS) & 1 == 1)
}

fn insert(set: &mut Set<'_>, fd: usize) {
    if let Some(word) = set.as_mut().and_then(|words| words.get_mut(fd / BITS)) {
        *word |= 1 << (fd % BITS);
    }
}

fn clear(words: &mut [usize], nfds: usize) {
    // The kernel writes whole words too.
    words.iter_mut().take(nfds.div_ceil(BITS)).for_each(|word| *word = 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_become_a_list_and_back() {
        let (mut read, mut write) = ([0b1010usize, 1], [0b1000usize, 0]);
        let mut sets: [Set<'_>; 3] = [Some(&mut read), Some(&mut write), None];
        let mut list = to_list(65, &sets);
        let fds: Vec<i32> = list.iter().map(|entry| entry.fd).collect();
        assert_eq!(fds, [1, 3, 64]);
        list[1].revents = libc::POLLIN | libc::POLLOUT;
        list[2].revents = libc::POLLHUP;
        assert_eq!(from_list(65, &list, &mut sets), Ok(3));
        assert_eq!((read, write), ([0b1000, 1], [0b1000, 0]));
    }

    #[test]
    fn a_closed_descriptor_is_an_error_and_changes_nothing() {
        let mut read = [0b10usize];
        let mut sets: [Set<'_>; 3] = [Some(&mut read), None, None];
        let mut list = to_list(2, &sets);
        list[0].revents = libc::POLLNVAL;
        assert_eq!(from_list(2, &list, &mut sets), Err(libc::EBADF));
        assert_eq!(read, [0b10]);
    }
}
