//! Clients within the host that a server has not answered before. Those that ask one question each (resolvers)
//! come from a new port every time. To find out whether such a port is another process's with the library takes
//! a dozen system calls, so a server that has many of them answers a new one by the kernel, and looks only when
//! it answers the same one again.

/// So many new ones in a row are needed.
const ENOUGH: u8 = 32;
/// Ports that are remembered.
const RECENT: usize = 32;

/// The ports that a socket answered last, and how many of them in a row were new.
#[derive(Debug, Default)]
pub struct Strangers {
    ports: [u16; RECENT],
    next: usize,
    row: u8,
}

impl Strangers {
    /// The socket is about to answer this port. Is it not worth a search?
    pub fn is_one(&mut self, port: u16) -> bool {
        if self.ports.contains(&port) {
            self.row = self.row.saturating_sub(1);
            return false;
        }
        if let Some(place) = self.ports.get_mut(self.next) {
            *place = port;
        }
        self.next = (self.next + 1) % RECENT;
        self.row = self.row.saturating_add(1);
        self.row > ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_ports_are_strangers_after_many_and_known_ones_are_not() {
        let mut strangers = Strangers::default();
        for port in 1..=u16::from(ENOUGH) {
            assert!(!strangers.is_one(port), "{port}");
        }
        assert!(strangers.is_one(100));
        assert!(!strangers.is_one(100), "answered again");
        // It stays known while some others come.
        for port in 200..200 + RECENT as u16 - 1 {
            strangers.is_one(port);
        }
        assert!(!strangers.is_one(100));
        strangers.is_one(300);
        assert!(strangers.is_one(100), "forgotten");
    }

    #[test]
    fn a_few_clients_in_turns_are_no_strangers() {
        let mut strangers = Strangers::default();
        for round in 0..1000u16 {
            assert!(!strangers.is_one(1 + round % 20), "{round}");
        }
    }
}
