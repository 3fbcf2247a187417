//! Is memory of the program there? The kernel knows, at the price of a system call for each page (some 100 ns): for the calls that
//! are no send, receive or wait. No signal comes of it, so the answer is right in a thread that blocks SIGSEGV, and without a handler.

use super::PAGE;
use crate::sys::wait::raw_syscall;

/// So far above the stack pointer it is the caller's frames, or what lies above the first one. Wrong are bad pointers to there
/// only, and these are found by the touch unless the handler is not there or the thread blocks SIGSEGV (`preload/fault.rs`).
const NEAR: usize = 64 * 1024;

/// Does it lie in the frames of the thread's callers?
#[inline]
fn is_on_stack(at: usize, len: usize) -> bool {
    let own = 0u8;
    let above = at.wrapping_sub((&raw const own).addr());
    above < NEAR && len < NEAR - above
}

/// Can the program's bytes be read?
pub fn is_readable<T>(at: *const T, len: usize) -> bool {
    if is_on_stack(at.addr(), len) {
        return super::is_readable(at, len);
    }
    are_pages(at.addr(), len, |address| {
        /// No way to change a mask: the kernel reads the set before it refuses that.
        const NO_WAY: usize = usize::MAX;
        let set = address & !(size_of::<u64>() - 1);
        // SAFETY: the kernel reads eight bytes and changes nothing.
        unsafe { raw_syscall(libc::SYS_rt_sigprocmask, [NO_WAY, set, 0, size_of::<u64>(), 0, 0]) }
    })
}

/// Can the bytes be written? The kernel writes a word of each page as it is, in one atomic operation.
pub fn is_writable<T>(at: *mut T, len: usize) -> bool {
    if is_on_stack(at.addr(), len) {
        return super::is_writable(at, len);
    }
    are_pages(at.addr(), len, |address| {
        const OR_NOTHING: usize = (libc::FUTEX_OP_OR as usize) << 28;
        /// -2048: a word of that value could wake a thread that waits for it, in vain.
        const UNLIKELY: usize = 0x800;
        let operation = (libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG) as usize;
        let nobody_waits = 0u32;
        let word = address & !(size_of::<u32>() - 1);
        let own = core::ptr::from_ref(&nobody_waits).expose_provenance();
        // SAFETY: the kernel combines the word with 0, and wakes no thread of the own word.
        unsafe { raw_syscall(libc::SYS_futex, [own, operation, 0, 0, word, OR_NOTHING | UNLIKELY]) }
    })
}

/// Does the system call find the first byte of each page?
fn are_pages(at: usize, len: usize, call: impl Fn(usize) -> isize) -> bool {
    let Some(behind) = len.checked_sub(1) else { return true };
    let Some(last) = at.checked_add(behind).filter(|_| at >= PAGE) else {
        // A null set would be none.
        return false;
    };
    let mut address = at;
    loop {
        if call(address) == -(libc::EFAULT as isize) {
            return false;
        }
        match (address / PAGE + 1).checked_mul(PAGE) {
            Some(next) if next <= last => address = next,
            _ => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::three_pages;
    use super::*;

    /// In a thread that blocks the signals.
    #[test]
    fn the_kernel_tells_what_may_be_read_and_what_may_be_written() {
        // SAFETY: all-zero bytes are a valid set.
        let mut set: libc::sigset_t = unsafe { core::mem::zeroed() };
        // SAFETY: a valid set.
        unsafe { libc::sigfillset(&mut set) };
        // SAFETY: as above; the mask is this thread's.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, core::ptr::null_mut()) };
        let pages = three_pages();
        let at = |offset: usize| pages.wrapping_add(offset);
        let readable =
            [(0, 1), (0, 2 * PAGE), (PAGE - 1, 2), (2 * PAGE - 1, 1), (2 * PAGE, 0), (3, 9)];
        for (offset, len) in readable {
            assert!(is_readable(at(offset), len), "{offset} {len}");
        }
        for (offset, len) in [(0, 2 * PAGE + 1), (2 * PAGE - 1, 2), (2 * PAGE, 1)] {
            assert!(!is_readable(at(offset), len), "{offset} {len}");
        }
        for (offset, len) in [(0, PAGE), (PAGE - 1, 1), (PAGE, 0), (3, 9)] {
            assert!(is_writable(at(offset), len), "{offset} {len}");
        }
        for (offset, len) in [(0, PAGE + 1), (PAGE, 1), (PAGE - 1, 2), (2 * PAGE, 1)] {
            assert!(!is_writable(at(offset), len), "{offset} {len}");
        }
        assert!(!is_readable(core::ptr::null::<u8>(), 1));
        assert!(!is_writable(core::ptr::null_mut::<u8>(), 1));
        assert!(!is_readable(core::ptr::without_provenance::<u8>(1 << 63), 8));
        assert!(!is_readable(core::ptr::without_provenance::<u8>(usize::MAX), 2));
    }

    #[test]
    fn only_the_frames_of_callers_are_on_the_stack() {
        let mut own = [0u8; 64];
        let at = own.as_mut_ptr().addr();
        assert!(is_on_stack(at, own.len()) && is_on_stack(at, 0));
        assert!(!is_on_stack(at, NEAR) && !is_on_stack(at + NEAR, 1) && !is_on_stack(at - NEAR, 1));
        assert!(!is_on_stack(at, usize::MAX) && !is_on_stack(0, 8));
        let heap = Box::new([0u8; 64]);
        assert!(!is_on_stack(heap.as_ptr().addr(), heap.len()));
    }

    #[test]
    fn asking_changes_nothing() {
        let mut bytes = [0xa5u8; 2 * PAGE];
        let (start, len) = (bytes.as_mut_ptr(), bytes.len());
        assert!(is_writable(start, len) && is_readable(start, len));
        assert_eq!(bytes, [0xa5; 2 * PAGE]);
    }
}
