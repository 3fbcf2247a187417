//! dprintf and its kin, which write inside libc: the text is made by libc and sent by us.

use core::ffi::{c_char, c_int, c_void};

use super::{Found, errno, export, find, passed, real, send};

unsafe extern "C" {
    fn vasprintf(out: *mut *mut c_char, format: *const c_char, list: *mut c_void) -> c_int;
    fn __vasprintf_chk(
        out: *mut *mut c_char,
        flag: c_int,
        format: *const c_char,
        list: *mut c_void,
    ) -> c_int;
}

/// Sends a text that libc has made. It goes on until all of it is written, as libc's stream does.
///
/// # Safety
/// `text` is null, or `len` bytes of libc's heap.
unsafe fn send_text(fd: c_int, text: *mut c_char, len: c_int) -> c_int {
    let Ok(total) = usize::try_from(len) else { return -1 };
    let mut done = 0;
    while done < total {
        let rest = text.wrapping_add(done).cast::<c_void>();
        // SAFETY: that much of the text is left.
        let sent = unsafe { send::write(fd, rest, total - done) };
        match usize::try_from(sent) {
            Ok(sent) if sent > 0 => done += sent,
            _ => break,
        }
    }
    let before = errno::get();
    // SAFETY: the text is libc's, and nobody else has it.
    unsafe { libc::free(text.cast()) };
    errno::set(before);
    if done == total { len } else { -1 }
}

export! {
    /// vdprintf(3).
    fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int {
        let _call = passed::during(fd);
        if matches!(find(fd), Found::Kernel | Found::Counted) {
            // SAFETY: passed on.
            return passed::sent(fd, unsafe { real::vdprintf(fd, format, list) } as isize) as c_int;
        }
        let mut text = core::ptr::null_mut();
        // SAFETY: the program's format and arguments, by the contract of the call.
        let len = unsafe { vasprintf(&mut text, format, list) };
        // SAFETY: what vasprintf made.
        unsafe { send_text(fd, text, len) }
    }

    /// vdprintf with checks, by which _FORTIFY_SOURCE replaces it.
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int {
        let _call = passed::during(fd);
        if matches!(find(fd), Found::Kernel | Found::Counted) {
            // SAFETY: passed on.
            let result = unsafe { real::__vdprintf_chk(fd, flag, format, list) };
            return passed::sent(fd, result as isize) as c_int;
        }
        let mut text = core::ptr::null_mut();
        // SAFETY: the program's format and arguments, by the contract of the call.
        let len = unsafe { __vasprintf_chk(&mut text, flag, format, list) };
        // SAFETY: what vasprintf made.
        unsafe { send_text(fd, text, len) }
    }
}

/// Defines a variadic function: gathers its arguments to a `va_list` (System V ABI for x86-64, section 3.5.7) and
/// calls the function that takes one.
macro_rules! variadic {
    ($($(#[$meta:meta])* $name:ident calls $with_list:ident, list in $register:literal behind $named:literal bytes;)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// As the C function of this name.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> c_int {
            core::arch::naked_asm!(
                // Besides the return address: the list (24 bytes, padded to 32), then the register save area (176).
                "sub rsp, 216",
                "mov [rsp + 32], rdi",
                "mov [rsp + 40], rsi",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                "2:",
                // gp_offset, fp_offset, overflow_arg_area, reg_save_area.
                concat!("mov dword ptr [rsp], ", $named),
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                concat!("mov ", $register, ", rsp"),
                "call {with_list}",
                "add rsp, 216",
                "ret",
                with_list = sym $with_list,
            )
        }
    )*};
}

variadic! {
    /// dprintf(3).
    dprintf calls vdprintf, list in "rdx" behind "16" bytes;
    /// dprintf with checks, by which _FORTIFY_SOURCE replaces it.
    __dprintf_chk calls __vdprintf_chk, list in "rcx" behind "24" bytes;
}
