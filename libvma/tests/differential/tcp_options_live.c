/* Options of streams that the kernel judges by the state of the connection, or whose effect shows in it. */
#include "prober.h"

#include <linux/net_tstamp.h>

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#define TCP_RTO_MIN_US 45
#define TCP_DELACK_MAX_US 46
#endif

/* The stamp of sending that the error queue has soon. */
static void sent_stamped(int fd)
{
	char control[512];
	struct msghdr message = { .msg_iov = &(struct iovec){ room, 100 }, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof control };
	struct pollfd queue = { .fd = fd };
	DO(send(fd, "stamped", 7, 0));
	DO(poll(&queue, 1, 300));
	line("  events %#x", queue.revents);
	bool is_there = recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0;
	struct cmsghdr *first = is_there ? CMSG_FIRSTHDR(&message) : NULL;
	line("  a stamp: %d", first && first->cmsg_type == SCM_TIMESTAMPING);
}

/* Stamps of what is sent, asked for before and after connecting. */
static void stamps_of_sending(void)
{
	int wanted = SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
	int door = peer_listen(PEER, 6000, 5), early = DO(tcp());
	SET(early, SOL_SOCKET, SO_TIMESTAMPING, wanted);
	DO(connect(early, ADDRESS(PEER, 6000)));
	int there = peer_accept(door);
	sent_stamped(early);
	peer_reads(there, 7);
	int late = DO(tcp());
	DO(connect(late, ADDRESS(PEER, 6000)));
	stream on = { late, peer_accept(door) };
	exchange(on);
	SET(late, SOL_SOCKET, SO_TIMESTAMPING, wanted);
	sent_stamped(late);
	peer_reads(on.there, 7);
	exchange(on);
}

/* Options that the kernel judges by the state of the connection. */
static void of_the_connection(void)
{
	char bytes[64];
	socklen_t length = sizeof bytes;
	stream on = connected();
	exchange(on);
	SET(on.fd, SOL_TCP, TCP_REPAIR_QUEUE, TCP_SEND_QUEUE);
	SET(on.fd, SOL_TCP, TCP_QUEUE_SEQ, 1);
	DO(setsockopt(on.fd, SOL_TCP, TCP_QUEUE_SEQ, bytes, 3));
	exchange(on);
	SET(on.fd, SOL_TCP, TCP_REPAIR, 1);
	GET(on.fd, SOL_TCP, TCP_REPAIR);
	SET(on.fd, SOL_TCP, TCP_REPAIR_QUEUE, TCP_SEND_QUEUE);
	GET(on.fd, SOL_TCP, TCP_REPAIR_QUEUE);
	SET(on.fd, SOL_TCP, TCP_QUEUE_SEQ, 1);
	SET(on.fd, SOL_TCP, TCP_REPAIR, 0);
	exchange(on);
	on = connected();
	DO(setsockopt(on.fd, SOL_TCP, TCP_ULP, "no such one", 11));
	exchange(on);
	SET(on.fd, SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_TX_SOFTWARE);
	exchange(on);
	on = accepted();
	DO(setsockopt(on.fd, SOL_IP, IP_OPTIONS, "\1\1\1", 4));
	DO(getsockopt(on.fd, SOL_IP, IP_OPTIONS, bytes, &length));
	line("  length %d", (int)length);
	exchange(on);
}

/* The headers of the SYN, which the accepted connection tells. */
static void saved_syn(void)
{
	char bytes[200];
	socklen_t length = sizeof bytes;
	int fd = tcp_listener(HOST, 5000, 5);
	SET(fd, SOL_TCP, TCP_SAVE_SYN, 1);
	int there = peer_connect(HOST, 5000), on = DO(accept(fd, NULL, NULL));
	DO(getsockopt(on, SOL_TCP, TCP_SAVED_SYN, bytes, &length));
	line("  length %d, of IPv4: %d", (int)length, length > 0 && bytes[0] >> 4 == 4);
	exchange((stream){ on, there });
}

/* Which values are taken, and rounded. */
static void limits_of_timers(void)
{
	static const int limits[] = { TCP_RTO_MIN_US, TCP_RTO_MAX_MS, TCP_DELACK_MAX_US };
	static const int values[] = { 0, 1, 1000, 50000, 200000, 1000000, 120001, 5000, -1 };
	int fd = DO(tcp());
	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
		for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
			SET(fd, SOL_TCP, limits[i], values[v]);
			GET(fd, SOL_TCP, limits[i]);
		}
	stream on = connected();
	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
		for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
			SET(on.fd, SOL_TCP, limits[i], values[v]);
			GET(on.fd, SOL_TCP, limits[i]);
		}
	exchange(on);
}

const probe_case tcp_live_option_cases[] = {
	{ "of_the_connection", of_the_connection, false, STREAMS_SHARED }, /* it becomes the kernel's */
	{ "saved_syn", saved_syn, false, STREAMS_SHARED },
	{ "limits_of_timers", limits_of_timers, false, STREAMS_OURS },
	{ "stamps_of_sending", stamps_of_sending, false, STREAMS_SHARED },
	{ NULL, NULL, false },
};
