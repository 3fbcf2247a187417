/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The Extra API of libvma: what a program may ask of the library beyond the sockets API.
 *
 *     struct vma_api_t *vma = vma_get_api();
 *     if (vma && (vma->vma_extra_supported_mask & VMA_EXTRA_API_REGISTER_RECV_CALLBACK))
 *         vma->register_recv_callback(fd, on_packet, context);
 *
 * A program is not linked against libvma for this. vma_get_api() asks the library that is preloaded; without one
 * it returns NULL, and the program goes on with plain sockets.
 *
 * Conventions:
 *  - A function returns 0 or a count on success, and -1 with errno on failure, unless its text says otherwise.
 *  - errno is EINVAL for a descriptor that the kernel serves (or that is no socket), EOPNOTSUPP for a function
 *    that this library does not offer. Each bit of vma_extra_supported_mask stands for one function that works;
 *    a pointer is never NULL, also where its bit is 0.
 *  - Every function may be called from any thread. None may be called from a signal handler.
 *  - Lengths are in bytes. Addresses and ports are in network byte order.
 *  - All layouts are those of x86_64; they are the same in C and C++, and do not change between versions. New
 *    functions are appended to the table and get a new bit of the mask.
 *
 * docs/extra-api.md has a longer text with examples.
 */
#ifndef MELLANOX_VMA_EXTRA_H
#define MELLANOX_VMA_EXTRA_H

/* Flexible arrays and numbers of 64 bits are extensions in C89 and C++98: no reason for -pedantic to complain. */
#pragma GCC system_header

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fields of such a structure follow each other without padding. */
#define VMA_EXTRA_PACKED __attribute__((packed))

/* ---- Flags of calls ------------------------------------------------------------------------------------------ */

/* In *flags of recvfrom_zcopy(): fail with EIO rather than copy. */
#define MSG_VMA_ZCOPY_FORCE 0x01000000
/* Out of recvfrom_zcopy(): the buffer holds a struct vma_packets_t. If the bit is 0 it holds plain data. */
#define MSG_VMA_ZCOPY 0x00040000

/*
 * Flag of send(), sendto(), sendmsg() and sendmmsg(): the call goes the whole way of a send up to the point before
 * the frame is given to the device, and nothing is sent. The code and data of that way are in the processor's
 * caches afterwards. The call returns what a real one would. At most 50 000 such calls per second are advised.
 *
 * Errors: EINVAL if the kernel serves the descriptor. EAGAIN on a TCP socket that is not connected or could not
 * send at once: bytes wait, the window is closed, the call has more than one buffer, no byte, more than one
 * segment, or MSG_MORE.
 */
#define VMA_SND_FLAGS_DUMMY 0x400

/* ---- Socket options, level SOL_SOCKET ------------------------------------------------------------------------ */

/* getsockopt() on descriptor -1: the address of the table. Use vma_get_api(). */
#define SO_VMA_GET_API 2800
/*
 * A value of 8 bytes of the program's own for the socket. The default is the descriptor's number. EINVAL if the
 * length is not 8.
 */
#define SO_VMA_USER_DATA 2801
/* struct vma_ring_alloc_logic_attr: which ring a socket uses. */
#define SO_VMA_RING_ALLOC_LOGIC 2810
/* struct iovec: memory for the receive ring. */
#define SO_VMA_RING_USER_MEMORY 2811
/*
 * A mark of 4 bytes for the flows of the socket. The default is the descriptor's number plus 1. EINVAL if the
 * length is not 4, or for 0 and 0xFFFFFFFF.
 */
#define SO_VMA_FLOW_TAG 2820
/*
 * Any value: no flow leads to the socket through the library any more. Packets for it go to the kernel. A UDP socket
 * still sends through the library.
 */
#define SO_VMA_SHUTDOWN_RX 2821

/* ---- Control messages of ioctl() ----------------------------------------------------------------------------- */

/* cmsg_type of a message whose data is a struct vma_cmsg_ioctl_user_alloc_t. cmsg_level is not looked at. */
#define CMSG_VMA_IOCTL_USER_ALLOC 2900

/* Buffers of which direction come from the program's allocator. */
enum {
	VMA_IOCTL_USER_ALLOC_FLAG_TX = 1 << 0,
	VMA_IOCTL_USER_ALLOC_FLAG_RX = 1 << 1
};

/* The allocator of the program. */
struct VMA_EXTRA_PACKED vma_cmsg_ioctl_user_alloc_t {
	uint8_t flags;            /* VMA_IOCTL_USER_ALLOC_FLAG_* */
	void *(*memalloc)(size_t); /* bytes to memory; NULL if there is none */
	void (*memfree)(void *);   /* at the end of the process */
};

/* ---- Packets with their memory ------------------------------------------------------------------------------- */

/*
 * A packet that the program owns until free_packets(). The fragments follow the structure:
 * the next packet begins at &iov[sz_iov].
 */
struct VMA_EXTRA_PACKED vma_packet_t {
	void *packet_id; /* to give back; nothing to dereference */
	size_t sz_iov;   /* number of fragments */
	__extension__ struct iovec iov[];
};

/* The content of recvfrom_zcopy()'s buffer. */
struct VMA_EXTRA_PACKED vma_packets_t {
	size_t n_packet_num; /* number of packets */
	__extension__ struct vma_packet_t pkts[];
};

/* A packet, as a receive callback is told of it. Valid until the callback returns. */
struct VMA_EXTRA_PACKED vma_info_t {
	size_t struct_sz;        /* size of this structure: larger in a later version */
	void *packet_id;         /* for free_packets(), if the callback returns VMA_PACKET_HOLD */
	struct sockaddr_in *src; /* of the packet */
	struct sockaddr_in *dst; /* of the packet: an address of this host, or a group */
	size_t payload_sz;       /* sum of the fragments */
	/* Packets and bytes that wait in the socket for receive calls, without this packet. */
	uint32_t socket_ready_queue_pkt_count;
	uint32_t socket_ready_queue_byte_count;
	struct timespec hw_timestamp; /* of the device; zeros if it makes none */
	struct timespec sw_timestamp; /* CLOCK_REALTIME of its arrival at the library; of a stream of the first byte's */
};

/* The verdict of a receive callback. */
typedef enum {
	VMA_PACKET_DROP = 0, /* the packet is over */
	VMA_PACKET_RECV = 1, /* receive calls get it */
	VMA_PACKET_HOLD = 2  /* the program keeps it until free_packets(); select() and its kin tell of it once */
} vma_recv_callback_retval_t;

/*
 * A receive callback.
 *   fd        the socket, by the number by which the callback was registered
 *   sz_iov    number of fragments, at least 1
 *   iov       the payload's fragments, in order. The memory is valid until the callback returns, or, after
 *             VMA_PACKET_HOLD, until free_packets(); the array itself only until the callback returns.
 *   vma_info  see there
 *   context   as registered
 */
typedef vma_recv_callback_retval_t (*vma_recv_callback_t)(int fd, size_t sz_iov, struct iovec iov[],
							   struct vma_info_t *vma_info, void *context);

/* ---- SocketXtreme -------------------------------------------------------------------------------------------- */

/* Events of a completion beside those of epoll(7), which are in the lower 32 bits. */
__extension__ typedef enum {
	VMA_SOCKETXTREME_PACKET = 1ULL << 32,                 /* a packet came */
	VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED = 1ULL << 33 /* a listener accepted a connection */
} vma_socketxtreme_events_t;

/* A part of a packet. */
struct vma_buff_t {
	struct vma_buff_t *next; /* NULL in the last one */
	void *payload;
	uint16_t len;
};

/* A packet: the program frees it by socketxtreme_free_vma_packets(), or its buffers one by one. */
struct vma_packet_desc_t {
	size_t num_bufs;
	uint16_t total_len; /* sum of the buffers */
	struct vma_buff_t *buff_lst;
	struct timespec hw_timestamp; /* of the device */
};

/* A result of socketxtreme_poll(). */
struct vma_completion_t {
	struct vma_packet_desc_t packet; /* valid with VMA_SOCKETXTREME_PACKET */
	uint64_t events;                 /* vma_socketxtreme_events_t and EPOLL* bits; several may be set */
	uint64_t user_data;              /* SO_VMA_USER_DATA of the socket; by default its descriptor */
	struct sockaddr_in src;          /* sender of the packet, or peer of the new connection */
	int listen_fd;                   /* valid with VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED */
};

/* ---- Rings --------------------------------------------------------------------------------------------------- */

/* Value of SO_MAX_PACING_RATE, instead of a number of bytes per second. */
struct vma_rate_limit_t {
	uint32_t rate;         /* Kbit/s */
	uint32_t max_burst_sz; /* bytes */
	uint16_t typical_pkt_sz; /* bytes */
};

/* How sockets share rings. */
typedef enum {
	RING_LOGIC_PER_INTERFACE = 0,
	RING_LOGIC_PER_IP = 1,
	RING_LOGIC_PER_SOCKET = 10,
	RING_LOGIC_PER_USER_ID = 11,
	RING_LOGIC_PER_THREAD = 20,
	RING_LOGIC_PER_CORE = 30,
	RING_LOGIC_PER_CORE_ATTACH_THREADS = 31,
	RING_LOGIC_LAST = 32
} vma_ring_logic_t;

/* Fields of a struct vma_ring_alloc_logic_attr that count. */
typedef enum {
	VMA_RING_ALLOC_MASK_RING_PROFILE_KEY = 1 << 0,
	VMA_RING_ALLOC_MASK_RING_USER_ID = 1 << 1,
	VMA_RING_ALLOC_MASK_RING_INGRESS = 1 << 2,
	VMA_RING_ALLOC_MASK_RING_ENGRESS = 1 << 3
} vma_ring_alloc_logic_attr_comp_mask;

/* The key of a ring profile, from 1 on. */
typedef int vma_ring_profile_key;

/* Value of SO_VMA_RING_ALLOC_LOGIC. */
struct vma_ring_alloc_logic_attr {
	uint32_t comp_mask; /* VMA_RING_ALLOC_MASK_* */
	vma_ring_logic_t ring_alloc_logic;
	uint32_t ring_profile_key;
	uint32_t user_id;
	uint32_t ingress : 1; /* of what is received */
	uint32_t engress : 1; /* of what is sent */
	uint32_t reserved : 30;
};

/* When a ring interrupts. */
struct vma_cq_moderation_attr {
	uint32_t cq_moderation_count;
	uint32_t cq_moderation_period_usec;
};

/* Nothing so far. Its size is 0 in C and 1 in C++. */
#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wextern-c-compat"
#endif
__extension__ struct vma_cq_arm_attr {
};
#ifdef __clang__
#pragma clang diagnostic pop
#endif

/* Changes that vma_modify_ring() makes. */
typedef enum {
	VMA_MODIFY_RING_CQ_MODERATION = 1 << 0,
	VMA_MODIFY_RING_CQ_ARM = 1 << 1
} vma_modify_ring_mask;

struct vma_modify_ring_attr {
	uint32_t comp_bit_mask; /* VMA_MODIFY_RING_* */
	int ring_fd;
	__extension__ union {
		struct vma_cq_moderation_attr cq_moderation;
		struct vma_cq_arm_attr cq_arm;
	};
};

/* Kinds of rings. */
typedef enum {
	VMA_RING_PACKET = 0,
	VMA_RING_EXTERNAL_MEM = 1
} vma_ring_type;

/* comp_mask of the two structures below. */
enum {
	VMA_RING_ATTR_LAST = 0
};

struct vma_packet_queue_ring_attr {
	uint32_t comp_mask;
};

struct vma_external_mem_attr {
	uint32_t comp_mask;
};

/* A profile of a ring. */
struct vma_ring_type_attr {
	uint32_t comp_mask;
	vma_ring_type ring_type;
	__extension__ union {
		struct vma_packet_queue_ring_attr ring_pktq;
		struct vma_external_mem_attr ring_ext;
	};
};

/* Bits of dev_data.device_cap. */
enum {
	VMA_HW_PP_EN = 1 << 0,      /* paces packets */
	VMA_HW_PP_BURST_EN = 1 << 3 /* paces bursts */
};

struct dev_data {
	uint32_t vendor_id;
	uint32_t vendor_part_id;
	uint32_t device_cap; /* VMA_HW_PP_* */
};

/* A completion queue of a device. */
struct hw_cq_data {
	void *buf;
	volatile uint32_t *dbrec;
	uint32_t cq_size;
	uint32_t cqe_size;
	uint32_t cqn;
	void *uar;
	uint32_t *cons_idx;
};

/* The common part of send and receive queues. */
struct hw_wq_data {
	void *buf;
	uint32_t wqe_cnt;
	uint32_t stride;
	volatile uint32_t *dbrec;
	struct hw_cq_data cq_data;
};

struct hw_rq_data {
	struct hw_wq_data wq_data;
	uint32_t *head;
	uint32_t *tail;
};

struct hw_sq_data {
	struct hw_wq_data wq_data;
	uint32_t sq_num;
	struct {
		void *reg;
		uint32_t size;
		uint32_t offset;
	} bf;
};

/* Bits for the parts of a struct vma_mlx_hw_device_data that hold something. */
typedef enum {
	DATA_VALID_DEV = 0,
	DATA_VALID_SQ = 1,
	DATA_VALID_RQ = 2
} vma_mlx_hw_valid_mask;

struct vma_mlx_hw_device_data {
	uint32_t valid_mask; /* DATA_VALID_* */
	struct dev_data dev_data;
	struct hw_sq_data sq_data;
	struct hw_rq_data rq_data;
};

/* ---- The table ----------------------------------------------------------------------------------------------- */

/* Bits of vma_extra_supported_mask: the functions that this library does. 15 and 19 stand for nothing. */
__extension__ typedef enum {
	VMA_EXTRA_API_REGISTER_RECV_CALLBACK = 1ULL << 0,
	VMA_EXTRA_API_RECVFROM_ZCOPY = 1ULL << 1,
	VMA_EXTRA_API_FREE_PACKETS = 1ULL << 2,
	VMA_EXTRA_API_ADD_CONF_RULE = 1ULL << 3,
	VMA_EXTRA_API_THREAD_OFFLOAD = 1ULL << 4,
	VMA_EXTRA_API_DUMP_FD_STATS = 1ULL << 5,
	VMA_EXTRA_API_SOCKETXTREME_POLL = 1ULL << 6,
	VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS = 1ULL << 7,
	VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF = 1ULL << 8,
	VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF = 1ULL << 9,
	VMA_EXTRA_API_GET_SOCKET_RINGS_NUM = 1ULL << 10,
	VMA_EXTRA_API_GET_SOCKET_RINGS_FDS = 1ULL << 11,
	VMA_EXTRA_API_GET_SOCKET_TX_RING_FD = 1ULL << 12,
	VMA_EXTRA_API_GET_SOCKET_NETWORK_HEADER = 1ULL << 13,
	VMA_EXTRA_API_GET_RING_DIRECT_DESCRIPTORS = 1ULL << 14,
	VMA_EXTRA_API_ADD_RING_PROFILE = 1ULL << 16,
	VMA_EXTRA_API_REGISTER_MEMORY_ON_RING = 1ULL << 17,
	VMA_EXTRA_API_DEREGISTER_MEMORY_ON_RING = 1ULL << 18,
	VMA_EXTRA_API_MODIFY_RING = 1ULL << 20,
	VMA_EXTRA_API_IOCTL = 1ULL << 21
} vma_extra_api_mask;

/* The table that vma_get_api() returns. Valid for the life of the process; nothing is to be released. */
struct VMA_EXTRA_PACKED vma_api_t {
	/*
	 * Has `callback` called for every packet of socket `s` before receive calls can get it; NULL: no more.
	 * It is called in a thread of the program, inside a receive call or select(), poll(), epoll_wait() or one
	 * of their kin, on any descriptor. No lock is held: it may call every function of the sockets API, may
	 * close `s`, and may register another callback. A blocking receive call on `s` itself would wait for
	 * ever, for packets of one socket come one after another. While it runs nothing is received in its
	 * thread: if it is slow, packets may be lost.
	 * Errors: EINVAL.
	 */
	int (*register_recv_callback)(int s, vma_recv_callback_t callback, void *context);

	/*
	 * Receives as recvfrom(), but lends the memory where the data lie. `*flags` takes MSG_* of recvmsg() and
	 * MSG_VMA_ZCOPY_FORCE. If MSG_VMA_ZCOPY is set in `*flags` afterwards, `buf` holds a struct vma_packets_t,
	 * whose packets are the program's until free_packets(); otherwise plain data (what came through the
	 * kernel, or with MSG_PEEK). Of a UDP socket it is one packet, of which as many fragments are told as
	 * have room; a TCP socket keeps what finds no room. The buffer needs 24 bytes (UDP) or 40 bytes (TCP).
	 * Returns the number of payload bytes; 0 at the end of a stream.
	 * Errors: those of recvfrom(). ENOBUFS: `len` is too small. EIO: MSG_VMA_ZCOPY_FORCE, and the datagram
	 * came through the kernel; an ordinary receive call gets it. EFAULT. It is a cancellation point.
	 */
	int (*recvfrom_zcopy)(int s, void *buf, size_t len, int *flags, struct sockaddr *from,
			      socklen_t *fromlen);

	/*
	 * Gives back packets of recvfrom_zcopy(), or held by a callback; their memory must not be touched any
	 * more. `count` packets begin at `pkts`: on a TCP socket each is followed by its sz_iov fragments, on a
	 * UDP socket it is an array of plain structures. Packets outlive close(): give them back by the
	 * number that the socket had. A packet that a callback is about to hold may be given back before it returns.
	 * Errors: EINVAL. ENOENT: a packet is not of this socket, or was given back before; those ahead of it in
	 * the array have been given back. EFAULT.
	 */
	int (*free_packets)(int s, struct vma_packet_t *pkts, size_t count);

	/*
	 * Adds a rule with the text of a line in libvma.conf, before all others of this program. It counts for
	 * what sockets decide from now on. `line` may have several statements and lines.
	 * Returns 0, or 1 if something in it is not understood (it is logged, and nothing is added); errno stays.
	 */
	int (*add_conf_rule)(const char *line);

	/*
	 * Whether sockets that thread `tid` makes from now on are served by the library (not 0) or by the kernel
	 * (0), instead of VMA_OFFLOADED_SOCKETS. Rules of libvma.conf still count. Connections that accept()
	 * returns are as their listener.
	 * Returns 0, or -1 if the library cannot start.
	 */
	int (*thread_offload)(int offload, pthread_t tid);

	/*
	 * Fills at most `ncompletions` entries with what happened on the sockets of a ring. `fd` is a ring of
	 * get_socket_rings_fds(), `flags` is 0. Returns how many, 0 if nothing happened. Threads may share a ring.
	 * Errors: EOPNOTSUPP without VMA_SOCKETXTREME=1. EBADFD: no ring. EINVAL: NULL, or no entry. EFAULT.
	 */
	int (*socketxtreme_poll)(int fd, struct vma_completion_t *completions, unsigned int ncompletions,
				 int flags);

	/* Number of rings that a socket receives from: 1 with VMA_SOCKETXTREME=1, otherwise 0. */
	int (*get_socket_rings_num)(int fd);

	/*
	 * Writes the descriptors of these rings: one, which all sockets of the process share, for socketxtreme_poll()
	 * alone. Returns how many were written, 0 if there is none. Errors: EINVAL: NULL, or no room. EMFILE.
	 */
	int (*get_socket_rings_fds)(int fd, int *ring_fds, int ring_fds_sz);

	/*
	 * The ring by which a UDP socket sends to an address. Errors: EINVAL: NULL, or not a served socket.
	 * ENOSYS: TCP. ENODATA: nothing was sent there so far.
	 */
	int (*get_socket_tx_ring_fd)(int sock_fd, struct sockaddr *to, socklen_t tolen);

	/*
	 * Gives back packets of socketxtreme_poll(), with all their buffers that have no other reference, also those of
	 * a closed socket and in another thread. Returns 0.
	 * Errors: EINVAL: one is unknown, those before it are given back. EFAULT, EOPNOTSUPP.
	 */
	int (*socketxtreme_free_vma_packets)(struct vma_packet_desc_t *packets, int num);

	/* One more reference to a buffer. Returns how many there are. Errors: EINVAL, EOPNOTSUPP. */
	int (*socketxtreme_ref_vma_buff)(struct vma_buff_t *buff);

	/* One reference less. Returns how many are left; at 0 the buffer is gone. Errors: EINVAL, EOPNOTSUPP. */
	int (*socketxtreme_free_vma_buff)(struct vma_buff_t *buff);

	/*
	 * Logs what is known of a descriptor, or of all for 0, at a level of vlog_levels_t. Lines finer than
	 * VMA_TRACELEVEL are not written; another number counts as VLOG_INFO.
	 * Returns 0, or -1 if the program has had no socket so far.
	 */
	int (*dump_fd_stats)(int fd, int log_level);

	/* Registers a profile of rings; the same one gets the same key, written to `key`. */
	int (*vma_add_ring_profile)(struct vma_ring_type_attr *profile, vma_ring_profile_key *key);

	/*
	 * Copies the headers of the packets to the connected peer to `ptr` and their length to `*len`, which says
	 * how much room there is. `ptr` NULL: the length only.
	 * Errors: EINVAL. ENOTCONN: no peer. ENOBUFS: not enough room.
	 */
	int (*get_socket_network_header)(int fd, void *ptr, uint16_t *len);

	/* The queues of a ring with external memory, for a program that drives the device itself. */
	int (*get_ring_direct_descriptors)(int ring_fd, struct vma_mlx_hw_device_data *data);

	/* Lets a ring with external memory send from a region; its key is written to `key`. Errors: EINVAL. */
	int (*register_memory_on_ring)(int ring_fd, void *addr, size_t length, uint32_t *key);

	/* Ends that. */
	int (*deregister_memory_on_ring)(int ring_fd, void *addr, size_t length);

	/* Changes how a ring interrupts. */
	int (*vma_modify_ring)(struct vma_modify_ring_attr *mr_data);

	/* VMA_EXTRA_API_* bits of the functions that work. */
	uint64_t vma_extra_supported_mask;

	/*
	 * Takes control messages, each at a multiple of sizeof(size_t). A type that is not known is skipped.
	 * CMSG_VMA_IOCTL_USER_ALLOC counts before the first socket only. NULL is no message, and 0.
	 * Errors: EINVAL: a length that cannot be. EOPNOTSUPP: a message that this library does not act upon.
	 */
	int (*ioctl)(void *cmsg_hdr, size_t cmsg_len);
};

/* Levels of dump_fd_stats(). */
#ifndef VMA_EXTRA_NO_LOG_LEVELS
typedef enum {
	VLOG_NONE = -1,
	VLOG_PANIC = 0,
	VLOG_ERROR = 1,
	VLOG_WARNING = 2,
	VLOG_INFO = 3,
	VLOG_DETAILS = 4,
	VLOG_DEBUG = 5,
	VLOG_FUNC = 6,
	VLOG_FINE = VLOG_FUNC,
	VLOG_FUNC_ALL = 7,
	VLOG_FINER = VLOG_FUNC_ALL,
	VLOG_ALL = 8
} vlog_levels_t;
#endif

/*
 * The table of the library that is preloaded; NULL without one. A program that has loaded the library by dlopen()
 * calls the getsockopt() of that handle instead, with the same arguments. Call it once, at any time.
 */
static __inline__ struct vma_api_t *vma_get_api(void)
{
	struct vma_api_t *table = NULL;
	socklen_t size = sizeof(table);

	/* Without the library this is an ordinary call on a descriptor that cannot be, so it fails. */
	if (getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &table, &size) != 0 || size != sizeof(table))
		return NULL;
	return table;
}

#ifdef __cplusplus
}
#endif

#endif /* MELLANOX_VMA_EXTRA_H */
