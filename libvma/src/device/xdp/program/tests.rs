//! The steering programs, as the verifiers of other kernels demand them.

use super::*;

/// Register 10, by which a program finds its stack.
const FRAME_POINTER: u8 = 10;
/// Class and mode of an instruction that stores a constant, or a register.
const CLASS_AND_MODE: u8 = 0xe7;
const STORE_CONSTANT: u8 = 0x62;
const STORE_REGISTER: u8 = 0x63;
const SIZE: u8 = 0x18;
const EIGHT_BYTES: u8 = 0x18;

/// Before Linux 6.8, CAP_PERFMON is needed for anything else (check_stack_write_fixed_off() in kernel/bpf/verifier.c).
#[test]
fn numbers_on_the_stack_have_64_bits() {
    for object in [STEER, INGRESS] {
        let object = Object::parse(object).expect("an object");
        for function in object.functions.values() {
            for (at, instruction) in function.instructions.iter().enumerate() {
                let stores =
                    matches!(instruction.code & CLASS_AND_MODE, STORE_CONSTANT | STORE_REGISTER);
                let whole = instruction.code & SIZE == EIGHT_BYTES;
                assert!(
                    !stores || whole || instruction.dst_reg() != FRAME_POINTER,
                    "{}: instruction {at} stores a smaller one: does the compiler need `as_64_bits`?",
                    function.name,
                );
            }
        }
    }
}

#[test]
fn only_a_veth_is_tried_in_its_driver_among_the_virtual_ones() {
    let interface = |is_virtual, is_veth| Interface {
        index: 1,
        name: "x".into(),
        mac: [2, 0, 0, 0, 0, 1],
        address: core::net::Ipv4Addr::UNSPECIFIED,
        mtu: 1500,
        rx_queues: 1,
        is_virtual,
        is_veth,
        has_local_peers: is_virtual,
    };
    let tried = |is_virtual, is_veth| Mode::Auto.candidates(&interface(is_virtual, is_veth));
    assert_eq!(tried(true, true), (&[Mode::Tc, Mode::Native][..], Mode::Generic));
    // A bond takes a program in the driver, and its members' frames find no socket.
    assert_eq!(tried(true, false), (&[Mode::Tc][..], Mode::Generic));
    assert_eq!(tried(false, false), (&[Mode::Native][..], Mode::Generic));
}
