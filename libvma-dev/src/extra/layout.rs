//! The structures of `vma_extra.h`, byte for byte.

use core::ffi::{c_char, c_int, c_uint, c_void};

/// `struct timespec`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Timespec {
    pub seconds: i64,
    pub nanoseconds: i64,
}

/// `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IoVec {
    pub base: *mut c_void,
    pub len: usize,
}

/// `struct sockaddr_in`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SocketAddress {
    pub family: u16,
    /// In network byte order.
    pub port: u16,
    /// In network byte order.
    pub address: u32,
    pub zero: [u8; 8],
}

/// `struct vma_cmsg_ioctl_user_alloc_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed)]
pub struct UserAllocator {
    pub flags: u8,
    pub allocate: Option<unsafe extern "C" fn(usize) -> *mut c_void>,
    pub free: Option<unsafe extern "C" fn(*mut c_void)>,
}

/// `struct vma_buff_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Buffer {
    pub next: *mut Buffer,
    pub payload: *mut c_void,
    pub len: u16,
}

/// `struct vma_packet_desc_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PacketDescriptor {
    pub buffers: usize,
    pub total_len: u16,
    pub list: *mut Buffer,
    pub hardware_stamp: Timespec,
}

/// `struct vma_completion_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Completion {
    pub packet: PacketDescriptor,
    pub events: u64,
    pub user_data: u64,
    pub source: SocketAddress,
    pub listener: c_int,
}

/// `struct vma_packet_t`, without the fragments behind it.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed)]
pub struct Packet {
    pub id: *mut c_void,
    pub fragments: usize,
}

/// `struct vma_packets_t`, without the packets behind it.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed)]
pub struct Packets {
    pub count: usize,
}

/// `struct vma_info_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed)]
pub struct Info {
    pub size: usize,
    pub packet: *mut c_void,
    pub source: *mut SocketAddress,
    pub destination: *mut SocketAddress,
    pub payload_len: usize,
    pub ready_packets: u32,
    pub ready_bytes: u32,
    pub hardware_stamp: Timespec,
    pub software_stamp: Timespec,
}

/// `vma_recv_callback_t`.
pub type ReceiveCallback =
    unsafe extern "C" fn(c_int, usize, *mut IoVec, *mut Info, *mut c_void) -> c_int;

/// `struct vma_rate_limit_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RateLimit {
    /// Kbit/s.
    pub rate: u32,
    pub burst_bytes: u32,
    pub packet_bytes: u16,
}

/// `struct vma_ring_alloc_logic_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RingAllocLogic {
    pub mask: u32,
    pub logic: c_uint,
    pub profile_key: u32,
    pub user_id: u32,
    /// Bit 0: what is received. Bit 1: what is sent.
    pub directions: u32,
}

/// `struct vma_cq_moderation_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqModeration {
    pub count: u32,
    pub period_usec: u32,
}

/// `struct vma_cq_arm_attr`, as C has it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqArm {}

/// The union in [`ModifyRing`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union ModifyRingUnion {
    pub moderation: CqModeration,
    pub arm: CqArm,
}

/// `struct vma_modify_ring_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ModifyRing {
    pub mask: u32,
    pub ring: c_int,
    pub change: ModifyRingUnion,
}

/// `struct vma_packet_queue_ring_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PacketQueue {
    pub mask: u32,
}

/// `struct vma_external_mem_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ExternalMemory {
    pub mask: u32,
}

/// The union in [`RingType`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union RingTypeUnion {
    pub packet_queue: PacketQueue,
    pub external: ExternalMemory,
}

/// `struct vma_ring_type_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RingType {
    pub mask: u32,
    pub kind: c_uint,
    pub of_kind: RingTypeUnion,
}

/// `struct dev_data`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DevData {
    pub vendor: u32,
    pub vendor_part: u32,
    pub capabilities: u32,
}

/// `struct hw_cq_data`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqData {
    pub buffer: *mut c_void,
    pub doorbell_record: *mut u32,
    pub entries: u32,
    pub entry_size: u32,
    pub number: u32,
    pub uar: *mut c_void,
    pub consumer_index: *mut u32,
}

/// `struct hw_wq_data`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct WqData {
    pub buffer: *mut c_void,
    pub entries: u32,
    pub stride: u32,
    pub doorbell_record: *mut u32,
    pub completions: CqData,
}

/// `struct hw_rq_data`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RqData {
    pub queue: WqData,
    pub head: *mut u32,
    pub tail: *mut u32,
}

/// The structure in `struct hw_sq_data`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BlueFlame {
    pub register: *mut c_void,
    pub size: u32,
    pub offset: u32,
}

/// `struct hw_sq_data`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SqData {
    pub queue: WqData,
    pub number: u32,
    pub blue_flame: BlueFlame,
}

/// `struct vma_mlx_hw_device_data`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeviceData {
    pub valid: u32,
    pub device: DevData,
    pub send: SqData,
    pub receive: RqData,
}

/// `struct vma_api_t`: 20 functions and the mask of those that work.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed)]
pub struct Api {
    pub register_recv_callback:
        unsafe extern "C" fn(c_int, Option<ReceiveCallback>, *mut c_void) -> c_int,
    pub recvfrom_zcopy:
        unsafe extern "C" fn(c_int, *mut c_void, usize, *mut c_int, *mut c_void, *mut u32) -> c_int,
    pub free_packets: unsafe extern "C" fn(c_int, *mut Packet, usize) -> c_int,
    pub add_conf_rule: unsafe extern "C" fn(*const c_char) -> c_int,
    /// The thread is a `pthread_t`.
    pub thread_offload: unsafe extern "C" fn(c_int, usize) -> c_int,
    pub socketxtreme_poll: unsafe extern "C" fn(c_int, *mut Completion, c_uint, c_int) -> c_int,
    pub get_socket_rings_num: unsafe extern "C" fn(c_int) -> c_int,
    pub get_socket_rings_fds: unsafe extern "C" fn(c_int, *mut c_int, c_int) -> c_int,
    pub get_socket_tx_ring_fd: unsafe extern "C" fn(c_int, *mut c_void, u32) -> c_int,
    pub socketxtreme_free_vma_packets: unsafe extern "C" fn(*mut PacketDescriptor, c_int) -> c_int,
    pub socketxtreme_ref_vma_buff: unsafe extern "C" fn(*mut Buffer) -> c_int,
    pub socketxtreme_free_vma_buff: unsafe extern "C" fn(*mut Buffer) -> c_int,
    pub dump_fd_stats: unsafe extern "C" fn(c_int, c_int) -> c_int,
    pub vma_add_ring_profile: unsafe extern "C" fn(*mut RingType, *mut c_int) -> c_int,
    pub get_socket_network_header: unsafe extern "C" fn(c_int, *mut c_void, *mut u16) -> c_int,
    pub get_ring_direct_descriptors: unsafe extern "C" fn(c_int, *mut DeviceData) -> c_int,
    pub register_memory_on_ring: unsafe extern "C" fn(c_int, *mut c_void, usize, *mut u32) -> c_int,
    pub deregister_memory_on_ring: unsafe extern "C" fn(c_int, *mut c_void, usize) -> c_int,
    pub vma_modify_ring: unsafe extern "C" fn(*mut ModifyRing) -> c_int,
    /// Bits of [`super::function`].
    pub supported: u64,
    pub ioctl: unsafe extern "C" fn(*mut c_void, usize) -> c_int,
}
