//! Signals: knowing that a handler ran.
//!
//! A call that polls in user space is not interrupted by a signal, it is merely delayed; POSIX wants
//! it to end with EINTR if the handler was installed without SA_RESTART. So the program's handlers
//! are wrapped: the wrapper counts, on the thread it runs on, and calls the handler; if the thread
//! holds a lock of ours it puts the signal off until that is free, because the handler may use
//! sockets, or leave by longjmp. The program never sees the wrapper: sigaction() reports what the
//! program installed.

use core::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use super::{export, fault, fork, real};
use crate::log::log_line;
use crate::process;
use crate::sys::{thread, user};

const SIGNALS: usize = 65;

/// The action that the program installed: the handler, and its flags (with our own SA_SIGINFO taken out).
struct Installed {
    handler: AtomicUsize,
    flags: AtomicI32,
    /// SA_NODEFER without the signal in `sa_mask`: the handler may be interrupted by its own signal.
    nests: AtomicBool,
}

impl Installed {
    const fn nothing() -> Installed {
        Installed {
            handler: AtomicUsize::new(0),
            flags: AtomicI32::new(0),
            nests: AtomicBool::new(false),
        }
    }
}

static INSTALLED: [Installed; SIGNALS] = [const { Installed::nothing() }; SIGNALS];

/// The flags that the kernel has otherwise than the program gave them.
///
/// * SA_SIGINFO: the wrapper needs the interrupted context.
/// * SA_RESETHAND: the wrapper may put the signal off, and must still be there then.
/// * SA_NODEFER: a signal that is put off is sent again while the wrapper runs. Unblocked there, it would
///   interrupt the wrapper, without end.
const CHANGED: c_int = libc::SA_SIGINFO | libc::SA_RESETHAND | libc::SA_NODEFER;

/// Signals, a bit each, for which siginterrupt() has asked that handlers interrupt calls.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// Set at the first Internet socket; before it, handlers are left as they are.
static WRAPPING: AtomicBool = AtomicBool::new(false);

/// `VMA_HANDLE_SIGINTR`: SIGINT is logged, whatever the program does about it.
static ANNOUNCING: AtomicBool = AtomicBool::new(false);

/// Signals that a fault raises: their handlers repair or report, and run on any stack. Those of a bad pointer have a
/// handler of the library's, too: `fault.rs`.
const FAULTS: &[c_int] = &[
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
];

extern "C" fn wrapper(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(installed) = usize::try_from(signal).ok().and_then(|n| INSTALLED.get(n)) else {
        return;
    };
    if thread::holds_locks() {
        // SAFETY: the kernel gives every SA_SIGINFO handler both.
        let info = unsafe { info.as_ref() };
        // SAFETY: as above; the context is a ucontext_t.
        let context = unsafe { context.cast::<libc::ucontext_t>().as_mut() };
        if let (Some(info), Some(context)) = (info, context) {
            return thread::put_off(signal, info, &mut context.uc_sigmask);
        }
    }
    let flags = installed.flags.load(Ordering::Acquire);
    let handler = installed.handler.load(Ordering::Acquire);
    if signal == libc::SIGINT && ANNOUNCING.load(Ordering::Relaxed) {
        log_line!(Warning, "Catch Signal: SIGINT ({signal})");
        if handler == libc::SIG_DFL {
            // It comes again when this returns, and ends the process.
            reset(signal, flags);
            // SAFETY: a signal to this thread.
            unsafe { libc::raise(signal) };
            return;
        }
    }
    thread::count_handler(flags & libc::SA_RESTART != 0);
    if flags & libc::SA_RESETHAND != 0 {
        reset(signal, flags);
    }
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        return;
    }
    if installed.nests.load(Ordering::Acquire) {
        // From here on no lock of ours is held, so a nested signal is not put off.
        thread::unblock(signal);
    }
    let handler = core::ptr::with_exposed_provenance::<c_void>(handler);
    if flags & libc::SA_SIGINFO != 0 {
        // SAFETY: the program installed this address with SA_SIGINFO, so it has this type.
        let function: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
            unsafe { core::mem::transmute(handler) };
        function(signal, info, context);
    } else {
        // SAFETY: the program installed this address without SA_SIGINFO, so it has this type.
        let function: extern "C" fn(c_int) = unsafe { core::mem::transmute(handler) };
        function(signal);
    }
}

/// SA_RESETHAND: the default again, with mask and flags as they were.
fn reset(signal: c_int, flags: c_int) {
    // SAFETY: all-zero bytes are a valid sigaction.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: only asks; `action` outlives the call; sigaction is async-signal-safe.
    unsafe { real::sigaction(signal, core::ptr::null(), &mut action) };
    action.sa_sigaction = libc::SIG_DFL;
    action.sa_flags = flags;
    // SAFETY: as above.
    unsafe { real::sigaction(signal, &action, core::ptr::null_mut()) };
}

fn wrapper_address() -> usize {
    (wrapper as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)) as usize
}

/// The program's action, installed or by default: handler and flags.
pub fn installed(signal: c_int) -> (usize, c_int) {
    let slot = usize::try_from(signal).ok().and_then(|n| INSTALLED.get(n));
    slot.map_or((libc::SIG_DFL, 0), |slot| {
        (slot.handler.load(Ordering::Acquire), slot.flags.load(Ordering::Acquire))
    })
}

/// SA_RESETHAND of a signal that the library's own handler stays installed for.
pub fn forget_handler(signal: c_int, handler: usize) {
    if let Some(slot) = usize::try_from(signal).ok().and_then(|n| INSTALLED.get(n)) {
        let (order, fail) = (Ordering::AcqRel, Ordering::Relaxed);
        let _ = slot.handler.compare_exchange(handler, libc::SIG_DFL, order, fail);
    }
}

/// Wraps the handlers that were installed before the first Internet socket.
pub fn wrap_existing() {
    user::prepare();
    WRAPPING.store(true, Ordering::Release);
    for signal in 1..SIGNALS as c_int {
        let watched = fault::is_watched(signal);
        if FAULTS.contains(&signal) && !watched {
            continue;
        }
        // SAFETY: all-zero bytes are a valid sigaction.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: only asks; `action` outlives the call.
        if unsafe { real::sigaction(signal, core::ptr::null(), &mut action) } != 0 {
            continue;
        }
        if watched || is_handler(action.sa_sigaction) {
            // SAFETY: the action is one that the kernel gave for this signal.
            unsafe { install(signal, &action, core::ptr::null_mut()) };
        }
    }
}

/// From now on SIGINT is logged.
pub fn announce_interrupts() {
    ANNOUNCING.store(true, Ordering::Release);
    // SAFETY: all-zero bytes are a valid sigaction.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: only asks; `action` outlives the call.
    let asked = unsafe { real::sigaction(libc::SIGINT, core::ptr::null(), &mut action) };
    if asked == 0 && action.sa_sigaction == libc::SIG_DFL {
        // SAFETY: the action is one that the kernel gave for this signal.
        unsafe { install(libc::SIGINT, &action, core::ptr::null_mut()) };
    }
}

/// Is the default action to be announced?
fn is_announced(signal: c_int, address: usize) -> bool {
    signal == libc::SIGINT && address == libc::SIG_DFL && ANNOUNCING.load(Ordering::Acquire)
}

fn is_handler(address: usize) -> bool {
    address != libc::SIG_DFL && address != libc::SIG_IGN && !is_own(address)
}

/// Is it a handler of the library's?
fn is_own(address: usize) -> bool {
    address == wrapper_address() || address == fault::address()
}

/// Is the library's handler to stand in an action's place? Not in a vfork() child, whose handlers are its own, but whose
/// memory is its parent's.
fn is_to_be_wrapped(signal: c_int, address: usize) -> bool {
    if !WRAPPING.load(Ordering::Acquire) {
        return false;
    }
    if fault::is_watched(signal) {
        return address != libc::SIG_IGN
            && !is_own(address)
            && !process::current().is_some_and(fork::is_vfork_child);
    }
    (is_handler(address) || is_announced(signal, address)) && !FAULTS.contains(&signal)
}

/// Installs an action of the program, wrapped if it is a handler.
///
/// # Safety
/// `old` is null or points to a sigaction.
unsafe fn install(signal: c_int, action: &libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let Some(slot) = usize::try_from(signal).ok().and_then(|n| INSTALLED.get(n)) else {
        // SAFETY: passed on; the kernel refuses the number.
        return unsafe { real::sigaction(signal, action, old) };
    };
    let before = (slot.handler.load(Ordering::Acquire), slot.flags.load(Ordering::Acquire));
    let nested = slot.nests.load(Ordering::Acquire);
    let wrapped = is_to_be_wrapped(signal, action.sa_sigaction);
    let mut changed = *action;
    if wrapped {
        // The wrapper may run as soon as the kernel has it: its target first.
        // SAFETY: a valid set; the number is in range.
        let masked = unsafe { libc::sigismember(&action.sa_mask, signal) } == 1;
        slot.nests.store(action.sa_flags & libc::SA_NODEFER != 0 && !masked, Ordering::Release);
        slot.flags.store(action.sa_flags, Ordering::Release);
        slot.handler.store(action.sa_sigaction, Ordering::Release);
        if fault::is_watched(signal) {
            changed.sa_flags = fault::flags(action);
            changed.sa_sigaction = fault::address();
        } else {
            changed.sa_flags = changed.sa_flags & !CHANGED | libc::SA_SIGINFO;
            changed.sa_sigaction = wrapper_address();
        }
    }
    // SAFETY: `changed` is a valid action, `old` as promised.
    let result = unsafe { real::sigaction(signal, &changed, old) };
    if result != 0 && wrapped {
        slot.handler.store(before.0, Ordering::Release);
        slot.flags.store(before.1, Ordering::Release);
        slot.nests.store(nested, Ordering::Release);
    }
    if result == 0 {
        // SAFETY: null or valid, as promised.
        unsafe { unwrap_old(old, before) };
    }
    result
}

/// Replaces the wrapper in an old action by what it stood for.
///
/// # Safety
/// `old` is null or points to a sigaction.
unsafe fn unwrap_old(old: *mut libc::sigaction, installed: (usize, c_int)) {
    // SAFETY: as promised.
    let Some(old) = (unsafe { old.as_mut() }) else { return };
    let changed = match old.sa_sigaction {
        address if address == wrapper_address() => CHANGED,
        address if address == fault::address() => fault::CHANGED,
        _ => return,
    };
    old.sa_sigaction = installed.0;
    old.sa_flags = old.sa_flags & !changed | installed.1 & changed;
}

/// signal(2) and its kin: installs a handler with flags, and with the signal itself in the mask if that is
/// `masked`. Returns the old one.
fn install_simply(
    number: c_int,
    handler: libc::sighandler_t,
    flags: c_int,
    masked: bool,
) -> libc::sighandler_t {
    // SAFETY: all-zero bytes are a valid sigaction.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    if masked {
        // SAFETY: `sa_mask` is a sigset_t that outlives the call; the number is checked by it.
        unsafe { libc::sigaddset(&mut action.sa_mask, number) };
    }
    // SAFETY: all-zero bytes are a valid sigaction.
    let mut old: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: both are sigaction values that outlive the call.
    match unsafe { install(number, &action, &mut old) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

/// The bit of a signal in [`INTERRUPTING`]; 0 if there is no such signal.
fn bit_of(number: c_int) -> u64 {
    u32::try_from(number - 1).ok().and_then(|at| 1u64.checked_shl(at)).unwrap_or(0)
}

/// Is a handler of the library's installed for this signal?
fn is_wrapped(number: c_int) -> bool {
    // SAFETY: all-zero bytes are a valid sigaction.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: only asks; `action` outlives the call.
    let asked = unsafe { real::sigaction(number, core::ptr::null(), &mut action) };
    asked == 0 && is_own(action.sa_sigaction)
}

export! {
    /// sigaction(2).
    fn sigaction(
        signal: c_int,
        action: *const libc::sigaction,
        old: *mut libc::sigaction,
    ) -> c_int {
        // SAFETY: the program's pointer: null, or a sigaction by the contract of the call.
        if let Some(action) = unsafe { action.as_ref() } {
            // SAFETY: as above.
            return unsafe { install(signal, action, old) };
        }
        // SAFETY: passed on.
        let result = unsafe { real::sigaction(signal, action, old) };
        if result == 0
            && let Some(slot) = usize::try_from(signal).ok().and_then(|n| INSTALLED.get(n))
        {
            let installed =
                (slot.handler.load(Ordering::Acquire), slot.flags.load(Ordering::Acquire));
            // SAFETY: the kernel accepted `old`, so it is null or valid.
            unsafe { unwrap_old(old, installed) };
        }
        result
    }

    /// signal(2), with the BSD semantics that libc gives it.
    fn signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
        let wrapping = WRAPPING.load(Ordering::Acquire);
        if !wrapping || handler == libc::SIG_ERR {
            // SAFETY: passed on.
            return unsafe { real::signal(number, handler) };
        }
        let interrupts = INTERRUPTING.load(Ordering::Acquire) & bit_of(number) != 0;
        let flags = if interrupts { 0 } else { libc::SA_RESTART };
        install_simply(number, handler, flags, true)
    }

    /// libc's other name of signal.
    fn bsd_signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
        // SAFETY: passed on.
        unsafe { signal(number, handler) }
    }

    /// libc's other name of signal.
    fn ssignal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
        // SAFETY: passed on.
        unsafe { signal(number, handler) }
    }

    /// signal(2) under System V semantics: the handler is installed for one signal, nothing is blocked
    /// meanwhile, and calls are interrupted.
    fn __sysv_signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
        if !WRAPPING.load(Ordering::Acquire) || handler == libc::SIG_ERR {
            // SAFETY: passed on.
            return unsafe { real::__sysv_signal(number, handler) };
        }
        install_simply(number, handler, SYSTEM_V, false)
    }

    /// libc's other name of `__sysv_signal`.
    fn sysv_signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
        // SAFETY: passed on.
        unsafe { __sysv_signal(number, handler) }
    }

    /// sigset(3).
    fn sigset(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
        if !WRAPPING.load(Ordering::Acquire) || handler == libc::SIG_ERR || handler == SIG_HOLD {
            // SAFETY: passed on. SIG_HOLD installs nothing.
            let old = unsafe { real::sigset(number, handler) };
            return if is_own(old) { handler_of(number) } else { old };
        }
        let old = install_simply(number, handler, 0, false);
        if old == libc::SIG_ERR {
            return old;
        }
        if thread::unblock(number) { SIG_HOLD } else { old }
    }

    /// siginterrupt(3): changes the handler that is installed, and those that signal() installs later.
    fn siginterrupt(number: c_int, interrupts: c_int) -> c_int {
        // It takes the wrapper's flags and gives them back, changed.
        // SAFETY: passed on.
        let result = unsafe { real::siginterrupt(number, interrupts) };
        if result != 0 {
            return result;
        }
        let slot = usize::try_from(number).ok().and_then(|n| INSTALLED.get(n));
        let slot = slot.filter(|_| is_wrapped(number));
        if interrupts != 0 {
            INTERRUPTING.fetch_or(bit_of(number), Ordering::AcqRel);
            slot.map(|slot| slot.flags.fetch_and(!libc::SA_RESTART, Ordering::AcqRel));
        } else {
            INTERRUPTING.fetch_and(!bit_of(number), Ordering::AcqRel);
            slot.map(|slot| slot.flags.fetch_or(libc::SA_RESTART, Ordering::AcqRel));
        }
        result
    }
}

/// The handler that the program installed.
fn handler_of(number: c_int) -> libc::sighandler_t {
    let slot = usize::try_from(number).ok().and_then(|n| INSTALLED.get(n));
    slot.map_or(libc::SIG_DFL, |slot| slot.handler.load(Ordering::Acquire))
}

const SIG_HOLD: libc::sighandler_t = 2;
/// SA_RESETHAND, SA_NODEFER and SA_INTERRUPT, as libc's `sysv_signal` has them.
const SYSTEM_V: c_int = libc::SA_RESETHAND | libc::SA_NODEFER | 0x2000_0000;
