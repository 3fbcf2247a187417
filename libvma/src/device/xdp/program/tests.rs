//! What the verifiers of kernels that the tests do not run on demand of the steering programs.

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
