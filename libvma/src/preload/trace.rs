//! What the debug library logs of each call: its arguments and its result (levels FINE and FINER). Nothing of this
//! is in the other library.

use core::any::Any;
use core::ffi::c_int;
use core::fmt::{Debug, Display, Formatter, Result};

use super::errno;
use crate::log::{self, Level};
use crate::process;

/// Numbers and pointers.
pub trait Value: Any + Debug {}

impl<T: Any + Debug> Value for T {}

/// The level that a call with these arguments is logged at: FINE if its first argument is the number of a descriptor
/// of ours. That of a call that takes something else there, such as a family, may be taken for one.
#[cold]
pub fn level(arguments: &[&dyn Value]) -> Level {
    match arguments.first() {
        Some(first) if is_ours(*first) => Level::Fine,
        _ => Level::Finer,
    }
}

fn is_ours(value: &dyn Value) -> bool {
    let value: &dyn Any = value;
    let descriptor = value.downcast_ref::<c_int>();
    let process = process::current();
    process.zip(descriptor).is_some_and(|(process, fd)| process.fds.get(*fd).is_some())
}

/// Calls whose result is a descriptor, not a count.
const MAKERS: [&str; 6] = ["socket", "accept", "accept4", "dup", "epoll_create", "epoll_create1"];

/// Logs a call that has ended.
#[cold]
pub fn called(before: Level, name: &str, arguments: &[&dyn Value], result: &dyn Value) {
    let is_made = MAKERS.contains(&name) && is_ours(result);
    let level = if is_made { Level::Fine } else { before };
    let error = (result as &dyn Any).downcast_ref::<c_int>().is_some_and(|result| *result < 0)
        || (result as &dyn Any).downcast_ref::<isize>().is_some_and(|result| *result < 0);
    let list = List(arguments);
    match error {
        true => {
            log::line_if_enabled(
                level,
                format_args!("{name}({list}) = {result:?}, errno {}", errno::get()),
            );
        }
        false => log::line_if_enabled(level, format_args!("{name}({list}) = {result:?}")),
    }
}

struct List<'a>(&'a [&'a dyn Value]);

impl Display for List<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for (at, value) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(f, "{separator}{value:?}")?;
        }
        Ok(())
    }
}
