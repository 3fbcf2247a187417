//! The Extra API: constants and layouts of `vma_extra.h` for Rust.
//!
//! The header in `include/mellanox` is for C and C++; a test compares every number of it with these.
//! The header says what the functions do. Names are those of the header without their prefixes.

mod layout;

pub use layout::{
    Api, BlueFlame, Buffer, Completion, CqArm, CqData, CqModeration, DevData, DeviceData,
    ExternalMemory, Info, IoVec, ModifyRing, ModifyRingUnion, Packet, PacketDescriptor,
    PacketQueue, Packets, RateLimit, ReceiveCallback, RingAllocLogic, RingType, RingTypeUnion,
    RqData, SocketAddress, SqData, Timespec, UserAllocator, WqData,
};

/// `MSG_VMA_ZCOPY_FORCE`.
pub const MSG_ZCOPY_FORCE: i32 = 0x0100_0000;
/// `MSG_VMA_ZCOPY`.
pub const MSG_ZCOPY: i32 = 0x0004_0000;
/// `VMA_SND_FLAGS_DUMMY`.
pub const SEND_DUMMY: i32 = 0x400;

/// `SO_VMA_GET_API`.
pub const SO_GET_API: i32 = 2800;
/// `SO_VMA_USER_DATA`.
pub const SO_USER_DATA: i32 = 2801;
/// `SO_VMA_RING_ALLOC_LOGIC`.
pub const SO_RING_ALLOC_LOGIC: i32 = 2810;
/// `SO_VMA_RING_USER_MEMORY`.
pub const SO_RING_USER_MEMORY: i32 = 2811;
/// `SO_VMA_FLOW_TAG`.
pub const SO_FLOW_TAG: i32 = 2820;
/// `SO_VMA_SHUTDOWN_RX`.
pub const SO_SHUTDOWN_RX: i32 = 2821;

/// `CMSG_VMA_IOCTL_USER_ALLOC`.
pub const CMSG_USER_ALLOC: i32 = 2900;

/// Values that a receive callback returns: `VMA_PACKET_*`.
pub mod verdict {
    pub const DROP: i32 = 0;
    pub const RECV: i32 = 1;
    pub const HOLD: i32 = 2;
}

/// `VMA_SOCKETXTREME_PACKET`.
pub const EVENT_PACKET: u64 = 1 << 32;
/// `VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED`.
pub const EVENT_NEW_CONNECTION: u64 = 1 << 33;

/// Bits of [`Api::supported`]: `VMA_EXTRA_API_*`.
pub mod function {
    pub const REGISTER_RECV_CALLBACK: u64 = 1 << 0;
    pub const RECVFROM_ZCOPY: u64 = 1 << 1;
    pub const FREE_PACKETS: u64 = 1 << 2;
    pub const ADD_CONF_RULE: u64 = 1 << 3;
    pub const THREAD_OFFLOAD: u64 = 1 << 4;
    pub const DUMP_FD_STATS: u64 = 1 << 5;
    pub const SOCKETXTREME_POLL: u64 = 1 << 6;
    pub const SOCKETXTREME_FREE_VMA_PACKETS: u64 = 1 << 7;
    pub const SOCKETXTREME_REF_VMA_BUFF: u64 = 1 << 8;
    pub const SOCKETXTREME_FREE_VMA_BUFF: u64 = 1 << 9;
    pub const GET_SOCKET_RINGS_NUM: u64 = 1 << 10;
    pub const GET_SOCKET_RINGS_FDS: u64 = 1 << 11;
    pub const GET_SOCKET_TX_RING_FD: u64 = 1 << 12;
    pub const GET_SOCKET_NETWORK_HEADER: u64 = 1 << 13;
    pub const GET_RING_DIRECT_DESCRIPTORS: u64 = 1 << 14;
    pub const ADD_RING_PROFILE: u64 = 1 << 16;
    pub const REGISTER_MEMORY_ON_RING: u64 = 1 << 17;
    pub const DEREGISTER_MEMORY_ON_RING: u64 = 1 << 18;
    pub const MODIFY_RING: u64 = 1 << 20;
    pub const IOCTL: u64 = 1 << 21;
}
