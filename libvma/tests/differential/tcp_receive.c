/* Receiving from a stream: every call, waiting for all, looking without taking, throwing away. */
#include "prober.h"

static void whole(void)
{
	stream on = accepted();
	int fd = on.fd;
	TIMED(0, recv(fd, room, 10, MSG_DONTWAIT));
	peer_writes(on.there, "a few words for the reader");
	barrier();
	receive_shown(fd, 2, 0);
	receive_from_shown(fd, 4, 0);
	wipe();
	DO(read(fd, room, 6));
	show_bytes("read", room, 6);
	struct iovec parts[] = { { room, 1 }, { NULL, 0 }, { room + 100, 3 }, { room + 200, 50 } };
	wipe();
	DO(readv(fd, parts, 3));
	show_bytes("first", room, 2);
	show_bytes("second", room + 100, 4);
	struct sockaddr_in from = at("1.2.3.4", 5);
	char control[100];
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 4, .msg_name = &from,
		.msg_namelen = sizeof from, .msg_control = control, .msg_controllen = sizeof control };
	wipe();
	DO(recvmsg(fd, &message, 0));
	show_message(&message);
	show_address("from", &from, message.msg_namelen); /* as it was: a stream has one source */
	show_bytes("third", room + 200, 6);
	struct mmsghdr several[3];
	for (int i = 0; i < 3; i++)
		several[i].msg_hdr = (struct msghdr){ .msg_iov = &parts[i], .msg_iovlen = 1 };
	peer_writes(on.there, "several");
	barrier();
	several[1].msg_hdr.msg_iov = &parts[2];
	DO(recvmmsg(fd, several, 3, MSG_DONTWAIT, NULL));
	line("  lengths %d %d", several[0].msg_len, several[1].msg_len);
	receive_shown(fd, 100, MSG_DONTWAIT);
	receive_shown(fd, 100, MSG_DONTWAIT);
	peer_writes_later(on.there, "late", 50);
	TIMED(50, recv(fd, room, 100, 0));
	peer_writes_later(on.there, "late", 50);
	TIMED(50, read(fd, room, 100));
	exchange(on);
}

static void streams_of_libc(void)
{
	stream on = accepted();
	FILE *file = fdopen(dup(on.fd), "r+");
	peer_writes(on.there, "line one\nline two\n");
	line("  %s", fgets(room, 100, file) ? text_of(room, 8) : "nothing");
	line("  %s", fgets(room, 100, file) ? text_of(room, 8) : "nothing");
	fprintf(file, "answer\n");
	DO(fflush(file));
	peer_reads(on.there, 7);
	peer_shuts(on.there, SHUT_WR, 0);
	line("  %s", fgets(room, 100, file) ? text_of(room, 8) : "nothing");
	line("  end %d, error %d", feof(file), ferror(file));
	DO(fclose(file));
	DO(send(on.fd, "last", 4, 0));
	peer_reads(on.there, 4);
}

/* Nothing wanted: nothing is waited for, or is it? */
static void zero(void)
{
	stream on = accepted();
	struct timeval limit = { 0, 30000 };
	DO(recv(on.fd, room, 0, MSG_DONTWAIT));
	DO(setsockopt(on.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	DO(recv(on.fd, room, 0, 0));
	DO(read(on.fd, room, 0));
	DO(readv(on.fd, NULL, 0));
	struct msghdr message = { 0 };
	DO(recvmsg(on.fd, &message, MSG_DONTWAIT));
	peer_writes(on.there, "bytes");
	barrier();
	DO(recv(on.fd, room, 0, 0));
	DO(recv(on.fd, NULL, 0, MSG_PEEK));
	DO(read(on.fd, NULL, 0));
	DO(recvmsg(on.fd, &message, 0));
	receive_shown(on.fd, 100, 0);
	peer_shuts(on.there, SHUT_WR, 0);
	barrier();
	DO(recv(on.fd, room, 0, 0));
	DO(recv(on.fd, room, 0, MSG_DONTWAIT));
}

static void all(void)
{
	stream on = accepted();
	peer_writes(on.there, "first ");
	peer_writes_later(on.there, "second", 50);
	wipe();
	TIMED(50, recv(on.fd, room, 12, MSG_WAITALL));
	show_bytes("all", room, 12);
	peer_writes(on.there, "a part");
	barrier();
	receive_shown(on.fd, 100, MSG_WAITALL | MSG_DONTWAIT);
	receive_shown(on.fd, 100, MSG_WAITALL | MSG_DONTWAIT);
	struct timeval limit = { 0, 50000 };
	DO(setsockopt(on.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	peer_writes(on.there, "in time");
	TIMED(50, recv(on.fd, room, 100, MSG_WAITALL));
	TIMED(50, recv(on.fd, room, 100, MSG_WAITALL));
	struct iovec parts[] = { { room, 3 }, { room + 100, 5 } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	peer_writes(on.there, "1234");
	peer_writes_later(on.there, "567890", 20);
	TIMED(20, recvmsg(on.fd, &message, MSG_WAITALL));
	show_message(&message);
	show_bytes("second", room + 100, 5);
	receive_shown(on.fd, 100, 0);
	limit.tv_usec = 0;
	DO(setsockopt(on.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	/* A signal ends the waiting, not what came so far. */
	count_signal(SIGALRM, SA_RESTART);
	peer_writes(on.there, "so far");
	alarm_in(50);
	TIMED(50, recv(on.fd, room, 100, MSG_WAITALL));
	SIGNALS();
	/* More than the buffer holds. */
	set(on.fd, SOL_SOCKET, SO_RCVBUF, 10000);
	peer_writes_much(on.there, 60000);
	receive_shown(on.fd, 60000, MSG_WAITALL);
	/* The end. */
	peer_writes(on.there, "the last");
	peer_shuts(on.there, SHUT_WR, 50);
	TIMED(50, recv(on.fd, room, 100, MSG_WAITALL));
	TIMED(0, recv(on.fd, room, 100, MSG_WAITALL));
}

static void peeked(void)
{
	stream on = accepted();
	DO(recv(on.fd, room, 10, MSG_PEEK | MSG_DONTWAIT));
	peer_writes_later(on.there, "look at this", 50);
	TIMED(50, recv(on.fd, room, 4, MSG_PEEK));
	receive_shown(on.fd, 100, MSG_PEEK);
	receive_shown(on.fd, 7, MSG_PEEK | MSG_WAITALL);
	struct iovec parts[] = { { room, 5 }, { room + 100, 2 }, { room + 200, 100 } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 3 };
	wipe();
	DO(recvmsg(on.fd, &message, MSG_PEEK));
	show_message(&message);
	show_bytes("first", room, 5);
	show_bytes("second", room + 100, 2);
	show_bytes("third", room + 200, 5);
	receive_shown(on.fd, 5, 0);
	receive_shown(on.fd, 100, MSG_PEEK);
	peer_writes(on.there, " and more");
	barrier();
	receive_shown(on.fd, 100, MSG_PEEK);
	/* All of it, some of which comes late. */
	peer_writes_later(on.there, ", late", 50);
	TIMED(50, recv(on.fd, room, 22, MSG_PEEK | MSG_WAITALL));
	receive_shown(on.fd, 100, MSG_PEEK | MSG_TRUNC);
	int there = 77;
	DO(ioctl(on.fd, FIONREAD, &there));
	line("  %d", there);
	receive_shown(on.fd, 100, 0);
	DO(ioctl(on.fd, FIONREAD, &there));
	line("  %d", there);
	/* At the end. */
	peer_writes(on.there, "x");
	peer_shuts(on.there, SHUT_WR, 0);
	barrier();
	receive_shown(on.fd, 100, MSG_PEEK | MSG_WAITALL);
	receive_shown(on.fd, 100, 0);
	receive_shown(on.fd, 100, MSG_PEEK);
	receive_shown(on.fd, 100, MSG_PEEK | MSG_WAITALL);
}

/* MSG_TRUNC throws away, and the room is not touched. */
static void thrown_away(void)
{
	stream on = accepted();
	peer_writes(on.there, "0123456789abcdef");
	barrier();
	wipe();
	DO(recv(on.fd, room, 3, MSG_TRUNC));
	line("  untouched: %d", (unsigned char)room[0] == 0xee);
	DO(recv(on.fd, NULL, 2, MSG_TRUNC));
	DO(recv(on.fd, (void *)16, 2, MSG_TRUNC));
	receive_shown(on.fd, 2, 0);
	struct iovec parts[] = { { room, 1 }, { room + 100, 1 } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	DO(recvmsg(on.fd, &message, MSG_TRUNC));
	show_message(&message);
	DO(recv(on.fd, room, 100, MSG_TRUNC | MSG_PEEK));
	receive_shown(on.fd, 1, 0);
	DO(recv(on.fd, NULL, 100, MSG_TRUNC | MSG_DONTWAIT));
	DO(recv(on.fd, NULL, 100, MSG_TRUNC | MSG_DONTWAIT));
	peer_writes_much(on.there, 500000);
	long gone = 0, length;
	while (gone < 500000 && (length = recv(on.fd, NULL, 500000 - gone, MSG_TRUNC)) > 0)
		gone += length;
	line("  %ld thrown away", gone);
	exchange(on);
}

static void counted(void)
{
	stream on = accepted();
	int value = 77;
	DO(ioctl(on.fd, FIONREAD, &value));
	line("  %d", value);
	peer_writes(on.there, "12345");
	barrier();
	DO(ioctl(on.fd, SIOCINQ, &value));
	line("  %d", value);
	peer_writes(on.there, "678");
	barrier();
	DO(ioctl(on.fd, FIONREAD, &value));
	line("  %d", value);
	receive_shown(on.fd, 2, 0);
	DO(ioctl(on.fd, FIONREAD, &value));
	line("  %d", value);
	peer_shuts(on.there, SHUT_WR, 0);
	barrier();
	DO(ioctl(on.fd, FIONREAD, &value)); /* the end is no byte */
	line("  %d", value);
	DO(ioctl(on.fd, FIONREAD, (void *)16));
	receive_shown(on.fd, 100, 0);
	DO(ioctl(on.fd, FIONREAD, &value));
	line("  %d", value);
}

static void after_the_end(void)
{
	stream on = accepted();
	peer_shuts(on.there, SHUT_WR, 50);
	TIMED(50, recv(on.fd, room, 10, 0));
	for (int i = 0; i < 2; i++) {
		DO(recv(on.fd, room, 10, 0));
		DO(read(on.fd, room, 10));
		DO(recv(on.fd, room, 10, MSG_DONTWAIT | MSG_PEEK));
		receive_from_shown(on.fd, 10, 0);
	}
	struct mmsghdr several[2] = { { { .msg_iov = &(struct iovec){ room, 9 }, .msg_iovlen = 1 } } };
	several[1] = several[0];
	DO(recvmmsg(on.fd, several, 2, 0, NULL));
	show_ready(on.fd, POLLIN, 0);
	DO(send(on.fd, "answer", 6, 0));
	peer_reads(on.there, 6);
}

/* SO_RCVLOWAT: when a stream is readable. */
static void low_water(void)
{
	stream on = accepted();
	SET(on.fd, SOL_SOCKET, SO_RCVLOWAT, 8);
	GET(on.fd, SOL_SOCKET, SO_RCVLOWAT);
	peer_writes(on.there, "1234");
	barrier();
	show_ready(on.fd, POLLIN, 20);
	receive_shown(on.fd, 100, MSG_DONTWAIT);
	peer_writes(on.there, "1234");
	peer_writes_later(on.there, "56789", 50);
	struct pollfd wait = { on.fd, POLLIN, 0 };
	TIMED(50, poll(&wait, 1, 1000));
	show_poll(&wait, 1);
	receive_shown(on.fd, 100, 0);
	/* A blocking call waits for as much, or for as much as it wants. What comes then is as much
	 * by itself: the kernel takes the first bytes and forgets them, and would sleep on. */
	peer_writes(on.there, "1234");
	peer_writes_later(on.there, "56789abcdef", 50);
	TIMED(50, recv(on.fd, room, 100, 0));
	peer_writes(on.there, "1234");
	TIMED(0, recv(on.fd, room, 4, 0));
	struct timeval limit = { 0, 50000 };
	DO(setsockopt(on.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	peer_writes(on.there, "1234");
	TIMED(50, recv(on.fd, room, 100, 0));
	/* The end is readable whatever the mark. */
	peer_writes(on.there, "123");
	peer_shuts(on.there, SHUT_WR, 0);
	barrier();
	show_ready(on.fd, POLLIN, 0);
	TIMED(0, recv(on.fd, room, 100, 0));
	SET(on.fd, SOL_SOCKET, SO_RCVLOWAT, 0);
	GET(on.fd, SOL_SOCKET, SO_RCVLOWAT);
	SET(on.fd, SOL_SOCKET, SO_RCVLOWAT, -1);
}

/* Lowered while there is less than it was: an edge. */
static void low_water_changed(void)
{
	stream on = accepted();
	SET(on.fd, SOL_SOCKET, SO_RCVLOWAT, 8);
	peer_writes(on.there, "1234");
	barrier();
	show_ready(on.fd, POLLIN, 0);
	SET(on.fd, SOL_SOCKET, SO_RCVLOWAT, 4);
	show_ready(on.fd, POLLIN, 0);
	SET(on.fd, SOL_SOCKET, SO_RCVLOWAT, 5);
	show_ready(on.fd, POLLIN, 0);
	receive_shown(on.fd, 100, MSG_DONTWAIT);
}

static void limited(void)
{
	stream on = accepted();
	struct timeval limit = { 0, 50000 };
	DO(setsockopt(on.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	TIMED(50, recv(on.fd, room, 10, 0));
	TIMED(50, read(on.fd, room, 10));
	TIMED(50, recv(on.fd, room, 10, MSG_PEEK));
	TIMED(0, recv(on.fd, room, 10, MSG_DONTWAIT));
	peer_writes_later(on.there, "in time", 20);
	TIMED(20, recv(on.fd, room, 10, 0));
	count_signal(SIGALRM, SA_RESTART);
	alarm_in(20);
	TIMED(20, recv(on.fd, room, 10, 0));
	SIGNALS();
	limit.tv_usec = 0;
	DO(setsockopt(on.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	alarm_in(20);
	peer_writes_later(on.there, "late", 60);
	TIMED(60, recv(on.fd, room, 10, 0));
	SIGNALS();
	count_signal(SIGALRM, 0);
	alarm_in(20);
	TIMED(20, recv(on.fd, room, 10, 0));
	alarm_in(20);
	TIMED(20, read(on.fd, room, 10));
	SIGNALS();
	struct mmsghdr several[4];
	struct iovec part = { room, 2 };
	for (int i = 0; i < 4; i++)
		several[i].msg_hdr = (struct msghdr){ .msg_iov = &part, .msg_iovlen = 1 };
	peer_writes(on.there, "1234");
	struct timespec short_time = { 0, 50000000 };
	barrier();
	TIMED(0, recvmmsg(on.fd, several, 4, MSG_WAITFORONE, NULL));
	peer_writes(on.there, "1234");
	peer_writes_later(on.there, "5", 80);
	TIMED(80, recvmmsg(on.fd, several, 4, 0, &short_time));
	exchange(on);
}

static void much(void)
{
	static char bytes[3000000];
	static const size_t sizes[] = { 1, 7, 1448, 4096, 65536, 100000, 1 << 20 };
	stream on = accepted();
	peer_writes_much(on.there, sizeof bytes);
	size_t done = 0;
	for (int i = 0; done < sizeof bytes; i++) {
		size_t size = sizes[i % (sizeof sizes / sizeof *sizes)];
		if (size > sizeof bytes - done)
			size = sizeof bytes - done;
		long length = recv(on.fd, bytes + done, size, i % 5 ? 0 : MSG_WAITALL);
		if (length <= 0)
			break;
		done += length;
	}
	show_bytes("all", bytes, done);
	exchange(on);
	/* Both ways at once. */
	peer_writes_much(on.there, 50000);
	DO(send(on.fd, stream_bytes(50000), 50000, 0));
	receive_shown(on.fd, 50000, MSG_WAITALL);
	peer_reads(on.there, 50000);
}

static void to_nowhere(void)
{
	stream on = accepted();
	void *volatile nowhere = (void *)16;
	struct iovec parts[] = { { room, 4 }, { nowhere, 10 } };
	struct msghdr message = { .msg_iov = parts + 1, .msg_iovlen = 1 };
	socklen_t length = 16;
	peer_writes(on.there, "0123456789");
	barrier();
	DO(recv(on.fd, nowhere, 10, 0));
	DO(recv(on.fd, nowhere, 10, MSG_PEEK));
	DO(read(on.fd, nowhere, 10));
	DO(readv(on.fd, parts + 1, 1));
	DO(readv(on.fd, nowhere, 1));
	DO(recvmsg(on.fd, &message, 0));
	DO(recvmsg(on.fd, nowhere, 0));
	DO(recvmmsg(on.fd, nowhere, 1, 0, NULL));
	DO(readv(on.fd, parts, 2));
	receive_shown(on.fd, 2, MSG_DONTWAIT);
	DO(recvfrom(on.fd, room, 1, 0, nowhere, &length));
	line("  length %d", (int)length);
	DO(recvfrom(on.fd, room, 1, 0, (struct sockaddr *)room, nowhere));
	receive_shown(on.fd, 100, MSG_DONTWAIT);
}

/* An address of a length below nothing, where a stream tells none. */
static void lengths(void)
{
	stream on = connected();
	char name[16];
	struct iovec part = { room, 2 };
	struct mmsghdr message = { { .msg_iov = &part, .msg_iovlen = 1 } };
	socklen_t length = -1;
	peer_writes(on.there, "0123456789abcdef");
	barrier();
	DO(recvfrom(on.fd, room, 2, 0, (struct sockaddr *)name, &length));
	line("  length %d", (int)length);
	length = INT32_MIN;
	DO(recvfrom(on.fd, room, 2, MSG_PEEK, (struct sockaddr *)name, &length));
	line("  length %d", (int)length);
	DO(recvfrom(on.fd, room, 2, 0, NULL, &length));
	line("  length %d", (int)length);
	message.msg_hdr.msg_namelen = -1;
	DO(recvmsg(on.fd, &message.msg_hdr, 0));
	line("  length %d", (int)message.msg_hdr.msg_namelen);
	message.msg_hdr.msg_name = name;
	message.msg_hdr.msg_namelen = -1;
	DO(recvmsg(on.fd, &message.msg_hdr, 0));
	line("  length %d", (int)message.msg_hdr.msg_namelen);
	DO(recvmmsg(on.fd, &message, 1, 0, NULL));
	line("  length %d", (int)message.msg_hdr.msg_namelen);
	message.msg_hdr.msg_namelen = 1000;
	DO(recvmsg(on.fd, &message.msg_hdr, 0));
	line("  length %d", (int)message.msg_hdr.msg_namelen);
	receive_shown(on.fd, 100, MSG_DONTWAIT);
	DO(recvfrom(on.fd, room, 2, MSG_DONTWAIT, (struct sockaddr *)name, &length));
}

/* What comes beside the bytes. */
static void beside(void)
{
	stream on = accepted();
	char control[200];
	struct msghdr message = { .msg_iov = &(struct iovec){ room, 3 }, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof control };
	receive_shown(on.fd, 10, MSG_ERRQUEUE);
	DO(recvmsg(on.fd, &message, MSG_ERRQUEUE));
	SET(on.fd, SOL_SOCKET, SO_TIMESTAMP, 1);
	usleep(50000); /* the kernel begins to stamp a little later */
	peer_writes(on.there, "stamped");
	barrier();
	DO(recvmsg(on.fd, &message, 0));
	show_message(&message);
	SET(on.fd, SOL_SOCKET, SO_TIMESTAMP, 0);
	SET(on.fd, SOL_SOCKET, SO_TIMESTAMPNS, 1);
	message.msg_controllen = sizeof control;
	DO(recvmsg(on.fd, &message, 0));
	show_message(&message);
	SET(on.fd, SOL_SOCKET, SO_TIMESTAMPNS, 0);
	SET(on.fd, SOL_TCP, TCP_INQ, 1);
	peer_writes(on.there, "counted");
	barrier();
	message.msg_controllen = sizeof control;
	DO(recvmsg(on.fd, &message, 0));
	show_message(&message);
	message.msg_controllen = 0;
	DO(recvmsg(on.fd, &message, 0));
	show_message(&message);
	message.msg_controllen = sizeof control;
	message.msg_flags = 0x7777;
	DO(recvmsg(on.fd, &message, MSG_CMSG_CLOEXEC | MSG_NOSIGNAL));
	show_message(&message);
	SET(on.fd, IPPROTO_IP, IP_RECVTTL, 1);
	SET(on.fd, IPPROTO_IP, IP_PKTINFO, 1);
	peer_writes(on.there, "xyz");
	barrier();
	message.msg_controllen = sizeof control;
	DO(recvmsg(on.fd, &message, 0));
	show_message(&message);
}

/* Two threads and one stream: each byte to one of them. */
static volatile long received[2];

static void *reader(void *argument)
{
	int *on = argument;
	char bytes[1000];
	long length;
	while ((length = recv(on[0], bytes, sizeof bytes, 0)) > 0)
		received[on[1]] += length;
	return NULL;
}

static void readers(void)
{
	stream on = accepted();
	pthread_t threads[2];
	int arguments[2][2] = { { on.fd, 0 }, { on.fd, 1 } };
	received[0] = received[1] = 0;
	for (int i = 0; i < 2; i++)
		must("thread", -pthread_create(&threads[i], NULL, reader, arguments[i]));
	peer_writes_much(on.there, 400000);
	peer_shuts(on.there, SHUT_WR, 1);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	line("  %ld in all", received[0] + received[1]);
}

const probe_case tcp_receive_cases[] = {
	{ "whole", whole, false, STREAMS_OURS },
	{ "streams_of_libc", streams_of_libc, false, STREAMS_SHARED }, /* stdio makes it the kernel's */
	{ "zero", zero, false, STREAMS_OURS },
	{ "all", all, false, STREAMS_OURS },
	{ "peeked", peeked, false, STREAMS_OURS },
	{ "thrown_away", thrown_away, false, STREAMS_OURS },
	{ "counted", counted, false, STREAMS_OURS },
	{ "after_the_end", after_the_end, false, STREAMS_OURS },
	{ "low_water", low_water, false, STREAMS_OURS },
	{ "low_water_changed", low_water_changed, false, STREAMS_OURS },
	{ "limited", limited, false, STREAMS_OURS },
	{ "much", much, false, STREAMS_OURS },
	{ "to_nowhere", to_nowhere, false, STREAMS_OURS },
	{ "beside", beside, false, STREAMS_SHARED }, /* time stamps make it the kernel's */
	{ "readers", readers, false, STREAMS_OURS },
	{ "lengths", lengths, false, STREAMS_OURS },
	{ NULL, NULL, false },
};
