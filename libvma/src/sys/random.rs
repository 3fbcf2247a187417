//! Bytes that nobody can guess.

use super::wait::raw_syscall;

/// 128 random bits; None if the kernel has no randomness (yet), or a filter forbids asking.
pub fn bytes() -> Option<[u8; 16]> {
    let mut bytes = [0u8; 16];
    let flags = libc::GRND_NONBLOCK as usize;
    let arguments = [bytes.as_mut_ptr() as usize, bytes.len(), flags, 0, 0, 0];
    // SAFETY: `bytes` outlives the call, with its size.
    let got = unsafe { raw_syscall(libc::SYS_getrandom, arguments) };
    (got == bytes.len() as isize).then_some(bytes)
}
