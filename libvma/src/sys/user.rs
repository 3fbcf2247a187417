//! Memory that the program names in a call, which may not be there: the kernel answers EFAULT then.
//!
//! A call touches one byte of each page before it reads or writes there. A touch costs one instruction. If it faults,
//! the signal handler of the library (`preload/fault.rs`) finds the instruction in a table, as the kernel does with its
//! own (`Documentation/arch/x86/exception-tables.rst`), and lets the thread go on at the place that says "not there".
//! What is behind the check reads and writes plain slices. It comes before anything is taken from a queue or changed.
//!
//! Rejected: a system call that reads the memory (`process_vm_readv`), 150 ns and more in each call; a copying function
//! with an entry in the table, because bytes are copied in a dozen ways (summed, scattered, in long moves).
//!
//! A touch for writing is no atomic operation. So it may only be made where the call writes anyway. A thread that blocks SIGSEGV
//! is killed by a touch that faults: calls that cost a system call anyway ask the kernel instead ([`asked`]).

pub mod asked;

use core::sync::atomic::{AtomicUsize, Ordering};
use std::io::{IoSlice, IoSliceMut};

const PAGE: usize = 4096;

/// An instruction that may fault, and where its thread goes on then: both relative to the field's own address.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    instruction: i32,
    landing: i32,
}

/// Can the program's bytes be read?
#[inline(always)]
pub fn is_readable<T>(at: *const T, len: usize) -> bool {
    is_there::<false>(at.cast(), len)
}

/// Can the bytes be written, which the call is about to do?
#[inline(always)]
pub fn is_writable<T>(at: *mut T, len: usize) -> bool {
    is_there::<true>(at.cast_const().cast(), len)
}

/// As [`is_writable`], of a part of the program's buffer.
#[inline(always)]
pub fn takes(target: &mut [u8]) -> bool {
    is_there::<true>(target.as_ptr(), target.len())
}

/// As [`takes`], of the next `count` bytes of a list of buffers, of which `filled` bytes are in use.
pub fn all_take(buffers: &mut [IoSliceMut<'_>], filled: usize, count: usize) -> bool {
    let (mut skip, mut left) = (filled, count);
    for buffer in buffers {
        let here = skip.min(buffer.len());
        skip -= here;
        let rest = buffer.get_mut(here..).unwrap_or_default();
        let len = left.min(rest.len());
        if !takes(rest.get_mut(..len).unwrap_or_default()) {
            return false;
        }
        left -= len;
        if left == 0 {
            return true;
        }
    }
    true
}

/// Can the next `count` bytes of a list of buffers be read, behind the first `skip`?
#[inline]
pub fn all_give(buffers: &[IoSlice<'_>], skip: usize, count: usize) -> bool {
    // Nearly always one buffer.
    if let [buffer] = buffers {
        let rest = buffer.get(skip..).unwrap_or_default();
        return is_there::<false>(rest.as_ptr(), rest.len().min(count));
    }
    all_of_them_give(buffers, skip, count)
}

#[inline(never)]
fn all_of_them_give(buffers: &[IoSlice<'_>], mut skip: usize, mut left: usize) -> bool {
    for buffer in buffers {
        let here = skip.min(buffer.len());
        skip -= here;
        let rest = buffer.get(here..).unwrap_or_default();
        let len = left.min(rest.len());
        if !is_there::<false>(rest.as_ptr(), len) {
            return false;
        }
        left -= len;
        if left == 0 {
            return true;
        }
    }
    true
}

/// What was copied of the program's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    pub bytes: usize,
    /// Behind these the memory is not there.
    pub fault: bool,
}

/// The kernel's tcp_sendmsg() copies so much at a time (SKB_FRAG_PAGE_ORDER), as a whole or not at all.
const PORTION: usize = 32 * 1024;

/// How much of the next `count` bytes can be sent: all that the buffers have, or whole portions up to the one of which some
/// is not there.
#[inline]
pub fn gives(buffers: &[IoSlice<'_>], skip: usize, count: usize) -> Copied {
    let len: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    let count = count.min(len.saturating_sub(skip));
    if all_give(buffers, skip, count) {
        return Copied { bytes: count, fault: false };
    }
    good_portions(buffers, skip, count)
}

#[cold]
fn good_portions(buffers: &[IoSlice<'_>], skip: usize, count: usize) -> Copied {
    let mut bytes = 0;
    while bytes < count {
        let portion = PORTION.min(count - bytes);
        if !all_give(buffers, skip + bytes, portion) {
            return Copied { bytes, fault: true };
        }
        bytes += portion;
    }
    Copied { bytes, fault: false }
}

/// The first and the last instruction that touches, when [`prepare`] has looked.
static FIRST: AtomicUsize = AtomicUsize::new(usize::MAX);
static LAST: AtomicUsize = AtomicUsize::new(0);

/// Before the handler is installed.
pub fn prepare() {
    let instructions = || table().iter().map(|entry| address(&entry.instruction));
    FIRST.store(instructions().min().unwrap_or(usize::MAX), Ordering::Relaxed);
    LAST.store(instructions().max().unwrap_or(0), Ordering::Relaxed);
}

fn address(field: &i32) -> usize {
    core::ptr::from_ref(field).addr().wrapping_add_signed(*field as isize)
}

/// Where a thread goes on that has faulted at this instruction; None if it was no touch. Faults of the program's own code,
/// of which a garbage collector makes many, are told by the address alone.
pub fn landing(instruction: usize) -> Option<usize> {
    if instruction < FIRST.load(Ordering::Relaxed) || instruction > LAST.load(Ordering::Relaxed) {
        return None;
    }
    let entry = table().iter().find(|entry| address(&entry.instruction) == instruction)?;
    Some(address(&entry.landing))
}

#[inline(always)]
fn is_there<const WRITES: bool>(at: *const u8, len: usize) -> bool {
    let Some(behind) = len.checked_sub(1) else { return true };
    if !touch::<WRITES>(at) {
        return false;
    }
    let last = at.addr().wrapping_add(behind);
    at.addr() / PAGE == last / PAGE || are_pages_there::<WRITES>(at, last)
}

/// The pages behind the first one, up to that of the last byte.
#[inline(never)]
fn are_pages_there<const WRITES: bool>(at: *const u8, last: usize) -> bool {
    let mut page = (at.addr() / PAGE + 1) * PAGE;
    while page <= last {
        if !touch::<WRITES>(at.with_addr(page)) {
            return false;
        }
        let Some(next) = page.checked_add(PAGE) else { return false };
        page = next;
    }
    true
}

/// Reads a byte, or writes it as it is. False if that faults.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn touch<const WRITES: bool>(at: *const u8) -> bool {
    macro_rules! touch {
        ($instruction:literal, $($option:ident),*) => {
            // SAFETY: the instruction changes nothing but flags. If it faults, the thread goes on at the label with all
            // registers as they were.
            unsafe {
                core::arch::asm!(
                    concat!("2: ", $instruction),
                    ".pushsection libvma_fixups, \"aR\", @progbits",
                    ".balign 4",
                    ".long 2b - .",
                    ".long {landing} - .",
                    ".popsection",
                    at = in(reg) at,
                    landing = label { return false },
                    options(nostack $(, $option)*),
                )
            }
        };
    }
    if WRITES {
        touch!("or byte ptr [{at}], 0",);
    } else {
        touch!("test byte ptr [{at}], 1", readonly);
    }
    true
}

// The linker would export its names for the two ends of the section.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(".hidden __start_libvma_fixups", ".hidden __stop_libvma_fixups");

#[cfg(target_arch = "x86_64")]
fn table() -> &'static [Entry] {
    unsafe extern "C" {
        static __start_libvma_fixups: [Entry; 0];
        static __stop_libvma_fixups: [Entry; 0];
    }
    let (start, stop) = (&raw const __start_libvma_fixups, &raw const __stop_libvma_fixups);
    let len = (stop.addr() - start.addr()) / size_of::<Entry>();
    // SAFETY: the section holds entries only, and lies between the two names.
    unsafe { core::slice::from_raw_parts(start.cast(), len) }
}

/// Elsewhere a bad pointer ends the program, as in any function of libc.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn touch<const WRITES: bool>(_: *const u8) -> bool {
    true
}

#[cfg(not(target_arch = "x86_64"))]
fn table() -> &'static [Entry] {
    &[]
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use core::ffi::{c_int, c_void};
    use std::sync::Once;

    use super::*;

    extern "C" fn on_fault(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: the kernel gives the handler its context.
        let registers = unsafe { &mut (*context).uc_mcontext.gregs };
        let at = &mut registers[libc::REG_RIP as usize];
        match landing(*at as usize) {
            Some(landing) => *at = landing as i64,
            // SAFETY: ends the process.
            None => unsafe { libc::abort() },
        }
    }

    /// Three pages: one to write, one to read, one for nothing.
    fn pages() -> *mut u8 {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: all-zero bytes are a valid sigaction.
            let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_fault;
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO;
            prepare();
            // SAFETY: a valid action.
            unsafe { libc::sigaction(libc::SIGSEGV, &action, core::ptr::null_mut()) };
        });
        three_pages()
    }

    /// Three pages: one to write, one to read, one for nothing.
    pub(super) fn three_pages() -> *mut u8 {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory.
        let all = unsafe { libc::mmap(core::ptr::null_mut(), 3 * PAGE, access, flags, -1, 0) };
        assert_ne!(all, libc::MAP_FAILED);
        // SAFETY: within the new memory.
        unsafe { libc::mprotect(all.wrapping_byte_add(PAGE), PAGE, libc::PROT_READ) };
        // SAFETY: as above.
        unsafe { libc::mprotect(all.wrapping_byte_add(2 * PAGE), PAGE, libc::PROT_NONE) };
        all.cast()
    }

    #[test]
    fn a_touch_tells_what_may_be_read_and_what_may_be_written() {
        let pages = pages();
        let at = |offset: usize| pages.wrapping_add(offset);
        let readable = [(0, 1), (0, 2 * PAGE), (PAGE, PAGE), (2 * PAGE - 1, 1), (2 * PAGE, 0)];
        for (offset, len) in readable {
            assert!(is_readable(at(offset), len), "{offset} {len}");
        }
        for (offset, len) in [(0, 2 * PAGE + 1), (2 * PAGE - 1, 2), (2 * PAGE, 1)] {
            assert!(!is_readable(at(offset), len), "{offset} {len}");
        }
        for (offset, len) in [(0, PAGE), (PAGE - 1, 1), (PAGE, 0)] {
            assert!(is_writable(at(offset), len), "{offset} {len}");
        }
        for (offset, len) in [(0, PAGE + 1), (PAGE, 1), (2 * PAGE, 1)] {
            assert!(!is_writable(at(offset), len), "{offset} {len}");
        }
        assert!(!is_readable(core::ptr::null::<u8>(), 1));
        assert!(!is_readable(core::ptr::without_provenance::<u8>(1 << 63), 8));
    }

    #[test]
    fn a_touch_changes_nothing() {
        let mut bytes = [0xa5u8; 2 * PAGE];
        assert!(takes(&mut bytes));
        assert_eq!(bytes, [0xa5; 2 * PAGE]);
    }

    #[test]
    fn of_several_buffers_only_what_is_to_be_written_counts() {
        let pages = pages();
        let buffer = |offset: usize, len| {
            let start = pages.wrapping_add(offset);
            // SAFETY: the first page is there; of the others nothing is read or written.
            IoSliceMut::new(unsafe { core::slice::from_raw_parts_mut(start, len) })
        };
        let mut buffers = [buffer(0, 100), buffer(2 * PAGE, 0), buffer(PAGE - 10, 20)];
        assert!(all_take(&mut buffers, 0, 110));
        assert!(!all_take(&mut buffers, 0, 111));
        assert!(all_take(&mut buffers, 105, 5));
        assert!(!all_take(&mut buffers, 105, 6));
        assert!(!all_take(&mut buffers, 115, 1));
        assert!(all_take(&mut buffers, 120, 1), "there is no room");
    }

    #[test]
    fn an_address_outside_the_touches_is_none_of_them() {
        prepare();
        let instructions: Vec<_> =
            table().iter().map(|entry| address(&entry.instruction)).collect();
        assert!(instructions.iter().all(|at| landing(*at).is_some()));
        let (first, last) = (FIRST.load(Ordering::Relaxed), LAST.load(Ordering::Relaxed));
        assert!(instructions.contains(&first) && instructions.contains(&last));
        assert_eq!([landing(first - 1), landing(last + 1), landing(0)], [None; 3]);
    }

    #[test]
    fn sent_buffers_are_good_up_to_the_portion_that_is_not_there() {
        let len = 4 * PORTION;
        // SAFETY: new memory.
        let all = unsafe {
            let (access, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(core::ptr::null_mut(), len, access, flags, -1, 0)
        };
        assert_ne!(all, libc::MAP_FAILED);
        let hole = PORTION + 2 * PAGE;
        // SAFETY: within the new memory.
        unsafe { libc::mprotect(all.wrapping_byte_add(hole), len - hole, libc::PROT_NONE) };
        pages();
        let part = |from: usize, to: usize| {
            // SAFETY: nothing is read but by touches.
            IoSlice::new(unsafe {
                core::slice::from_raw_parts(all.wrapping_byte_add(from).cast::<u8>(), to - from)
            })
        };
        let one = [part(0, len)];
        let sound = |bytes| Copied { bytes, fault: false };
        let bad = |bytes| Copied { bytes, fault: true };
        assert_eq!(gives(&one, 0, hole), sound(hole), "no byte behind is looked at");
        assert_eq!(gives(&one, 0, hole + 1), bad(PORTION));
        assert_eq!(gives(&one, hole - 1, 1), sound(1));
        assert_eq!(gives(&one, hole, len), bad(0));
        let short = [IoSlice::new(&[1, 2, 3]), IoSlice::new(&[4])];
        assert_eq!([gives(&short, 0, 9), gives(&short, 2, 9)], [sound(4), sound(2)]);
        assert_eq!([gives(&short[..1], 1, 9), gives(&short, 5, 9)], [sound(2), sound(0)]);
        let two = [part(0, 4), part(hole, hole + 10)];
        assert_eq!([gives(&two, 0, 4), gives(&two, 0, 5)], [sound(4), bad(0)]);
    }
}
