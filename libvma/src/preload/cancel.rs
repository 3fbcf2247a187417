//! Cancellation points: where a thread that pthread_cancel(3) was called for ends.
//!
//! A call acts upon a cancellation before it does anything, and after a wait that ended because of one. One that has
//! moved data returns them. `sys::cancel` tells how a wait learns of it.

use core::ffi::c_int;

use super::{export, real};
use crate::process;
use crate::sys::cancel;

/// Defines C functions that are cancellation points. Other functions of the library call the plain function of the
/// same name, which is none.
macro_rules! cancellable {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty $body:block)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// As the C function of this name.
        #[inline(always)]
        pub unsafe fn $name($($arg: $type),*) -> $ret {
            #[inline(always)]
            unsafe fn call($($arg: $type),*) -> $ret $body

            $crate::preload::traced!($name($($arg),*))
        }

        const _: () = {
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
                loop {
                    let kind = match crate::sys::cancel::was_ever() {
                        true => crate::preload::cancel::enter(),
                        false => None,
                    };
                    // SAFETY: passed on.
                    let result = unsafe { self::$name($($arg),*) };
                    let cancelled = result < 0 && crate::sys::cancel::take_due();
                    if let Some(kind) = kind {
                        crate::preload::cancel::leave(kind);
                    }
                    if !cancelled {
                        return result;
                    }
                }
            }
        };
    )*};
}
pub(super) use cancellable;

/// Makes a function that the program has by a pointer a cancellation point, as [`cancellable`] makes an exported one.
#[inline]
pub fn point(mut call: impl FnMut() -> c_int) -> c_int {
    loop {
        let kind = if cancel::was_ever() { enter() } else { None };
        let result = call();
        let cancelled = result < 0 && cancel::take_due();
        if let Some(kind) = kind {
            leave(kind);
        }
        if !cancelled {
            return result;
        }
    }
}

/// Before a call: acts upon a cancellation. A thread that may be cancelled anywhere must not be during the call: returns
/// what to [`leave`] with.
#[cold]
#[inline(never)]
pub fn enter() -> Option<c_int> {
    cancel::act();
    let mut kind = cancel::DURING_A_CALL;
    // SAFETY: `kind` outlives the call.
    unsafe { real::pthread_setcanceltype(cancel::DURING_A_CALL, &mut kind) };
    cancel::is_asynchronous(kind).then_some(kind)
}

/// After a call.
#[cold]
#[inline(never)]
pub fn leave(kind: c_int) {
    // SAFETY: the kind that the thread had; no old one is asked for. It may unwind, see `sys::cancel::act`.
    unsafe { real::pthread_setcanceltype(kind, core::ptr::null_mut()) };
}

export! {
    /// pthread_cancel(3).
    fn pthread_cancel(thread: libc::pthread_t) -> c_int {
        let number = cancel::number_of(thread);
        // SAFETY: passed on.
        let result = unsafe { real::pthread_cancel(thread) };
        if result == 0 && let Some(number) = number {
            cancel::note(number);
            if let Some(process) = process::current() {
                process.wake_thread(number);
            }
        }
        result
    }

    /// pthread_setcanceltype(3).
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int {
        if cancel::is_asynchronous(kind) {
            cancel::note_asynchronous();
        }
        // SAFETY: passed on.
        unsafe { real::pthread_setcanceltype(kind, old) }
    }
}
