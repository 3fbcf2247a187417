//! `VMA_HANDLE_SIGSEGV`: a backtrace in the log before a crash takes its course.

use core::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

use super::{real, signal};
use crate::log::log_line;
use crate::sys::thread;

const FRAMES: usize = 25;

/// What stood there before: the program's handler, or the default.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler as if the program did: a bad pointer of a call is no crash (`fault.rs`). A program that installs
/// one of its own later has only that.
pub fn watch() {
    // SAFETY: all-zero bytes are a valid sigaction.
    let mut before: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: only asks; `before` outlives the call.
    if unsafe { signal::sigaction(libc::SIGSEGV, core::ptr::null(), &mut before) } != 0
        || BEFORE.set(before).is_err()
    {
        return;
    }
    // The first call loads a library, which must not happen in the handler.
    trace(&mut [core::ptr::null_mut(); 1]);
    // SAFETY: all-zero bytes are a valid sigaction.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_crash;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the action is valid and its handler lives as long as the library.
    unsafe { signal::sigaction(libc::SIGSEGV, &action, core::ptr::null_mut()) };
}

extern "C" fn on_crash(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    log_line!(Error, "Segmentation Fault");
    let mut frames = [core::ptr::null_mut(); FRAMES];
    let count = trace(&mut frames);
    log_line!(Error, "[tid: {}] ------ printf_backtrace ------", thread::thread_id());
    for (at, frame) in frames.iter().take(count).enumerate() {
        describe(at, *frame);
    }
    if let Some(before) = BEFORE.get() {
        // SAFETY: the action that the kernel gave.
        unsafe { real::sigaction(signal, before, core::ptr::null_mut()) };
    }
    // A fault happens again when this returns, and meets what was there before; a signal that was
    // sent does not, and is sent again.
    // SAFETY: the kernel gives every SA_SIGINFO handler its siginfo.
    if unsafe { info.as_ref() }.is_some_and(|info| info.si_code <= 0) {
        // SAFETY: a signal to this thread.
        unsafe { libc::raise(signal) };
    }
}

fn trace(frames: &mut [*mut c_void]) -> usize {
    // SAFETY: room for as many frames as said.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), frames.len() as c_int) };
    usize::try_from(count).unwrap_or(0)
}

fn describe(at: usize, frame: *mut c_void) {
    // SAFETY: all-zero bytes are a valid Dl_info.
    let mut place: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: `place` outlives the call; any address may be asked about.
    let known = unsafe { libc::dladdr(frame, &mut place) } != 0;
    let text = |name: *const core::ffi::c_char| {
        let known = known && !name.is_null();
        // SAFETY: not null, and then dladdr gave a string of the loader's.
        if known { unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("?") } else { "?" }
    };
    let offset = frame.addr().wrapping_sub(place.dli_fbase.addr());
    let (file, symbol) = (text(place.dli_fname), text(place.dli_sname));
    log_line!(Error, "[{at}] {file}+{offset:#x} ({symbol})");
}
