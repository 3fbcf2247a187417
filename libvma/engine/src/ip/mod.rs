//! What IP does with a whole datagram: taking it apart to send and putting it together on receipt.
//! Header bytes are `wire`'s business, ports are `udp`'s.

pub mod fragment;
pub mod reassembly;
