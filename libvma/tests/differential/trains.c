/* Trains: a payload that leaves as datagrams of equal size (UDP_SEGMENT), and how it is received (UDP_GRO). */
#include "prober.h"

#include <netinet/udp.h>

static char bytes[ROOM];

static void fill(void)
{
	for (int i = 0; i < ROOM; i++)
		bytes[i] = i * 7 + i / 1000;
}

/* A message with one control message of IPPROTO_UDP, or none if `size` is negative. */
static long send_cut(int fd, int length, int size, int flags)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(uint16_t))];
	} control = { .header = { CMSG_LEN(sizeof(uint16_t)), IPPROTO_UDP, UDP_SEGMENT } };
	uint16_t segment = size;
	memcpy(CMSG_DATA(&control.header), &segment, sizeof segment);
	struct msghdr message = { .msg_iov = &(struct iovec){ bytes, length }, .msg_iovlen = 1 };
	if (size >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof control;
	}
	return sendmsg(fd, &message, flags);
}

/* A message with a control message of IPPROTO_IP and, unless `segment` is 0, one of UDP_SEGMENT behind it. */
static long send_said(int fd, int length, int type, const void *value, size_t size, int segment)
{
	union {
		struct cmsghdr header;
		char bytes[128];
	} control = { .header = { CMSG_LEN(size), IPPROTO_IP, type } };
	struct sockaddr_in to = at(PEER, 6000);
	struct msghdr message = { .msg_name = &to, .msg_namelen = sizeof to,
		.msg_iov = &(struct iovec){ bytes, length }, .msg_iovlen = 1,
		.msg_control = &control, .msg_controllen = CMSG_SPACE(size) };
	memcpy(CMSG_DATA(&control.header), value, size);
	if (segment) {
		uint16_t said = segment;
		struct cmsghdr *second = (struct cmsghdr *)(control.bytes + CMSG_SPACE(size));
		*second = (struct cmsghdr){ CMSG_LEN(sizeof said), IPPROTO_UDP, UDP_SEGMENT };
		memcpy(CMSG_DATA(second), &said, sizeof said);
		message.msg_controllen += CMSG_SPACE(sizeof said);
	}
	return sendmsg(fd, &message, 0);
}

/* As many as were sent, and no more. */
static void all_heard(int there, long length, int size)
{
	long count = length < 0 ? 0 : size > 0 && length > size ? (length + size - 1) / size : 1;
	for (long i = 0; i < count; i++)
		peer_hears(there);
}

static void cut_by_the_option(void)
{
	static const int sizes[] = { 1, 17, 700, WHOLE - 1, WHOLE, 9000, 65535 };
	int there = peer_open(PEER, 6000), fd = udp(5000);
	fill();
	peer_set(there, SOL_SOCKET, SO_RCVBUF, 1 << 20);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		int size = sizes[i];
		line("size %d", size);
		set(fd, IPPROTO_UDP, UDP_SEGMENT, size);
		const int lengths[] = { 0, 1, size - 1, size, size + 1, 2 * size, 3 * size + 2 };
		for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
			if (lengths[j] > WHOLE && size > WHOLE)
				continue; /* see limits() */
			line("length %d", lengths[j]);
			all_heard(there, DO(send(fd, bytes, lengths[j], 0)), size);
		}
	}
	set(fd, IPPROTO_UDP, UDP_SEGMENT, 0);
	all_heard(there, DO(send(fd, bytes, 1000, 0)), 0);
	peer_close(there);
}

static void cut_by_the_call(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	fill();
	DO(connect(fd, ADDRESS(PEER, 6000)));
	all_heard(there, DO(send_cut(fd, 1000, 400, 0)), 400);
	all_heard(there, DO(send(fd, bytes, 1000, 0)), 0);
	set(fd, IPPROTO_UDP, UDP_SEGMENT, 300);
	all_heard(there, DO(send_cut(fd, 1000, 400, 0)), 400);
	all_heard(there, DO(send_cut(fd, 1000, 0, 0)), 0);
	all_heard(there, DO(send_cut(fd, 1000, -1, 0)), 300);
	all_heard(there, DO(write(fd, bytes, 800)), 300);
	struct iovec parts[] = { { bytes, 100 }, { NULL, 0 }, { bytes + 100, 450 }, { bytes + 550, 1 },
		{ bytes + 551, 400 } };
	all_heard(there, DO(writev(fd, parts, 5)), 300);
	all_heard(there, DO(sendto(fd, bytes, 601, 0, ADDRESS(PEER, 6000))), 300);
	struct sockaddr_in to = at(PEER, 6000);
	struct mmsghdr messages[3] = {
		{ .msg_hdr = { .msg_iov = parts, .msg_iovlen = 1 } },
		{ .msg_hdr = { .msg_iov = parts + 2, .msg_iovlen = 1, .msg_name = &to, .msg_namelen = sizeof to } },
		{ .msg_hdr = { .msg_iov = parts, .msg_iovlen = 5 } },
	};
	DO(sendmmsg(fd, messages, 3, 0));
	for (int i = 0; i < 3; i++) {
		line("  %u bytes", messages[i].msg_len);
		all_heard(there, messages[i].msg_len, 300);
	}
	peer_close(there);
}

static void limits(void)
{
	static const struct { int size, length; } odd[] = {
		{ 1, 128 }, { 1, 129 }, { 10, 1280 }, { 10, 1281 }, { 500, 64000 }, { 500, 64001 }, { 510, 65280 },
		{ 520, 65507 }, { 1000, 65508 }, { 1000, 65535 }, { 1000, 65536 },
		{ WHOLE, WHOLE }, { WHOLE + 1, WHOLE }, { WHOLE + 1, WHOLE + 1 }, { WHOLE + 1, 5000 }, { 9000, WHOLE }, { 9000, 9000 },
		{ 65507, 65507 }, { 65535, 65507 }, { 2000, 65507 },
	};
	int there = peer_open(PEER, 6000), fd = udp(5000);
	fill();
	peer_set(there, SOL_SOCKET, SO_RCVBUF, 1 << 20);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
#ifdef WITHIN_ONE_HOST
		if (odd[i].length > odd[i].size * 128L && odd[i].length > 65507)
			continue;
#endif
		line("size %d, length %d", odd[i].size, odd[i].length);
		all_heard(there, DO(send_cut(fd, odd[i].length, odd[i].size, 0)), odd[i].size);
		set(fd, IPPROTO_UDP, UDP_SEGMENT, odd[i].size);
		all_heard(there, DO(send(fd, bytes, odd[i].length, MSG_DONTWAIT)), odd[i].size);
		set(fd, IPPROTO_UDP, UDP_SEGMENT, 0);
	}
	for (int discovery = IP_PMTUDISC_DONT; discovery <= IP_PMTUDISC_OMIT; discovery++) {
		line("path MTU discovery %d", discovery);
		set(fd, IPPROTO_IP, IP_MTU_DISCOVER, discovery);
		all_heard(there, DO(send_cut(fd, 2000, 1000, 0)), 1000);
		all_heard(there, DO(send_cut(fd, 3000, WHOLE + 1, 0)), WHOLE + 1);
	}
	set(fd, SOL_SOCKET, SO_NO_CHECK, 1);
	DO(send_cut(fd, 2000, 1000, 0));
	DO(send_cut(fd, 500, 1000, 0));
	DO(send_cut(fd, 500, 1, 0));
	DO(send_cut(fd, 2000, WHOLE + 1, 0));
	all_heard(there, DO(send_cut(fd, 500, 0, 0)), 0);
	set(fd, SOL_SOCKET, SO_NO_CHECK, 0);
	all_heard(there, DO(send_cut(fd, 500, 250, 0)), 250);
	peer_close(there);
}

static void wrong_messages(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	static const struct { int length, level, type; } odd[] = {
		{ 0, IPPROTO_UDP, UDP_SEGMENT }, { 1, IPPROTO_UDP, UDP_SEGMENT }, { 4, IPPROTO_UDP, UDP_SEGMENT },
		{ 4, IPPROTO_UDP, UDP_GRO }, { 4, IPPROTO_UDP, UDP_CORK }, { 4, IPPROTO_UDP, 99 },
	};
	for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
		char control[64] = { 0 };
		*(struct cmsghdr *)control = (struct cmsghdr){ CMSG_LEN(odd[i].length), odd[i].level, odd[i].type };
		struct msghdr message = { .msg_iov = &(struct iovec){ "wrong", 5 }, .msg_iovlen = 1,
			.msg_control = control, .msg_controllen = CMSG_SPACE(odd[i].length) };
		DO(sendmsg(fd, &message, 0));
	}
	DO(send(fd, "right", 5, 0));
	peer_hears(there);
	peer_close(there);
}

/* What QUIC says of its packets. */
static void said_by_the_call(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	fill();
	for (int round = 0; round < 3; round++) {
		int segment = round == 1 ? 400 : 0;
		for (int tos = 0; tos < 4; tos++)
			all_heard(there, DO(send_said(fd, 1000, IP_TOS, &tos, sizeof tos, segment)), segment);
		all_heard(there, DO(send_said(fd, 1000, IP_TOS, "\2", 1, segment)), segment);
		int ttl = 9;
		all_heard(there, DO(send_said(fd, 1000, IP_TTL, &ttl, sizeof ttl, segment)), segment);
		struct in_pktinfo info = { .ipi_spec_dst = at(HOST, 0).sin_addr };
		all_heard(there, DO(send_said(fd, 1000, IP_PKTINFO, &info, sizeof info, segment)), segment);
		DO(sendto(fd, "plain", 5, 0, ADDRESS(PEER, 6000)));
		peer_hears(there);
		set(fd, IPPROTO_IP, IP_TTL, 77);
	}
	peer_close(there);
}

static void said_wrongly(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	fill();
	static const int odd[] = { -1, 0, 1, 0x20, 0xb8, 0xff, 256 };
	for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
		line("%d", odd[i]);
		all_heard(there, DO(send_said(fd, 1000, IP_TOS, &odd[i], sizeof odd[i], 600)), 600);
		all_heard(there, DO(send_said(fd, 1000, IP_TTL, &odd[i], sizeof odd[i], 600)), 600);
		DO(send_said(fd, 1000, IP_TOS, &odd[i], 2, 0));
		DO(send_said(fd, 1000, IP_TTL, &odd[i], 1, 0));
	}
	static const char *const sources[] = { "10.98.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255" };
	for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
		struct in_pktinfo info = { .ipi_spec_dst = at(sources[i], 0).sin_addr };
		line("%s", sources[i]);
		all_heard(there, DO(send_said(fd, 1000, IP_PKTINFO, &info, sizeof info, 600)), 600);
		info.ipi_ifindex = 4000;
		DO(send_said(fd, 1000, IP_PKTINFO, &info, sizeof info, 600));
	}
	DO(sendto(fd, "plain", 5, 0, ADDRESS(PEER, 6000)));
	peer_hears(there);
	peer_close(there);
}

static void corked(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	fill();
	DO(connect(fd, ADDRESS(PEER, 6000)));
	set(fd, IPPROTO_UDP, UDP_SEGMENT, 1000);
	DO(send(fd, bytes, 600, MSG_MORE));
	DO(send(fd, bytes, 600, 0));
	all_heard(there, 1200, 1000);
	all_heard(there, DO(send(fd, bytes, 1100, 0)), 1000);
	set(fd, IPPROTO_UDP, UDP_SEGMENT, 0);
	DO(send(fd, bytes, 600, MSG_MORE));
	DO(send_cut(fd, 600, 500, 0));
	peer_hears(there);
	DO(send_cut(fd, 600, 500, MSG_MORE));
	DO(send(fd, bytes, 600, 0));
	all_heard(there, 1200, 500);
	all_heard(there, DO(send_cut(fd, 600, 500, 0)), 500);
	peer_close(there);
}

static bool message_shown(int fd, size_t length, size_t control_room, int flags)
{
	char control[256];
	struct sockaddr_in from;
	struct msghdr message = { .msg_name = &from, .msg_namelen = sizeof from,
		.msg_iov = &(struct iovec){ room, length }, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = control_room };
	wipe();
	long got = DO(recvmsg(fd, &message, flags | MSG_DONTWAIT));
	if (got < 0)
		return false;
	show_bytes("bytes", room, got < (long)length ? got : (long)length);
	show_message(&message);
	return true;
}

/* The peer sends a train to the port of the cases. */
static void train(int there, int length, int size)
{
	peer_set(there, IPPROTO_UDP, UDP_SEGMENT, size);
	peer_send(there, HOST, 5000, length, 1, 0);
	barrier();
}

/* Without UDP_GRO each datagram is a message. */
static void received_cut(void)
{
	static const struct { int length, size; } trains[] = {
		{ 1000, 300 }, { 1000, 500 }, { 1000, 1000 }, { 14000, 1400 }, { 4500, WHOLE }, { 65507, 1400 }, { 128, 1 },
	};
	int there = peer_open(PEER, 6000), fd = udp(5000), waiting;
	set(fd, SOL_SOCKET, SO_RCVBUF, 1 << 20);
	for (size_t i = 0; i < sizeof trains / sizeof *trains; i++) {
		line("%d bytes in %d", trains[i].length, trains[i].size);
		train(there, trains[i].length, trains[i].size);
		while (message_shown(fd, sizeof room, 200, 0))
			;
	}
	train(there, 1000, 300);
	train(there, 700, 400);
	DO(ioctl(fd, FIONREAD, &waiting));
	line("  %d", waiting);
	message_shown(fd, 100, 200, MSG_PEEK);
	message_shown(fd, 100, 200, MSG_PEEK | MSG_TRUNC);
	receive_from_shown(fd, 200, MSG_DONTWAIT);
	receive_shown(fd, 300, MSG_DONTWAIT);
	/* Datagrams that were there before stay cut; later trains do not. */
	set(fd, IPPROTO_UDP, UDP_GRO, 1);
	message_shown(fd, sizeof room, 200, 0);
	train(there, 900, 300);
	while (message_shown(fd, sizeof room, 200, 0))
		;
	DO(ioctl(fd, FIONREAD, &waiting));
	line("  %d", waiting);
	peer_close(there);
}

static void received_whole(void)
{
	static const struct { int length, size; } trains[] = {
		{ 1000, 300 }, { 1000, 500 }, { 1000, 1000 }, { 1000, 1001 }, { 14000, 1400 }, { 4500, WHOLE },
		{ 65507, 1400 }, { 128, 1 },
	};
	int there = peer_open(PEER, 6000), fd = udp(5000), waiting;
	set(fd, SOL_SOCKET, SO_RCVBUF, 1 << 20);
	set(fd, IPPROTO_UDP, UDP_GRO, 1);
	for (size_t i = 0; i < sizeof trains / sizeof *trains; i++) {
		line("%d bytes in %d", trains[i].length, trains[i].size);
		train(there, trains[i].length, trains[i].size);
		while (message_shown(fd, sizeof room, 200, 0))
			;
	}
	train(there, 1000, 300);
	DO(ioctl(fd, FIONREAD, &waiting));
	line("  %d", waiting);
	message_shown(fd, 100, 200, MSG_PEEK);
	message_shown(fd, 100, 200, MSG_PEEK | MSG_TRUNC);
	message_shown(fd, 700, 200, 0);
	message_shown(fd, 700, 200, 0);
	/* Without room for the size. */
	static const size_t rooms[] = { 0, 8, 16, 18, 20, 24 };
	for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
		train(there, 1000, 300);
		message_shown(fd, sizeof room, rooms[i], 0);
	}
	train(there, 1000, 300);
	receive_shown(fd, sizeof room - 100, MSG_DONTWAIT);
	train(there, 1000, 300);
	receive_from_shown(fd, 500, MSG_DONTWAIT);
	receive_from_shown(fd, 500, MSG_DONTWAIT);
	/* Together with others, in the kernel's order. */
	set(fd, IPPROTO_IP, IP_PKTINFO, 1);
	set(fd, IPPROTO_IP, IP_RECVTTL, 1);
	set(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1);
	usleep(50000);
	train(there, 1000, 300);
	message_shown(fd, sizeof room, 200, 0);
	train(there, 300, 300);
	message_shown(fd, sizeof room, 200, 0);
	/* A train that was there before stays whole. */
	train(there, 1000, 300);
	set(fd, IPPROTO_UDP, UDP_GRO, 0);
	message_shown(fd, sizeof room, 200, 0);
	train(there, 1000, 300);
	while (message_shown(fd, sizeof room, 200, 0))
		;
	peer_close(there);
}

const probe_case train_cases[] = {
	{ "cut_by_the_option", cut_by_the_option, false },
	{ "cut_by_the_call", cut_by_the_call, false },
	{ "limits", limits, true }, /* what is too long for any datagram */
	{ "wrong_messages", wrong_messages, true },
	{ "corked", corked, true },
	{ "said_by_the_call", said_by_the_call, false },
	{ "said_wrongly", said_wrongly, true },
	{ "received_cut", received_cut, false },
	{ "received_whole", received_whole, false },
	{ NULL, NULL, false },
};
