/* Every way to receive, with every argument that is odd. */
#include "prober.h"

static void ways(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	for (int i = 0; i < 8; i++)
		peer_send(there, HOST, 5000, 20 + i, 1, 0);
	barrier();
	receive_shown(fd, 100, 0);
	receive_from_shown(fd, 100, 0);
	wipe();
	DO(read(fd, room, 100));
	show_bytes("bytes", room, 100);
	wipe();
	struct iovec parts[] = { { room, 3 }, { NULL, 0 }, { room + 1000, 10 }, { room + 2000, 90 } };
	DO(readv(fd, parts, 4));
	show_bytes("bytes", room, 2100);
	wipe();
	struct sockaddr_in from = { 0 };
	struct msghdr message = { .msg_name = &from, .msg_namelen = sizeof from,
		.msg_iov = parts, .msg_iovlen = 4 };
	DO(recvmsg(fd, &message, 0));
	show_message(&message);
	show_bytes("bytes", room, 2100);
	receive_from_shown(fd, 10, 0); /* the rest is lost */
	receive_from_shown(fd, 100, MSG_WAITALL);
	receive_from_shown(fd, 100, MSG_NOSIGNAL | MSG_CMSG_CLOEXEC);
	receive_from_shown(fd, 100, MSG_DONTWAIT);
	DO(recv(fd, room, 100, MSG_ERRQUEUE));
	DO(recv(fd, room, 100, MSG_ERRQUEUE | MSG_DONTWAIT));
	DO(recv(fd, room, 100, MSG_OOB | MSG_DONTWAIT));
	peer_say(there, 5000, "still here");
	barrier();
	receive_from_shown(fd, 100, MSG_DONTWAIT);
	peer_close(there);
}

static void flags(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	struct msghdr message;
	struct iovec part = { room, 5 };
	peer_say(there, 5000, "a rather long one");
	peer_say(there, 5000, "second");
	barrier();
	receive_from_shown(fd, 100, MSG_PEEK);
	receive_from_shown(fd, 5, MSG_PEEK);
	receive_from_shown(fd, 5, MSG_PEEK | MSG_TRUNC);
	receive_from_shown(fd, 0, MSG_PEEK | MSG_TRUNC);
	message = (struct msghdr){ .msg_iov = &part, .msg_iovlen = 1, .msg_flags = 0x1234 };
	DO(recvmsg(fd, &message, MSG_PEEK));
	show_message(&message);
	DO(recvmsg(fd, &message, MSG_PEEK | MSG_TRUNC));
	show_message(&message);
	DO(recvmsg(fd, &message, MSG_PEEK | MSG_CMSG_CLOEXEC | MSG_DONTWAIT));
	show_message(&message);
	receive_from_shown(fd, 5, MSG_TRUNC);
	receive_from_shown(fd, 100, MSG_TRUNC);
	receive_from_shown(fd, 100, MSG_TRUNC | MSG_DONTWAIT);
	receive_from_shown(fd, 100, MSG_PEEK | MSG_DONTWAIT);
	DO(recv(fd, room, 10, 0x40000000 | MSG_DONTWAIT));
	peer_close(there);
}

static void nothing(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	peer_say(there, 5000, "one");
	peer_say(there, 5000, "two");
	peer_send(there, HOST, 5000, 0, 1, 0);
	peer_say(there, 5000, "three");
	peer_send(there, HOST, 5000, 0, 1, 0);
	barrier();
	DO(read(fd, room, 0)); /* takes none */
	DO(recv(fd, room, 0, MSG_PEEK));
	DO(recv(fd, room, 0, 0)); /* takes one */
	DO(recv(fd, NULL, 0, MSG_PEEK));
	receive_shown(fd, 10, 0);
	struct pollfd wait = { fd, POLLIN, 0 };
	DO(poll(&wait, 1, 0));
	show_poll(&wait, 1);
	int number = -1;
	DO(ioctl(fd, FIONREAD, &number));
	line("  FIONREAD %d", number);
	receive_from_shown(fd, 10, 0); /* empty */
	struct iovec part = { room, 0 };
	DO(readv(fd, &part, 1));
	DO(readv(fd, &part, 0));
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 0 };
	DO(recvmsg(fd, &message, 0));
	show_message(&message);
	DO(read(fd, room, 10)); /* empty */
	DO(recv(fd, room, 0, MSG_DONTWAIT));
	DO(read(fd, room, 0));
	peer_close(there);
}

/* The address's buffer: short, none, and what a call that fails leaves of it. */
static void names(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	static const int lengths[] = { 16, 15, 8, 4, 1, 0, 17, 128, -1, INT32_MIN };
	struct sockaddr_storage from;
	socklen_t length;
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		peer_say(there, 5000, "name");
		barrier();
		memset(&from, 0xaa, sizeof from);
		length = lengths[i];
		line("room for %d", lengths[i]);
		wipe();
		DO(recvfrom(fd, room, 100, MSG_DONTWAIT, (struct sockaddr *)&from, &length));
		line("  length %d, %s, data %s", (int)length, text_of(&from, sizeof from),
		     text_of(room, 4));
	}
	/* Did the failed calls take a datagram? */
	DO(recv(fd, room, 100, MSG_DONTWAIT));
	DO(recv(fd, room, 100, MSG_DONTWAIT));
	peer_say(there, 5000, "name");
	peer_say(there, 5000, "name");
	barrier();
	DO(recvfrom(fd, room, 100, MSG_DONTWAIT, (struct sockaddr *)&from, NULL));
	length = sizeof from;
	DO(recvfrom(fd, room, 100, MSG_DONTWAIT, NULL, &length));
	line("  length %d", (int)length);
	DO(recvfrom(fd, room, 100, MSG_DONTWAIT, (struct sockaddr *)&from, &length));
	line("  length %d", (int)length);
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		peer_say(there, 5000, "name");
		barrier();
		memset(&from, 0xaa, sizeof from);
		struct msghdr message = { .msg_name = &from, .msg_namelen = lengths[i],
			.msg_iov = &(struct iovec){ room, 100 }, .msg_iovlen = 1, .msg_flags = 0x77 };
		line("room for %d", lengths[i]);
		DO(recvmsg(fd, &message, MSG_DONTWAIT));
		line("  length %d, flags %#x, %s", (int)message.msg_namelen, message.msg_flags,
		     text_of(&from, sizeof from));
	}
	DO(recv(fd, room, 100, MSG_DONTWAIT));
	DO(recv(fd, room, 100, MSG_DONTWAIT));
	peer_say(there, 5000, "name");
	barrier();
	struct msghdr message = { .msg_name = NULL, .msg_namelen = 16, .msg_flags = 0x77,
		.msg_iov = &(struct iovec){ room, 100 }, .msg_iovlen = 1 };
	DO(recvmsg(fd, &message, MSG_DONTWAIT));
	line("  length %d", (int)message.msg_namelen);
	/* Nothing there: what was passed in stays. */
	message = (struct msghdr){ .msg_name = &from, .msg_namelen = 99, .msg_flags = 0x77,
		.msg_control = room, .msg_controllen = 64,
		.msg_iov = &(struct iovec){ room, 100 }, .msg_iovlen = 1 };
	DO(recvmsg(fd, &message, MSG_DONTWAIT));
	line("  namelen %d, controllen %zu, flags %#x", (int)message.msg_namelen,
	     (size_t)message.msg_controllen, message.msg_flags);
	peer_close(there);
}

static void pointers(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	for (int i = 0; i < 12; i++)
		peer_say(there, 5000, "pointer");
	barrier();
	DO(recv(fd, NULL, 10, MSG_DONTWAIT));
	DO(recv(fd, NULL, 0, MSG_DONTWAIT));
	DO(read(fd, NULL, 10));
	DO(recvmsg(fd, NULL, MSG_DONTWAIT));
	struct iovec part = { NULL, 10 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	DO(recvmsg(fd, &message, MSG_DONTWAIT));
	message.msg_iov = NULL;
	DO(recvmsg(fd, &message, MSG_DONTWAIT));
	DO(readv(fd, NULL, 1));
	DO(readv(fd, &part, 1));
	DO(readv(fd, &part, -1));
	DO(readv(fd, &part, 1025));
	part = (struct iovec){ room, (size_t)-1 };
	DO(readv(fd, &part, 1));
	static struct iovec parts[1025];
	for (int i = 0; i < 1025; i++)
		parts[i] = (struct iovec){ room + i, 1 };
	message = (struct msghdr){ .msg_iov = parts, .msg_iovlen = 1025 };
	DO(recvmsg(fd, &message, MSG_DONTWAIT));
	message.msg_iovlen = 1024;
	DO(recvmsg(fd, &message, MSG_DONTWAIT));
	show_bytes("bytes", room, 7);
	message.msg_iovlen = 17;
	DO(recvmsg(fd, &message, MSG_DONTWAIT));
	DO(readv(fd, parts, 1024));
	/* How many are left: did the calls that failed take one each? */
	int left = 0;
	while (recv(fd, room, 100, MSG_DONTWAIT) >= 0)
		left++;
	line("  %d left", left);
	peer_close(there);
}

static void many(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	struct mmsghdr list[8];
	struct iovec parts[8];
	struct sockaddr_in from[8];
	struct timespec second = { 1, 0 }, tenth = { 0, 100000000 }, none = { 0, 0 }, bad = { 0, -1 };
#define PREPARE() do { \
		wipe(); \
		memset(from, 0, sizeof from); \
		for (int i = 0; i < 8; i++) { \
			parts[i] = (struct iovec){ room + 100 * i, 10 }; \
			list[i].msg_hdr = (struct msghdr){ .msg_name = &from[i], \
				.msg_namelen = sizeof from[i], .msg_iov = &parts[i], .msg_iovlen = 1 }; \
			list[i].msg_len = 0x5555; \
		} \
	} while (0)
#define SHOW(count) do { \
		for (int i = 0; i < (count); i++) \
			line("  [%d] length %u, flags %#x, %s, %s", i, list[i].msg_len, \
			     list[i].msg_hdr.msg_flags, text_of(room + 100 * i, 10), name_of(&from[i])); \
	} while (0)
	peer_say(there, 5000, "one");
	peer_say(there, 5000, "two is longer than that");
	peer_say(there, 5000, "three");
	barrier();
	PREPARE();
	DO(recvmmsg(fd, list, 2, 0, NULL));
	SHOW(3);
	PREPARE();
	DO(recvmmsg(fd, list, 8, MSG_DONTWAIT, NULL));
	SHOW(2);
	PREPARE();
	DO(recvmmsg(fd, list, 8, MSG_DONTWAIT, NULL));
	DO(recvmmsg(fd, list, 0, 0, NULL));
	DO(recvmmsg(fd, list, 0, MSG_DONTWAIT, NULL));
	peer_send(there, HOST, 5000, 5, 3, 50);
	PREPARE();
	/* Waits for the first only. */
	long got = TIMED(50, recvmmsg(fd, list, 1, MSG_WAITFORONE, NULL));
	SHOW(got);
	barrier();
	DO(recvmmsg(fd, list, 8, MSG_WAITFORONE, NULL));
	/* The timeout is looked at after each datagram only, so these end by count, or by flag. */
	peer_say(there, 5000, "four");
	peer_say(there, 5000, "five");
	barrier();
	PREPARE();
	DO(recvmmsg(fd, list, 2, 0, &second));
	line("  time left: %d", second.tv_sec == 0 && second.tv_nsec > 900000000);
	peer_say_later(there, 5000, "six", 150);
	PREPARE();
	TIMED(150, recvmmsg(fd, list, 8, 0, &tenth));
	SHOW(1);
	line("  time left: %ld.%09ld", (long)tenth.tv_sec, tenth.tv_nsec);
	peer_say(there, 5000, "seven");
	peer_say(there, 5000, "eight");
	barrier();
	PREPARE();
	TIMED(0, recvmmsg(fd, list, 8, 0, &none));
	DO(recvmmsg(fd, list, 8, MSG_DONTWAIT, &bad));
	DO(recvmmsg(fd, list, 8, MSG_DONTWAIT, NULL));
	DO(recvmmsg(fd, NULL, 2, MSG_DONTWAIT, NULL));
	peer_say(there, 5000, "nine");
	peer_say(there, 5000, "ten");
	barrier();
	PREPARE();
	parts[1].iov_base = NULL;
	DO(recvmmsg(fd, list, 2, MSG_DONTWAIT, NULL));
	DO(recvmmsg(fd, list, 2, MSG_DONTWAIT, NULL));
	PREPARE();
	DO(recvmmsg(fd, list, 2, MSG_DONTWAIT, NULL));
	/* Of an entry that cannot be the next call tells, once. */
	for (int bad = 0; bad < 2; bad++) {
		peer_say(there, 5000, "eleven");
		peer_say(there, 5000, "twelve");
		barrier();
		PREPARE();
		if (bad == 0)
			list[1].msg_hdr.msg_namelen = -1;
		else
			list[1].msg_hdr.msg_iovlen = 1025;
		DO(recvmmsg(fd, list, 3, MSG_DONTWAIT, NULL));
		PREPARE();
		DO(recvmmsg(fd, list, 2, MSG_DONTWAIT, NULL));
		DO(recvmmsg(fd, list, 2, MSG_DONTWAIT, NULL));
		SHOW(1);
		DO(recvmmsg(fd, list, 2, MSG_DONTWAIT, NULL));
	}
	peer_say(there, 5000, "peeked");
	barrier();
	PREPARE();
	DO(recvmmsg(fd, list, 2, MSG_DONTWAIT | MSG_PEEK, NULL));
	SHOW(2);
	DO(recvmmsg(fd, list, 2, MSG_DONTWAIT, NULL));
	peer_close(there);
}

static void timeouts(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	struct timeval limit = { 0, 50000 };
	socklen_t length = sizeof limit;
	DO(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	DO(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &length));
	line("  %ld.%06ld", (long)limit.tv_sec, (long)limit.tv_usec);
	TIMED(50, recv(fd, room, 10, 0));
	TIMED(0, recv(fd, room, 10, MSG_DONTWAIT));
	TIMED(50, recvmsg(fd, &(struct msghdr){ .msg_iov = &(struct iovec){ room, 1 },
		.msg_iovlen = 1 }, 0));
	TIMED(50, read(fd, room, 10));
	TIMED(50, recvmmsg(fd, &(struct mmsghdr){ .msg_len = 0 }, 1, 0, NULL));
	peer_say_later(there, 5000, "in time", 20);
	TIMED(20, recv(fd, room, 100, 0));
	limit = (struct timeval){ 0, 1000000 };
	DO(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	limit = (struct timeval){ -1, 0 };
	DO(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	TIMED(0, recv(fd, room, 10, 0));
	DO(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, 4));
	limit = (struct timeval){ 0, 0 };
	DO(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	peer_say_later(there, 5000, "for ever", 100);
	TIMED(100, recv(fd, room, 100, 0));
	peer_close(there);
}

static void nonblocking(void)
{
	int there = peer_open(PEER, 6000), on = 1, number = -1;
	int fd = DO(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0));
	DO(recv(fd, room, 10, 0));
	DO(bind(fd, ADDRESS(HOST, 5000)));
	TIMED(0, recv(fd, room, 10, 0));
	DO(read(fd, room, 10));
	DO(ioctl(fd, FIONREAD, &number));
	line("  FIONREAD %d", number);
	peer_say(there, 5000, "first");
	peer_say(there, 5000, "second one");
	barrier();
	DO(ioctl(fd, FIONREAD, &number));
	line("  FIONREAD %d", number);
	receive_from_shown(fd, 100, 0);
	DO(ioctl(fd, FIONREAD, &number));
	line("  FIONREAD %d", number);
	receive_from_shown(fd, 100, 0);
	receive_from_shown(fd, 100, 0);
	DO(fcntl(fd, F_SETFL, 0));
	DO(fcntl(fd, F_GETFL));
	peer_say_later(there, 5000, "blocking", 50);
	TIMED(50, recv(fd, room, 100, 0));
	DO(ioctl(fd, FIONBIO, &on));
	DO(fcntl(fd, F_GETFL));
	TIMED(0, recv(fd, room, 100, 0));
	on = 0;
	DO(ioctl(fd, FIONBIO, &on));
	DO(fcntl(fd, F_GETFL));
	DO(fcntl(fd, F_SETFL, O_NONBLOCK | O_APPEND));
	DO(fcntl(fd, F_GETFL));
	TIMED(0, recv(fd, room, 100, 0));
	DO(ioctl(fd, FIONREAD, NULL));
	DO(ioctl(fd, FIONBIO, NULL));
	DO(ioctl(fd, 0xdeadbeef, NULL));
	DO(ioctl(fd, SIOCOUTQ, &number));
	line("  SIOCOUTQ %d", number);
	peer_close(there);
}

/* Sizes that need fragments come through the kernel, in the order they were sent with others. */
static void sizes(void)
{
	static const int lengths[] = { 1, 17, 18, WHOLE - 1, WHOLE, WHOLE + 1, 9000, 65507 };
	int there = peer_open(PEER, 6000), fd = udp(5000);
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		peer_send(there, HOST, 5000, lengths[i], 1, 0);
		receive_from_shown(fd, 65536, 0);
	}
	peer_close(there);
}

/* With _FORTIFY_SOURCE these become __recv_chk and its kin. */
static void fortified(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	static char here[64];
	volatile size_t length = 20;
	struct sockaddr_in from;
	socklen_t size = sizeof from;
	for (int i = 0; i < 3; i++)
		peer_say(there, 5000, "fortified");
	barrier();
	DO(recv(fd, here, length, 0));
	DO(recvfrom(fd, here, length, 0, (struct sockaddr *)&from, &size));
	DO(read(fd, here, length));
	show_bytes("bytes", here, 20);
	DO(recv(fd, here, length, MSG_DONTWAIT));
	struct pollfd wait[2] = { { fd, POLLIN, 0 }, { -1, 0, 0 } };
	volatile nfds_t count = 2;
	struct timespec none = { 0, 0 };
	DO(poll(wait, count, 0));
	DO(ppoll(wait, count, &none, NULL));
	peer_say(there, 5000, "fortified");
	barrier();
	DO(poll(wait, count, 0));
	show_poll(wait, 2);
	fd_set set;
	FD_ZERO(&set);
	FD_SET(fd, &set);
	DO(select(fd + 1, &set, NULL, NULL, NULL));
	line("  %d", FD_ISSET(fd, &set) != 0);
	peer_close(there);
}

const probe_case receive_cases[] = {
	{ "ways", ways, false },
	{ "flags", flags, false },
	{ "nothing", nothing, false },
	{ "names", names, false },
	{ "pointers", pointers, false },
	{ "many", many, false },
	{ "timeouts", timeouts, false },
	{ "nonblocking", nonblocking, false },
	{ "sizes", sizes, true },
	{ "fortified", fortified, false },
	{ NULL, NULL, false },
};
