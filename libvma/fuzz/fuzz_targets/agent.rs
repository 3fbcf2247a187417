//! The messages to vmad: no datagram panics, and what was understood says itself again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libvma_dev::agent::{Header, Init, Message, code, exit};
use zerocopy::{FromBytes, IntoBytes};

fuzz_target!(|datagram: &[u8]| {
    let message = match Message::parse(datagram) {
        Ok(message) => message,
        Err(malformed) => {
            assert!(!malformed.to_string().is_empty());
            return;
        }
    };
    let header = Header::read_from_prefix(datagram).expect("it was understood").0;
    assert_eq!((message.pid(), header.code & !code::NUMBER), (header.pid.get(), 0));
    let again = match message {
        Message::Init(init) => {
            let answer = init.answer();
            assert!(Init::accepts(answer.as_bytes(), init.pid).is_some());
            assert_eq!(answer.as_bytes()[2..3], datagram[2..3], "the status is echoed");
            init.to_wire().as_bytes().to_vec()
        }
        Message::State(state) => state.to_wire().as_bytes().to_vec(),
        Message::Exit { pid } => exit(pid).as_bytes().to_vec(),
        Message::Flow(flow) => flow.to_wire().as_bytes().to_vec(),
    };
    assert_eq!(Message::parse(&again), Ok(message));
    // Beyond the header, whose fields may hold what means nothing, every byte counts.
    assert_eq!(again[8..], datagram[8..]);
});
