//! libvma.conf: no text panics, and what was read prints as itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libvma_dev::rules::parse;

fuzz_target!(|text: &str| {
    let first = parse(text).rules;
    let second = parse(&first.to_string());
    assert!(second.problems.is_empty(), "{:?}", second.problems);
    assert_eq!(second.rules.to_string(), first.to_string());
});
