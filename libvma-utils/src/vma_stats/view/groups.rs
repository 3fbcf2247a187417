//! View 4: which sockets are members of which multicast groups.

use std::net::IpAddr;

use super::{Shown, dashes};

pub fn groups(shown: &Shown<'_>) -> String {
    // In the order in which they are met.
    let mut members: Vec<(IpAddr, Vec<i32>)> = Vec::new();
    for socket in shown.sockets() {
        for group in socket.memberships() {
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
        text.push_str(&format!("{:<21} ", format!("[{group}]")));
        for descriptor in descriptors {
            text.push_str(&format!("{descriptor} "));
        }
        text.push('\n');
    }
    text + &dashes()
}
