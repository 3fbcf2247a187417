//! Arbitrary bytes as what another process says on a connection of the rendezvous: nothing panics,
//! and what parses is exactly what would have been said.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vma::control::rendezvous::{LENGTH, Message, VERSION};

fuzz_target!(|bytes: &[u8]| {
    hear(bytes);
    // Again of the right length and beginning, which random bytes seldom are.
    let mut message = [0; LENGTH];
    let start = b"libvma";
    message[..start.len()].copy_from_slice(start);
    message[start.len()] = VERSION;
    let rest = &mut message[start.len() + 1..];
    let length = rest.len().min(bytes.len());
    rest[..length].copy_from_slice(&bytes[..length]);
    hear(&message);
});

fn hear(bytes: &[u8]) {
    let Some(message) = Message::parse(bytes) else {
        return;
    };
    let emitted = message.emit();
    assert_eq!(Message::parse(&emitted), Some(message));
    let key = match message {
        Message::Hello { key, .. }
        | Message::Answer { key, .. }
        | Message::Posted { key }
        | Message::Gone { key } => key,
        Message::Half { .. } | Message::Bell { .. } => return,
    };
    let name = key.name();
    // What a unix socket's address holds besides the zero byte.
    assert!(name.starts_with(b"libvma-") && name.len() <= 107);
    // Who speaks is not said where it does not matter, and not looked at either.
    if matches!(message, Message::Hello { .. } | Message::Answer { .. }) {
        assert_eq!(emitted, bytes);
    }
}
