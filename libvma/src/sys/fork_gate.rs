//! A fork waits until a new descriptor is known as the library's own: a child closes its copies of those that are known,
//! and would keep this one, with whatever ends when its last holder closes it (a name, a connection), for its whole life.
//!
//! For descriptors on which another process depends; of others (a file that is read once) a copy in a child harms nobody.

use super::lock::{Guard, Lock};

static GATE: Lock<()> = Lock::new(());

/// Until this is dropped no thread forks by fork(2). Under it no other lock may be waited for but the heap's.
pub type Shut = Option<Guard<'static, ()>>;

pub fn shut() -> Shut {
    GATE.lock().ok()
}
