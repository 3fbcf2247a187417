/* Control messages, socket options, and how much a socket holds. */
#include "prober.h"

#include <linux/net_tstamp.h>
#include <netinet/udp.h>

#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif

static void message_shown(int fd, size_t control_room, int flags)
{
	char control[512];
	struct sockaddr_in from;
	struct msghdr message = { .msg_name = &from, .msg_namelen = sizeof from,
		.msg_iov = &(struct iovec){ room, 100 }, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = control_room };
	memset(control, 0xdd, sizeof control);
	DO(recvmsg(fd, &message, flags));
	show_message(&message);
	for (size_t i = control_room; i < sizeof control; i++)
		if ((unsigned char)control[i] != 0xdd) {
			line("  control byte %zu behind the room was written", i - control_room);
			break;
		}
}

static const struct {
	const char *name;
	int level, option, value;
} requests[] = {
	{ "IP_PKTINFO", IPPROTO_IP, IP_PKTINFO, 1 },
	{ "IP_RECVTTL", IPPROTO_IP, IP_RECVTTL, 1 },
	{ "IP_RECVTOS", IPPROTO_IP, IP_RECVTOS, 1 },
	{ "IP_RECVORIGDSTADDR", IPPROTO_IP, IP_RECVORIGDSTADDR, 1 },
	{ "SO_TIMESTAMP", SOL_SOCKET, SO_TIMESTAMP, 1 },
	{ "SO_TIMESTAMPNS", SOL_SOCKET, SO_TIMESTAMPNS, 1 },
	/* The last one counts where all are set. */
	{ "SO_TIMESTAMPING of the adapter", SOL_SOCKET, SO_TIMESTAMPING,
	  SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE },
	{ "SO_TIMESTAMPING of both", SOL_SOCKET, SO_TIMESTAMPING,
	  SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE | SOF_TIMESTAMPING_RX_SOFTWARE |
	  SOF_TIMESTAMPING_SOFTWARE },
	{ "SO_TIMESTAMPING", SOL_SOCKET, SO_TIMESTAMPING,
	  SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE },
	{ "SO_RXQ_OVFL", SOL_SOCKET, SO_RXQ_OVFL, 1 },
};
#define REQUESTS (sizeof requests / sizeof *requests)

static void one_by_one(void)
{
	int there = peer_open(PEER, 6000);
	peer_set(there, IPPROTO_IP, IP_TTL, 33);
	peer_set(there, IPPROTO_IP, IP_TOS, 0x48);
	for (size_t i = 0; i < REQUESTS; i++) {
		int fd = udp(5000);
		line("%s", requests[i].name);
		set(fd, requests[i].level, requests[i].option, requests[i].value);
		if (strstr(requests[i].name, "TIMESTAMP"))
			usleep(150000); /* the kernel begins to stamp when a worker thread of its has run */
		peer_say(there, 5000, "one");
		peer_say(there, 5000, "two");
		barrier();
		message_shown(fd, 256, MSG_PEEK);
		message_shown(fd, 256, 0);
		set(fd, requests[i].level, requests[i].option, 0);
		message_shown(fd, 256, 0);
		close(fd);
	}
	peer_close(there);
}

/* A stamp asked for when the datagram is already queued. */
static void late_request(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	peer_say(there, 5000, "one");
	barrier();
	for (size_t i = 0; i < REQUESTS; i++)
		set(fd, requests[i].level, requests[i].option, requests[i].value);
	message_shown(fd, 256, 0);
	peer_close(there);
}

static void all_at_once(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	for (size_t i = 0; i < REQUESTS; i++)
		set(fd, requests[i].level, requests[i].option, requests[i].value);
	peer_say(there, 5000, "all");
	barrier();
	static const int rooms[] = { 256, 0, 1, 15, 16, 17, 20, 24, 31, 32, 33, 40, 56, 60, 64, 80, 88,
		96, 100, 104, 110, 112, 128, 136, 144, 160, 168, 176, 192 };
	for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
		line("room for %d", rooms[i]);
		message_shown(fd, rooms[i], MSG_PEEK);
	}
	struct msghdr message = { .msg_iov = &(struct iovec){ room, 100 }, .msg_iovlen = 1,
		.msg_control = NULL, .msg_controllen = 0 };
	DO(recvmsg(fd, &message, MSG_PEEK));
	show_message(&message);
	message.msg_controllen = 100;
	DO(recvmsg(fd, &message, MSG_PEEK));
	line("  controllen %zu, flags %#x", (size_t)message.msg_controllen, message.msg_flags);
	receive_from_shown(fd, 100, 0);
	/* A connected socket, and one bound to the address, tell the same. */
	int exact = udp_at(HOST, 5001);
	set(exact, IPPROTO_IP, IP_PKTINFO, 1);
	set(exact, IPPROTO_IP, IP_RECVORIGDSTADDR, 1);
	DO(connect(exact, ADDRESS(PEER, 6000)));
	peer_say(there, 5001, "exact");
	barrier();
	message_shown(exact, 256, 0);
	/* And so does recvmmsg. */
	char control[256];
	struct mmsghdr many = { .msg_hdr = { .msg_iov = &(struct iovec){ room, 100 },
		.msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control } };
	peer_say(there, 5001, "exact");
	barrier();
	DO(recvmmsg(exact, &many, 1, 0, NULL));
	show_message(&many.msg_hdr);
	peer_close(there);
}

/* What the error queue has, soon. */
static void stamps_shown(int fd, int count)
{
	for (int i = 0; i < count; i++) {
		struct pollfd queue = { .fd = fd, .events = 0 };
		DO(poll(&queue, 1, 300));
		line("  events %#x", queue.revents);
		char control[512];
		struct msghdr message = { .msg_iov = &(struct iovec){ room, 100 }, .msg_iovlen = 1,
			.msg_control = control, .msg_controllen = sizeof control };
		if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
			line("  nothing, errno %d", errno);
			continue;
		}
		for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
			struct timespec stamp;
			memcpy(&stamp, CMSG_DATA(at), sizeof stamp);
			if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_TIMESTAMPING)
				line("  a stamp, %s", stamp.tv_sec ? "set" : "unset");
		}
	}
}

/* Stamps of what is sent: asked for all, for one message, and for no more. */
static void of_sending(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	peer_say(there, 5000, "before");
	barrier();
	set(fd, SOL_SOCKET, SO_TIMESTAMPING,
	    SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_TX_SCHED | SOF_TIMESTAMPING_SOFTWARE);
	receive_from_shown(fd, 100, 0);
	DO(sendto(fd, "stamped", 7, 0, ADDRESS(PEER, 6000)));
	stamps_shown(fd, 3);
	peer_say(there, 5000, "after");
	barrier();
	receive_from_shown(fd, 100, 0);

	int one = udp(5001);
	set(one, SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_SOFTWARE);
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(uint32_t))];
	} control = { .header = { CMSG_LEN(sizeof(uint32_t)), SOL_SOCKET, SO_TIMESTAMPING } };
	uint32_t wanted = SOF_TIMESTAMPING_TX_SOFTWARE;
	memcpy(CMSG_DATA(&control.header), &wanted, sizeof wanted);
	struct sockaddr_in to = at(PEER, 6000);
	struct msghdr message = { .msg_name = &to, .msg_namelen = sizeof to,
		.msg_iov = &(struct iovec){ "one", 3 }, .msg_iovlen = 1,
		.msg_control = &control, .msg_controllen = sizeof control };
	DO(sendto(one, "before", 6, 0, ADDRESS(PEER, 6000)));
	DO(sendmsg(one, &message, 0));
	stamps_shown(one, 2);
	peer_say(there, 5001, "after");
	barrier();
	receive_from_shown(one, 100, 0);
	peer_close(there);
}

const probe_case ancillary_cases[] = {
	{ "one_by_one", one_by_one, false },
	{ "late_request", late_request, false },
	{ "all_at_once", all_at_once, false },
	{ "of_sending", of_sending, true },
	{ NULL, NULL, false },
};

static const struct {
	const char *name;
	int level, option;
} integers[] = {
#define S(name) { #name, SOL_SOCKET, name }
#define I(name) { #name, IPPROTO_IP, name }
	S(SO_REUSEADDR), S(SO_REUSEPORT), S(SO_BROADCAST), S(SO_SNDBUF), S(SO_RCVBUF),
	S(SO_SNDBUFFORCE), S(SO_RCVBUFFORCE), S(SO_PRIORITY), S(SO_KEEPALIVE), S(SO_DEBUG),
	S(SO_RCVLOWAT), S(SO_SNDLOWAT), S(SO_OOBINLINE), S(SO_PASSCRED), S(SO_BUSY_POLL),
	S(SO_INCOMING_CPU), S(SO_ZEROCOPY), S(SO_SELECT_ERR_QUEUE), S(SO_TIMESTAMP),
	S(SO_TIMESTAMPNS), S(SO_TIMESTAMPING), S(SO_RXQ_OVFL), S(SO_MARK), S(SO_NO_CHECK),
	S(SO_BINDTOIFINDEX), S(SO_TYPE), S(SO_DOMAIN), S(SO_PROTOCOL), S(SO_ERROR), S(SO_ACCEPTCONN),
	S(SO_DONTROUTE), S(SO_PEEK_OFF), S(SO_MAX_PACING_RATE), S(SO_COOKIE),
	I(IP_TTL), I(IP_TOS), I(IP_MTU_DISCOVER), I(IP_PKTINFO), I(IP_RECVTTL), I(IP_RECVTOS),
	I(IP_RECVORIGDSTADDR), I(IP_RECVERR), I(IP_FREEBIND), I(IP_BIND_ADDRESS_NO_PORT), I(IP_MINTTL),
	I(IP_TRANSPARENT), I(IP_RECVOPTS), I(IP_RETOPTS), I(IP_MTU), I(IP_CHECKSUM), I(IP_UNICAST_IF),
	I(IP_RECVFRAGSIZE), I(IP_NODEFRAG), I(IP_MULTICAST_TTL), I(IP_MULTICAST_LOOP),
	I(IP_MULTICAST_ALL), I(IP_LOCAL_PORT_RANGE),
	{ "UDP_CORK", IPPROTO_UDP, UDP_CORK }, { "UDP_SEGMENT", IPPROTO_UDP, UDP_SEGMENT },
	{ "UDP_GRO", IPPROTO_UDP, UDP_GRO }, { "TCP_NODELAY", IPPROTO_TCP, 1 },
	{ "nonsense", SOL_SOCKET, 9999 }, { "nonsense", IPPROTO_IP, 9999 }, { "level", 9999, 1 },
};

static void read_back(int fd, int level, int option)
{
	union {
		unsigned char bytes[16];
		int number;
	} value;
	memset(&value, 0xaa, sizeof value);
	socklen_t length = sizeof(int);
	DO(getsockopt(fd, level, option, &value, &length));
	if (option == SO_COOKIE && level == SOL_SOCKET)
		return;
	line("  length %d, value %d", (int)length, value.number);
}

static void one_option(const char *name, int level, int option, int there)
{
	static const int values[] = { 1, 0, 2, -1, 7, 64, 100000, 300 };
	for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
		int fd = udp(5000), value = values[i];
		line("%s to %d", name, value);
		read_back(fd, level, option);
		DO(setsockopt(fd, level, option, &value, sizeof value));
		read_back(fd, level, option);
		/* Both directions go on working. */
		peer_say(there, 5000, "in");
		barrier();
		receive_from_shown(fd, 100, MSG_DONTWAIT);
		if (option != UDP_CORK || level != IPPROTO_UDP) {
			DO(sendto(fd, "out", 3, 0, ADDRESS(PEER, 6000)));
			/* Corked, cut into segments, or to an interface that is not there: not now. */
			peer_hears(there);
		}
		close(fd);
	}
	int fd = udp(5000), value = 1;
	unsigned char byte = 1;
	socklen_t length;
	DO(setsockopt(fd, level, option, &byte, 1));
	read_back(fd, level, option);
	DO(setsockopt(fd, level, option, &value, 3));
	DO(setsockopt(fd, level, option, &value, 0));
	DO(setsockopt(fd, level, option, &value, -1));
	DO(setsockopt(fd, level, option, NULL, sizeof value));
	DO(setsockopt(fd, level, option, NULL, 0));
	byte = 0xaa;
	length = 1;
	DO(getsockopt(fd, level, option, &byte, &length));
	if (option != SO_COOKIE || level != SOL_SOCKET)
		line("  length %d, byte %#x", (int)length, byte);
	length = 0;
	DO(getsockopt(fd, level, option, &byte, &length));
	length = -1;
	DO(getsockopt(fd, level, option, &byte, &length));
	length = sizeof value;
	DO(getsockopt(fd, level, option, NULL, &length));
	DO(getsockopt(fd, level, option, &value, NULL));
	close(fd);
}

static void every_integer(void)
{
	int there = peer_open(PEER, 6000);
	for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
		one_option(integers[i].name, integers[i].level, integers[i].option, there);
	peer_close(there);
}

/* Set before the socket is bound, and kept when it is connected: offload comes later than both. */
static void early_options(void)
{
	int there = peer_open(PEER, 6000), fd = DO(socket(AF_INET, SOCK_DGRAM, 0));
	set(fd, IPPROTO_IP, IP_TTL, 11);
	set(fd, IPPROTO_IP, IP_TOS, 0x10);
	set(fd, IPPROTO_IP, IP_RECVTTL, 1);
	set(fd, SOL_SOCKET, SO_RCVBUF, 5000);
	read_back(fd, SOL_SOCKET, SO_RCVBUF);
	DO(bind(fd, ADDRESS(HOST, 5000)));
	DO(connect(fd, ADDRESS(PEER, 6000)));
	DO(send(fd, "early", 5, 0));
	peer_hears(there);
	peer_say(there, 5000, "reply");
	barrier();
	message_shown(fd, 100, 0);
	set(fd, IPPROTO_IP, IP_TTL, 12);
	DO(send(fd, "later", 5, 0));
	peer_hears(there);
	set(fd, IPPROTO_IP, IP_TTL, -1);
	read_back(fd, IPPROTO_IP, IP_TTL);
	DO(send(fd, "default", 7, 0));
	peer_hears(there);
	set(fd, IPPROTO_IP, IP_TOS, 0);
	DO(send(fd, "default", 7, 0));
	peer_hears(there);
	peer_close(there);
}

/* Values that are no integers. */
static void structures(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	struct timeval time = { 1, 500000 };
	struct linger linger = { 1, 3 };
	socklen_t length = sizeof time;
	DO(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time));
	time = (struct timeval){ 0, 0 };
	DO(getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, &length));
	line("  %ld.%06ld, length %d", (long)time.tv_sec, (long)time.tv_usec, (int)length);
	time = (struct timeval){ 0, 1000000 };
	DO(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time));
	DO(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
	linger = (struct linger){ 0, 0 };
	length = sizeof linger;
	DO(getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &length));
	line("  %d %d, length %d", linger.l_onoff, linger.l_linger, (int)length);
	DO(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, 4));
	DO(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, room, 3));
	DO(setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, NULL, 0));
	peer_say(there, 5000, "in");
	barrier();
	receive_from_shown(fd, 100, MSG_DONTWAIT);
	DO(sendto(fd, "out", 3, 0, ADDRESS(PEER, 6000)));
	peer_hears(there);
	TIMED(0, close(fd)); /* lingers not */
	peer_close(there);
}

const probe_case option_cases[] = {
	{ "every_integer", every_integer, true },
	{ "early_options", early_options, false },
	{ "structures", structures, false },
	{ NULL, NULL, false },
};

/* How many datagrams of a size fit; the same but for a tenth, since the kernel counts its buffers
 * by a size that differs between drivers. */
static void fits(int size, int buffer)
{
	int there = peer_open(PEER, 6000), fd = udp(5000), count = 0;
	if (buffer)
		set(fd, SOL_SOCKET, SO_RCVBUF, buffer);
	set(fd, SOL_SOCKET, SO_RXQ_OVFL, 1);
	peer_send(there, HOST, 5000, size, 2000, 0);
	barrier();
	while (recv(fd, room, sizeof room, MSG_DONTWAIT) >= 0)
		count++;
	/* Read by the test with a tolerance. */
	line("~ %d bytes, buffer %d: %d", size, buffer, count);
	peer_say(there, 5000, "after the drops");
	barrier();
	char control[64];
	struct msghdr message = { .msg_iov = &(struct iovec){ room, 100 }, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof control };
	DO(recvmsg(fd, &message, MSG_DONTWAIT));
	struct cmsghdr *first = CMSG_FIRSTHDR(&message);
	uint32_t drops = 0;
	if (first && first->cmsg_type == SO_RXQ_OVFL)
		memcpy(&drops, CMSG_DATA(first), sizeof drops);
	line("  received and dropped together: %d", count + (int)drops);
	peer_close(there);
	close(fd);
}

static void buffer_sizes(void)
{
	fits(64, 0);
	fits(1400, 0);
	fits(64, 20000);
	fits(1400, 20000);
	fits(64, 1);
	fits(1400, 1);
	fits(0, 5000);
}

const probe_case limit_cases[] = {
	{ "buffer_sizes", buffer_sizes, false },
	{ NULL, NULL, false },
};
