//! How much memory a process may lock (RLIMIT_MEMLOCK).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Before Linux 5.11 the kernel counts BPF maps and programs as locked memory when they are made, whatever the process's
/// capabilities, and a usual limit is 64 KiB. As long as this lives the process may lock as much as it can allow
/// itself: root any amount, another user what the hard limit says.
pub struct Raised {
    before: Rlimit,
}

impl Raised {
    /// None: there is nothing to raise.
    pub fn new() -> Option<Raised> {
        let before = getrlimit(Resource::Memlock);
        let all = Rlimit { current: None, maximum: None };
        let hard = Rlimit { current: before.maximum, maximum: before.maximum };
        before.current?;
        if setrlimit(Resource::Memlock, all).is_err() {
            if before.current == before.maximum {
                return None;
            }
            setrlimit(Resource::Memlock, hard).ok()?;
        }
        Some(Raised { before })
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        let before = Rlimit { current: self.before.current, maximum: self.before.maximum };
        // It was its own a moment ago.
        let _ = setrlimit(Resource::Memlock, before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_as_before_afterwards() {
        let at_first = getrlimit(Resource::Memlock);
        let small = Rlimit { current: Some(4096), maximum: at_first.maximum };
        setrlimit(Resource::Memlock, small).unwrap();
        let raised = Raised::new();
        assert!(raised.is_some());
        assert_ne!(getrlimit(Resource::Memlock).current, Some(4096));
        drop(raised);
        assert_eq!(getrlimit(Resource::Memlock).current, Some(4096));
        assert_eq!(getrlimit(Resource::Memlock).maximum, at_first.maximum);
        setrlimit(Resource::Memlock, at_first).unwrap();
    }
}
