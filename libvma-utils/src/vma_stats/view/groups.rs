//! View 4: which sockets are members of which multicast groups.

use std::net::Ipv4Addr;

use super::{Shown, dashes, full};

pub fn groups(shown: &Shown<'_>) -> String {
    // In the order in which they are met.
    let mut members: Vec<(Ipv4Addr, Vec<i32>)> = Vec::new();
    for socket in shown.sockets() {
        for group in full::memberships(socket) {
            match members.iter_mut().find(|(known, _)| *known == group) {
                Some((_, descriptors)) => descriptors.push(socket.descriptor),
                None => members.push((group, vec![socket.descriptor])),
            }
        }
    }
    let mut text = String::new();
    if !members.is_empty() {
        text.push_str("\nVMA Group Memberships Information\nGroup                fd number\n");
        text.push_str(&("-".repeat(30) + "\n"));
    }
    for (group, descriptors) in members {
        text.push_str(&format!("{:<22}", format!("[{group}]")));
        for descriptor in descriptors {
            text.push_str(&format!("{descriptor} "));
        }
        text.push('\n');
    }
    text + &dashes()
}
