//! `vma_extra.h` against its Rust side and against the published numbers, by a program that each
//! compiler makes of the header.

use std::fmt::Write;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use libvma_dev::extra::*;

/// A C expression, the published number, and Rust's.
type Number = (String, u64, u64);

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// Sizes and offsets: the structure, its published size, Rust's, then the same of its members.
macro_rules! layout {
    ($list:ident, $c:literal, $size:literal, $rust:ty $(, $member:literal $at:literal $field:ident)* $(,)?) => {
        $list.push((format!("sizeof({})", $c), $size, size_of::<$rust>() as u64));
        $($list.push((
            format!("offsetof({}, {})", $c, $member), $at, offset_of!($rust, $field) as u64,
        ));)*
    };
}

fn structures() -> Vec<Number> {
    let mut list = Vec::new();
    layout!(list, "struct vma_cmsg_ioctl_user_alloc_t", 17, UserAllocator,
        "flags" 0 flags, "memalloc" 1 allocate, "memfree" 9 free);
    layout!(list, "struct vma_buff_t", 24, Buffer, "next" 0 next, "payload" 8 payload, "len" 16 len);
    layout!(list, "struct vma_packet_desc_t", 40, PacketDescriptor, "num_bufs" 0 buffers,
        "total_len" 8 total_len, "buff_lst" 16 list, "hw_timestamp" 24 hardware_stamp);
    layout!(list, "struct vma_completion_t", 80, Completion, "packet" 0 packet, "events" 40 events,
        "user_data" 48 user_data, "src" 56 source, "listen_fd" 72 listener);
    layout!(list, "struct vma_packet_t", 16, Packet, "packet_id" 0 id, "sz_iov" 8 fragments);
    layout!(list, "struct vma_packets_t", 8, Packets, "n_packet_num" 0 count);
    layout!(list, "struct vma_info_t", 80, Info, "struct_sz" 0 size, "packet_id" 8 packet,
        "src" 16 source, "dst" 24 destination, "payload_sz" 32 payload_len,
        "socket_ready_queue_pkt_count" 40 ready_packets,
        "socket_ready_queue_byte_count" 44 ready_bytes,
        "hw_timestamp" 48 hardware_stamp, "sw_timestamp" 64 software_stamp);
    layout!(list, "struct vma_rate_limit_t", 12, RateLimit, "rate" 0 rate,
        "max_burst_sz" 4 burst_bytes, "typical_pkt_sz" 8 packet_bytes);
    layout!(list, "struct vma_ring_alloc_logic_attr", 20, RingAllocLogic, "comp_mask" 0 mask,
        "ring_alloc_logic" 4 logic, "ring_profile_key" 8 profile_key, "user_id" 12 user_id);
    layout!(list, "struct vma_cq_moderation_attr", 8, CqModeration,
        "cq_moderation_count" 0 count, "cq_moderation_period_usec" 4 period_usec);
    layout!(list, "struct vma_modify_ring_attr", 16, ModifyRing, "comp_bit_mask" 0 mask,
        "ring_fd" 4 ring, "cq_moderation" 8 change, "cq_arm" 8 change);
    layout!(list, "struct vma_packet_queue_ring_attr", 4, PacketQueue, "comp_mask" 0 mask);
    layout!(list, "struct vma_external_mem_attr", 4, ExternalMemory, "comp_mask" 0 mask);
    layout!(list, "struct vma_ring_type_attr", 12, RingType, "comp_mask" 0 mask,
        "ring_type" 4 kind, "ring_pktq" 8 of_kind, "ring_ext" 8 of_kind);
    layout!(list, "struct dev_data", 12, DevData, "vendor_id" 0 vendor,
        "vendor_part_id" 4 vendor_part, "device_cap" 8 capabilities);
    layout!(list, "struct hw_cq_data", 48, CqData, "buf" 0 buffer, "dbrec" 8 doorbell_record,
        "cq_size" 16 entries, "cqe_size" 20 entry_size, "cqn" 24 number, "uar" 32 uar,
        "cons_idx" 40 consumer_index);
    layout!(list, "struct hw_wq_data", 72, WqData, "buf" 0 buffer, "wqe_cnt" 8 entries,
        "stride" 12 stride, "dbrec" 16 doorbell_record, "cq_data" 24 completions);
    layout!(list, "struct hw_rq_data", 88, RqData, "wq_data" 0 queue, "head" 72 head, "tail" 80 tail);
    layout!(list, "struct hw_sq_data", 96, SqData, "wq_data" 0 queue, "sq_num" 72 number,
        "bf" 80 blue_flame);
    list.push((
        "offsetof(struct hw_sq_data, bf.size)".into(),
        88,
        80 + offset_of!(BlueFlame, size) as u64,
    ));
    list.push((
        "offsetof(struct hw_sq_data, bf.offset)".into(),
        92,
        80 + offset_of!(BlueFlame, offset) as u64,
    ));
    layout!(list, "struct vma_mlx_hw_device_data", 200, DeviceData, "valid_mask" 0 valid,
        "dev_data" 4 device, "sq_data" 16 send, "rq_data" 112 receive);
    list
}

fn table() -> Vec<Number> {
    let mut list = Vec::new();
    layout!(list, "struct vma_api_t", 168, Api,
        "register_recv_callback" 0 register_recv_callback,
        "recvfrom_zcopy" 8 recvfrom_zcopy,
        "free_packets" 16 free_packets,
        "add_conf_rule" 24 add_conf_rule,
        "thread_offload" 32 thread_offload,
        "socketxtreme_poll" 40 socketxtreme_poll,
        "get_socket_rings_num" 48 get_socket_rings_num,
        "get_socket_rings_fds" 56 get_socket_rings_fds,
        "get_socket_tx_ring_fd" 64 get_socket_tx_ring_fd,
        "socketxtreme_free_vma_packets" 72 socketxtreme_free_vma_packets,
        "socketxtreme_ref_vma_buff" 80 socketxtreme_ref_vma_buff,
        "socketxtreme_free_vma_buff" 88 socketxtreme_free_vma_buff,
        "dump_fd_stats" 96 dump_fd_stats,
        "vma_add_ring_profile" 104 vma_add_ring_profile,
        "get_socket_network_header" 112 get_socket_network_header,
        "get_ring_direct_descriptors" 120 get_ring_direct_descriptors,
        "register_memory_on_ring" 128 register_memory_on_ring,
        "deregister_memory_on_ring" 136 deregister_memory_on_ring,
        "vma_modify_ring" 144 vma_modify_ring,
        "vma_extra_supported_mask" 152 supported,
        "ioctl" 160 ioctl);
    list
}

fn constants() -> Vec<Number> {
    let of = |name: &str, published: u64, ours: u64| (name.to_owned(), published, ours);
    let mut list = vec![
        of("MSG_VMA_ZCOPY_FORCE", 0x0100_0000, MSG_ZCOPY_FORCE as u64),
        of("MSG_VMA_ZCOPY", 0x0004_0000, MSG_ZCOPY as u64),
        of("VMA_SND_FLAGS_DUMMY", 0x400, SEND_DUMMY as u64),
        of("SO_VMA_GET_API", 2800, SO_GET_API as u64),
        of("SO_VMA_USER_DATA", 2801, SO_USER_DATA as u64),
        of("SO_VMA_RING_ALLOC_LOGIC", 2810, SO_RING_ALLOC_LOGIC as u64),
        of("SO_VMA_RING_USER_MEMORY", 2811, SO_RING_USER_MEMORY as u64),
        of("SO_VMA_FLOW_TAG", 2820, SO_FLOW_TAG as u64),
        of("SO_VMA_SHUTDOWN_RX", 2821, SO_SHUTDOWN_RX as u64),
        of("CMSG_VMA_IOCTL_USER_ALLOC", 2900, CMSG_USER_ALLOC as u64),
        of("VMA_PACKET_DROP", 0, verdict::DROP as u64),
        of("VMA_PACKET_RECV", 1, verdict::RECV as u64),
        of("VMA_PACKET_HOLD", 2, verdict::HOLD as u64),
        of("VMA_SOCKETXTREME_PACKET", 1 << 32, EVENT_PACKET),
        of("VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED", 1 << 33, EVENT_NEW_CONNECTION),
        of("sizeof(vma_recv_callback_retval_t)", 4, 4),
        of("sizeof(vma_socketxtreme_events_t)", 8, 8),
        of("sizeof(vma_ring_profile_key)", 4, 4),
        of("sizeof(struct vma_cq_arm_attr)", 0, size_of::<CqArm>() as u64),
    ];
    use function::*;
    let functions = [
        ("REGISTER_RECV_CALLBACK", 0, REGISTER_RECV_CALLBACK),
        ("RECVFROM_ZCOPY", 1, RECVFROM_ZCOPY),
        ("FREE_PACKETS", 2, FREE_PACKETS),
        ("ADD_CONF_RULE", 3, ADD_CONF_RULE),
        ("THREAD_OFFLOAD", 4, THREAD_OFFLOAD),
        ("DUMP_FD_STATS", 5, DUMP_FD_STATS),
        ("SOCKETXTREME_POLL", 6, SOCKETXTREME_POLL),
        ("SOCKETXTREME_FREE_VMA_PACKETS", 7, SOCKETXTREME_FREE_VMA_PACKETS),
        ("SOCKETXTREME_REF_VMA_BUFF", 8, SOCKETXTREME_REF_VMA_BUFF),
        ("SOCKETXTREME_FREE_VMA_BUFF", 9, SOCKETXTREME_FREE_VMA_BUFF),
        ("GET_SOCKET_RINGS_NUM", 10, GET_SOCKET_RINGS_NUM),
        ("GET_SOCKET_RINGS_FDS", 11, GET_SOCKET_RINGS_FDS),
        ("GET_SOCKET_TX_RING_FD", 12, GET_SOCKET_TX_RING_FD),
        ("GET_SOCKET_NETWORK_HEADER", 13, GET_SOCKET_NETWORK_HEADER),
        ("GET_RING_DIRECT_DESCRIPTORS", 14, GET_RING_DIRECT_DESCRIPTORS),
        ("ADD_RING_PROFILE", 16, ADD_RING_PROFILE),
        ("REGISTER_MEMORY_ON_RING", 17, REGISTER_MEMORY_ON_RING),
        ("DEREGISTER_MEMORY_ON_RING", 18, DEREGISTER_MEMORY_ON_RING),
        ("MODIFY_RING", 20, MODIFY_RING),
        ("IOCTL", 21, IOCTL),
    ];
    for (name, bit, ours) in functions {
        list.push(of(&format!("VMA_EXTRA_API_{name}"), 1 << bit, ours));
    }
    // Without a counterpart in Rust: the library does nothing with them.
    let others = [
        ("VMA_IOCTL_USER_ALLOC_FLAG_TX", 1),
        ("VMA_IOCTL_USER_ALLOC_FLAG_RX", 2),
        ("RING_LOGIC_PER_INTERFACE", 0),
        ("RING_LOGIC_PER_IP", 1),
        ("RING_LOGIC_PER_SOCKET", 10),
        ("RING_LOGIC_PER_USER_ID", 11),
        ("RING_LOGIC_PER_THREAD", 20),
        ("RING_LOGIC_PER_CORE", 30),
        ("RING_LOGIC_PER_CORE_ATTACH_THREADS", 31),
        ("RING_LOGIC_LAST", 32),
        ("VMA_RING_ALLOC_MASK_RING_PROFILE_KEY", 1),
        ("VMA_RING_ALLOC_MASK_RING_USER_ID", 2),
        ("VMA_RING_ALLOC_MASK_RING_INGRESS", 4),
        ("VMA_RING_ALLOC_MASK_RING_ENGRESS", 8),
        ("VMA_MODIFY_RING_CQ_MODERATION", 1),
        ("VMA_MODIFY_RING_CQ_ARM", 2),
        ("VMA_RING_PACKET", 0),
        ("VMA_RING_EXTERNAL_MEM", 1),
        ("VMA_RING_ATTR_LAST", 0),
        ("VMA_HW_PP_EN", 1),
        ("VMA_HW_PP_BURST_EN", 8),
        ("DATA_VALID_DEV", 0),
        ("DATA_VALID_SQ", 1),
        ("DATA_VALID_RQ", 2),
    ];
    list.extend(others.map(|(name, value)| of(name, value, value)));
    list
}

/// The values of the expressions, as a program made of the header prints them.
fn numbers(compiler: &[&str], list: &[Number]) -> Vec<u64> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("vma-header-{}-{count}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let name = compiler.join("-").replace(['+', '='], "p");
    let (source, program) = (folder.join(format!("{name}.c")), folder.join(name));
    let mut text =
        String::from("#include <mellanox/vma_extra.h>\n#include <stdio.h>\nint main(void)\n{\n");
    for (expression, ..) in list {
        writeln!(text, "\tprintf(\"%lld\\n\", (long long)({expression}));").expect("memory");
    }
    text.push_str("\treturn vma_get_api() != NULL;\n}\n");
    std::fs::write(&source, text).expect("a source file");
    let output = Command::new(compiler[0])
        .args(&compiler[1..])
        .args(["-Wall", "-Wextra", "-Werror", "-I"])
        .arg(include())
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .output()
        .expect("a compiler");
    assert!(output.status.success(), "{compiler:?}: {}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(&program).env_remove("LD_PRELOAD").output().expect("it runs");
    // Without the library there is no table.
    assert!(output.status.success(), "{compiler:?}: {}", output.status);
    let _ = std::fs::remove_dir_all(&folder);
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| line.parse::<i64>().expect("a number") as u64).collect()
}

const COMPILERS: [&[&str]; 5] = [
    &["gcc", "-std=c11", "-pedantic"],
    &["gcc", "-std=gnu17"],
    &["g++", "-x", "c++", "-std=c++17", "-pedantic"],
    &["clang", "-std=c11"],
    &["clang++", "-x", "c++", "-std=c++17"],
];

fn check(list: &[Number]) {
    for (expression, published, ours) in list {
        assert_eq!(ours, published, "{expression}: Rust's and the published one");
    }
    for compiler in COMPILERS {
        let found = numbers(compiler, list);
        assert_eq!(found.len(), list.len());
        for ((expression, published, _), found) in list.iter().zip(found) {
            // C++ has no empty structures.
            let is_empty = expression.contains("vma_cq_arm_attr") && compiler.contains(&"c++");
            let expected = if is_empty { 1 } else { *published };
            assert_eq!(found, expected, "{expression} by {compiler:?}");
        }
    }
}

// covers: EXT-32, EXT-33, EXT-34
#[test]
fn structures_have_the_published_layout_in_c_cpp_and_rust() {
    check(&structures());
}

#[test]
fn the_table_has_the_published_slots() {
    check(&table());
}

// covers: EXT-31
#[test]
fn constants_have_the_published_values() {
    check(&constants());
}

// covers: EXT-24
#[test]
fn log_levels_have_the_published_values() {
    let levels = [
        ("VLOG_NONE", -1),
        ("VLOG_PANIC", 0),
        ("VLOG_ERROR", 1),
        ("VLOG_WARNING", 2),
        ("VLOG_INFO", 3),
        ("VLOG_DETAILS", 4),
        ("VLOG_DEBUG", 5),
        ("VLOG_FUNC", 6),
        ("VLOG_FINE", 6),
        ("VLOG_FUNC_ALL", 7),
        ("VLOG_FINER", 7),
        ("VLOG_ALL", 8),
    ];
    check(&levels.map(|(name, value)| (name.to_owned(), value as i64 as u64, value as i64 as u64)));
}

#[test]
fn programs_in_c89_and_cpp98_include_the_header_without_a_warning() {
    let folder = std::env::temp_dir().join(format!("vma-old-standards-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let source = folder.join("old.c");
    let text =
        "#include <mellanox/vma_extra.h>\nint main(void) { return vma_get_api() != NULL; }\n";
    std::fs::write(&source, text).expect("a source file");
    for compiler in [
        &["gcc", "-std=c89"][..],
        &["gcc", "-ansi", "-D_GNU_SOURCE"],
        &["g++", "-x", "c++", "-std=c++98"],
        &["clang", "-std=c89"],
        &["clang++", "-x", "c++", "-std=c++98"],
    ] {
        let output = Command::new(compiler[0])
            .args(&compiler[1..])
            .args(["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"])
            .arg(include())
            .arg(&source)
            .output()
            .expect("a compiler");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{compiler:?}: {said}");
    }
    let _ = std::fs::remove_dir_all(&folder);
}

// covers: EXT-08
#[test]
fn callbacks_and_functions_have_the_published_prototypes() {
    // Each assignment is a compiler's error if a type differs.
    let text = "#include <mellanox/vma_extra.h>
        static vma_recv_callback_retval_t callback(int fd, size_t sz_iov, struct iovec iov[],
            struct vma_info_t* vma_info, void *context)
        { (void)fd; (void)sz_iov; (void)iov; (void)vma_info; (void)context; return VMA_PACKET_RECV; }
        void all(struct vma_api_t *api);
        void all(struct vma_api_t *api) {
            vma_recv_callback_t known = callback;
            int (*a)(int, vma_recv_callback_t, void *) = api->register_recv_callback;
            int (*b)(int, void *, size_t, int *, struct sockaddr *, socklen_t *) = api->recvfrom_zcopy;
            int (*c)(int, struct vma_packet_t *, size_t) = api->free_packets;
            int (*d)(const char *) = api->add_conf_rule;
            int (*e)(int, pthread_t) = api->thread_offload;
            int (*f)(int, struct vma_completion_t *, unsigned int, int) = api->socketxtreme_poll;
            int (*g)(int) = api->get_socket_rings_num;
            int (*h)(int, int *, int) = api->get_socket_rings_fds;
            int (*i)(int, struct sockaddr *, socklen_t) = api->get_socket_tx_ring_fd;
            int (*j)(struct vma_packet_desc_t *, int) = api->socketxtreme_free_vma_packets;
            int (*k)(struct vma_buff_t *) = api->socketxtreme_ref_vma_buff;
            int (*l)(struct vma_buff_t *) = api->socketxtreme_free_vma_buff;
            int (*m)(int, int) = api->dump_fd_stats;
            int (*n)(struct vma_ring_type_attr *, int *) = api->vma_add_ring_profile;
            int (*o)(int, void *, uint16_t *) = api->get_socket_network_header;
            int (*p)(int, struct vma_mlx_hw_device_data *) = api->get_ring_direct_descriptors;
            int (*q)(int, void *, size_t, uint32_t *) = api->register_memory_on_ring;
            int (*r)(int, void *, size_t) = api->deregister_memory_on_ring;
            int (*s)(struct vma_modify_ring_attr *) = api->vma_modify_ring;
            int (*t)(void *, size_t) = api->ioctl;
            (void)known; (void)a; (void)b; (void)c; (void)d; (void)e; (void)f; (void)g; (void)h; (void)i;
            (void)j; (void)k; (void)l; (void)m; (void)n; (void)o; (void)p; (void)q; (void)r; (void)s; (void)t;
        }\n";
    let folder = std::env::temp_dir().join(format!("vma-prototypes-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let source = folder.join("prototypes.c");
    std::fs::write(&source, text).expect("a source file");
    for compiler in COMPILERS {
        let output = Command::new(compiler[0])
            .args(&compiler[1..])
            .args(["-Wall", "-Werror", "-fsyntax-only", "-I"])
            .arg(include())
            .arg(&source)
            .output()
            .expect("a compiler");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler:?}: {error}");
    }
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn every_function_of_the_table_is_documented() {
    let text = std::fs::read_to_string(include().join("mellanox/vma_extra.h")).expect("the header");
    let (_, table) = text.split_once("struct VMA_EXTRA_PACKED vma_api_t {").expect("the table");
    let (table, _) = table.split_once("\n};").expect("its end");
    let lines: Vec<&str> = table.lines().collect();
    let mut functions = 0;
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.contains("(*")) {
        functions += 1;
        assert!(lines[at - 1].trim_end().ends_with("*/"), "no comment above {line}");
    }
    assert_eq!(functions, 20);
}

// covers: EXT-27
#[test]
fn the_advised_rate_of_dummy_sends_is_documented() {
    let read = |path: PathBuf| std::fs::read_to_string(path).expect("a document");
    let header = read(include().join("mellanox/vma_extra.h"));
    let (before, _) = header.split_once("#define VMA_SND_FLAGS_DUMMY").expect("the flag");
    let (_, comment) = before.rsplit_once("/*").expect("its comment");
    assert!(comment.contains("At most 50 000 such calls per second"), "{comment}");
    let document = read(include().join("../../docs/extra-api.md"));
    assert!(document.contains("at most 50 000 a second"));
}
