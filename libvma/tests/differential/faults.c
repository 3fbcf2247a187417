/* Pointers into the address space where nothing is, or nothing that may be written, and buffers that run off the end of
 * what is there: EFAULT, what was sent or received by then, and a socket that goes on. */
#include "prober.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/sendfile.h>

#define PAGE 4096

/* A page to read and write, one that is not there, one to read. */
static char *pages(void)
{
	static char *all;
	if (all == NULL) {
		all = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		must("mprotect", mprotect(all + PAGE, PAGE, PROT_NONE));
		must("mprotect", mprotect(all + 2 * PAGE, PAGE, PROT_READ));
	}
	return all;
}

#define NONE (pages() + PAGE)
#define READ_ONLY (pages() + 2 * PAGE)
/* So many bytes before the end. */
#define LAST(count) ((void *)(pages() + PAGE - (count)))

static const char *const kinds[] = { "NULL", "none", "read only", "the last 4" };
enum { NOTHING, NO_PAGE, NOT_WRITABLE, SHORT, KINDS };

static void *bad(int kind)
{
	line("  %s:", kinds[kind]);
	return kind == NOTHING ? NULL : kind == NO_PAGE ? NONE : kind == SHORT ? LAST(4) : READ_ONLY;
}

/* Every way to send these bytes, of which some are not there. */
static void sends(int fd, void *bytes, size_t length)
{
	char control[CMSG_SPACE(4)] = { 0 };
	struct iovec part = { bytes, length }, parts[2] = { { "good", 4 }, part };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	DO(send(fd, bytes, length, 0));
	DO(write(fd, bytes, length));
	DO(writev(fd, &part, 1));
	DO(pwritev2(fd, &part, 1, -1, 0));
	DO(sendmsg(fd, &message, 0));
	DO(sendto(fd, bytes, length, 0, NULL, 0));
	message = (struct msghdr){ .msg_iov = parts, .msg_iovlen = 2 };
	DO(sendmsg(fd, &message, MSG_DONTWAIT));
	message = (struct msghdr){ .msg_iov = bytes, .msg_iovlen = 1 };
	DO(sendmsg(fd, &message, 0));
	message = (struct msghdr){ .msg_iov = parts, .msg_iovlen = 1, .msg_control = bytes,
		.msg_controllen = sizeof control };
	DO(sendmsg(fd, &message, 0));
	DO(sendmsg(fd, bytes, 0));
	DO(writev(fd, bytes, 2));
}

static void send_datagrams(void)
{
	int fd = udp(5000), there = peer_open(PEER, 6000);
	for (int kind = 0; kind < KINDS; kind++) {
		if (kind == NOT_WRITABLE)
			continue;
		void *place = bad(kind);
		DO(sendto(fd, place, 10, 0, ADDRESS(PEER, 6000)));
		DO(sendto(fd, "x", 1, 0, place, 16));
		struct msghdr message = { .msg_name = place, .msg_namelen = 16,
			.msg_iov = &(struct iovec){ "x", 1 }, .msg_iovlen = 1 };
		DO(sendmsg(fd, &message, 0));
		DO(connect(fd, place, 16));
	}
	must("connect", connect(fd, ADDRESS(PEER, 6000)));
	for (int kind = 0; kind < KINDS; kind++)
		if (kind != NOT_WRITABLE)
			sends(fd, bad(kind), 10);
	DO(send(fd, LAST(4), 4, 0));
	peer_hears(there);
	peer_hears(there);
	/* What is too long is not read. */
	set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
	DO(send(fd, NONE, 3000, 0));
	DO(send(fd, NONE, 70000, 0));
	DO(send(fd, LAST(4), 3000, 0));
	peer_close(there);
}

static void send_many(void)
{
	int fd = udp(5000), there = peer_open(PEER, 6000);
	must("connect", connect(fd, ADDRESS(PEER, 6000)));
	for (int kind = 0; kind < KINDS; kind++) {
		void *place = bad(kind);
		struct iovec good = { "good", 4 }, part = { place, 10 };
		struct mmsghdr messages[] = {
			{ { .msg_iov = &good, .msg_iovlen = 1 }, 77 },
			{ { .msg_iov = &part, .msg_iovlen = 1 }, 77 },
			{ { .msg_iov = &good, .msg_iovlen = 1 }, 77 },
		};
		DO(sendmmsg(fd, messages, 3, 0));
		line("  lengths %u %u", messages[0].msg_len, messages[1].msg_len);
		DO(sendmmsg(fd, messages + 1, 1, 0));
		DO(sendmmsg(fd, place, 1, 0));
		peer_hears(there);
	}
	struct mmsghdr *last = (struct mmsghdr *)LAST(sizeof *last);
	*last = (struct mmsghdr){ { .msg_iov = &(struct iovec){ "good", 4 }, .msg_iovlen = 1 }, 77 };
	DO(sendmmsg(fd, last, 2, 0));
	line("  length %u", last->msg_len);
	peer_hears(there);
	peer_close(there);
}

static void receive_datagrams(void)
{
	int fd = udp(5000), there = peer_open(PEER, 6000);
	for (int kind = 0; kind < KINDS; kind++) {
		void *place = bad(kind);
		struct iovec part = { place, 100 }, parts[2] = { { room, 3 }, part };
		struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
		for (int i = 0; i < 8; i++)
			peer_say(there, 5000, i < 7 ? "a datagram" : "four");
		barrier();
		DO(recv(fd, place, 100, MSG_PEEK));
		DO(recv(fd, place, 100, 0));
		DO(read(fd, place, 100));
		DO(readv(fd, &part, 1));
		DO(readv(fd, parts, 2));
		DO(recvfrom(fd, place, 100, MSG_DONTWAIT, NULL, NULL));
		DO(recvmsg(fd, &message, 0));
		DO(recv(fd, place, 4, 0));
		DO(recv(fd, place, 100, 0));
		DO(recv(fd, place, 100, MSG_DONTWAIT));
		peer_say(there, 5000, "good");
		barrier();
		receive_shown(fd, 100, MSG_DONTWAIT);
	}
	peer_close(there);
}

static void receive_names(void)
{
	int fd = udp(5000), there = peer_open(PEER, 6000);
	set(fd, SOL_SOCKET, SO_TIMESTAMP, 1);
	for (int kind = 0; kind < KINDS; kind++) {
		void *place = bad(kind);
		socklen_t length = 16;
		struct iovec part = { room, 100 };
		struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
		for (int i = 0; i < 9; i++)
			peer_say(there, 5000, "a datagram");
		barrier();
		if (kind != NOTHING)
			DO(recvfrom(fd, room, 100, MSG_DONTWAIT, place, &length));
		line("  length %u", length);
		if (kind != SHORT)
			DO(recvfrom(fd, room, 100, MSG_DONTWAIT, (void *)room, place));
		message.msg_name = place;
		message.msg_namelen = 16;
		DO(recvmsg(fd, &message, MSG_DONTWAIT));
		message = (struct msghdr){ .msg_iov = &part, .msg_iovlen = 1, .msg_control = place,
			.msg_controllen = 100 };
		DO(recvmsg(fd, &message, MSG_DONTWAIT));
		line("  control %zu, flags %x", message.msg_controllen, message.msg_flags);
		message = (struct msghdr){ .msg_iov = place, .msg_iovlen = 1 };
		if (kind != NOT_WRITABLE)
			DO(recvmsg(fd, &message, MSG_DONTWAIT));
		DO(recvmsg(fd, place, MSG_DONTWAIT));
		int left = 0;
		while (recv(fd, room, 100, MSG_DONTWAIT) >= 0)
			left++;
		line("  %d left", left);
	}
	peer_close(there);
}

static void receive_many(void)
{
	int fd = udp(5000), there = peer_open(PEER, 6000);
	for (int kind = 0; kind < KINDS; kind++) {
		void *place = bad(kind);
		struct iovec good = { room, 100 }, part = { place, 100 };
		struct mmsghdr messages[] = {
			{ { .msg_iov = &good, .msg_iovlen = 1 }, 77 },
			{ { .msg_iov = &part, .msg_iovlen = 1 }, 77 },
			{ { .msg_iov = &good, .msg_iovlen = 1 }, 77 },
		};
		for (int i = 0; i < 8; i++)
			peer_say(there, 5000, "a datagram");
		barrier();
		DO(recvmmsg(fd, messages, 3, MSG_DONTWAIT, NULL));
		line("  lengths %u %u", messages[0].msg_len, messages[1].msg_len);
		show_error(fd);
		DO(recvmmsg(fd, messages + 1, 1, MSG_DONTWAIT, NULL));
		DO(recvmmsg(fd, place, 1, MSG_DONTWAIT, NULL));
		if (kind != NOTHING)
			DO(recvmmsg(fd, messages, 1, MSG_DONTWAIT, place));
		int left = 0;
		while (recv(fd, room, 100, MSG_DONTWAIT) >= 0)
			left++;
		line("  %d left", left);
	}
	struct mmsghdr *last = (struct mmsghdr *)LAST(sizeof *last);
	*last = (struct mmsghdr){ { .msg_iov = &(struct iovec){ room, 100 }, .msg_iovlen = 1 }, 77 };
	peer_say(there, 5000, "one");
	peer_say(there, 5000, "two");
	barrier();
	DO(recvmmsg(fd, last, 2, MSG_DONTWAIT, NULL));
	line("  length %u", last->msg_len);
	show_error(fd);
	receive_shown(fd, 100, MSG_DONTWAIT);
	peer_close(there);
}

/* A thread that blocks the signals gets EFAULT of all calls but those that send, receive and wait. */
static bool blocks;

static void with_signals_blocked(void (*what)(void))
{
	sigset_t set, old;
	sigemptyset(&set);
	sigaddset(&set, SIGSEGV);
	sigaddset(&set, SIGBUS);
	must("sigprocmask", sigprocmask(SIG_BLOCK, &set, &old));
	blocks = true;
	what();
	blocks = false;
	must("sigprocmask", sigprocmask(SIG_SETMASK, &old, NULL));
}

static void everything_else(int fd)
{
	int epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT };
	for (int kind = 0; kind < KINDS; kind++) {
		void *place = bad(kind);
		socklen_t length = 16;
		int on = 1;
		if (kind != NOT_WRITABLE) {
			DO(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, kind == SHORT ? place + 2 : place, 4));
			DO(setsockopt(fd, IPPROTO_IP, IP_TTL, kind == SHORT ? place + 2 : place, 4));
			if (!blocks)
				DO(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, place));
		}
		DO(bind(fd, kind == NOT_WRITABLE ? NULL : place, 16));
		DO(getsockname(fd, place, &length));
		line("  length %u", length);
		DO(getpeername(fd, place, &length));
		if (kind != SHORT) {
			DO(getsockname(fd, (void *)room, place));
			DO(getpeername(fd, (void *)room, place));
		}
		length = 4;
		if (kind == SHORT)
			place += 2;
		DO(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, place, &length));
		DO(getsockopt(fd, SOL_SOCKET, SO_ERROR, place, &length));
		DO(getsockopt(fd, SOL_SOCKET, SO_TYPE, &on, place));
		DO(ioctl(fd, FIONREAD, place));
		DO(ioctl(fd, FIONBIO, kind == NOT_WRITABLE ? NONE : place));
	}
	*(socklen_t *)LAST(4) = 16;
	DO(getsockname(fd, (void *)room, LAST(4)));
	DO(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
}

static void others_of_datagrams(void)
{
	int fd = udp(5000), there = peer_open(PEER, 6000);
	must("connect", connect(fd, ADDRESS(PEER, 6000)));
	peer_say(there, 5000, "waits");
	barrier();
	everything_else(fd);
	receive_shown(fd, 100, MSG_DONTWAIT);
	peer_close(there);
}

static void others_of_datagrams_with_signals_blocked(void)
{
	with_signals_blocked(others_of_datagrams);
}

/* One descriptor that is readable and writable. */
static void waits(int fd)
{
	int epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT };
	must("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
	memset(pages(), 0, PAGE);
	for (int kind = 0; kind < KINDS; kind++) {
		void *place = bad(kind);
		DO(poll(place, 1, 0));
		DO(ppoll(place, 1, &(struct timespec){ 0 }, NULL));
		DO(epoll_wait(epoll, place, 1, 0));
		DO(epoll_pwait(epoll, place, 2, 0, NULL));
		if (kind == NOTHING)
			continue;
		DO(select(fd + 1, place, NULL, NULL, &(struct timeval){ 0 }));
		DO(pselect(fd + 1, NULL, place, NULL, &(struct timespec){ 0 }, NULL));
		/* libc itself reads the timeouts of select(), pselect() and ppoll(). */
		fd_set set;
		FD_ZERO(&set);
		FD_SET(fd, &set);
		if (kind == NOT_WRITABLE)
			continue;
		struct pollfd one = { fd, POLLIN, 0 };
		DO(ppoll(&one, 1, NULL, place));
		DO(epoll_pwait(epoll, &event, 1, 0, place));
		DO(epoll_pwait2(epoll, &event, 1, place, NULL));
		DO(pselect(fd + 1, &set, NULL, NULL, NULL, place));
	}
	/* A list of which the second entry is not there, and one that cannot be written. */
	struct pollfd *list = (struct pollfd *)LAST(sizeof *list), *fixed = (struct pollfd *)READ_ONLY;
	*list = (struct pollfd){ fd, POLLIN | POLLOUT, 0 };
	DO(poll(list, 2, 0));
	DO(poll(list, 1, 0));
	show_poll(list, 1);
	must("mprotect", mprotect(fixed, PAGE, PROT_READ | PROT_WRITE));
	*fixed = (struct pollfd){ fd, POLLIN | POLLOUT, 0 };
	must("mprotect", mprotect(fixed, PAGE, PROT_READ));
	DO(poll(fixed, 1, 100));
	must("mprotect", mprotect(fixed, PAGE, PROT_READ | PROT_WRITE));
	memset(fixed, 0, PAGE);
	FD_SET(fd, (fd_set *)fixed);
	must("mprotect", mprotect(fixed, PAGE, PROT_READ));
	DO(select(fd + 1, (fd_set *)fixed, NULL, NULL, NULL));
	/* With room for one only the events of either side come, in turns. */
	struct epoll_event two[2];
	DO(epoll_wait(epoll, two, 2, 0));
	show_events(two, 1);
	struct epoll_event *last = (struct epoll_event *)LAST(sizeof *last);
	DO(epoll_wait(epoll, last, 10, 0));
	show_events(last, 1);
	receive_shown(fd, 100, MSG_DONTWAIT);
}

static void wait_for_datagrams(void)
{
	int fd = udp(5000), there = peer_open(PEER, 6000);
	peer_say(there, 5000, "waits");
	barrier();
	waits(fd);
	peer_close(there);
}

static void *makes_writable(void *page)
{
	usleep(50000);
	must("mprotect", mprotect(page, PAGE, PROT_READ | PROT_WRITE));
	return NULL;
}

/* The sets are written after the wait. */
static void select_writes_late(void)
{
	int fd = udp(5000), there = peer_open(PEER, 6000);
	fd_set *set = (fd_set *)READ_ONLY;
	must("mprotect", mprotect(set, PAGE, PROT_READ | PROT_WRITE));
	FD_SET(fd, set);
	must("mprotect", mprotect(set, PAGE, PROT_READ));
	pthread_t thread;
	must("pthread_create", -pthread_create(&thread, NULL, makes_writable, set));
	peer_say_later(there, 5000, "late", 200);
	DO(select(fd + 1, set, NULL, NULL, NULL));
	line("  ready: %d", FD_ISSET(fd, set));
	pthread_join(thread, NULL);
	memset(set, 0, PAGE);
	must("mprotect", mprotect(set, PAGE, PROT_READ));
	receive_shown(fd, 100, MSG_DONTWAIT);
	peer_close(there);
}

/* So many bytes that are there, and behind them a page that is not. */
static char *before_nothing(size_t length)
{
	char *all = mmap(NULL, length + PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	must("mprotect", mprotect(all + length, PAGE, PROT_NONE));
	return all;
}

/* No buffer has room for it, so its end is not looked at. */
static void send_part(void)
{
	size_t length = 256 << 20;
	stream on = connected();
	DO(send(on.fd, before_nothing(length), length + 10, MSG_DONTWAIT) > 0);
}

static void send_good_part(void)
{
	size_t length = 10 * PAGE;
	stream on = connected();
	DO(send(on.fd, before_nothing(length), length + 10, 0) > 0);
	struct iovec parts[2] = { { before_nothing(length), length }, { NONE, 10 } };
	DO(writev(on.fd, parts, 2) > 0);
}

static void send_stream(void)
{
	stream on = connected();
	for (int kind = 0; kind < KINDS; kind++)
		if (kind != NOT_WRITABLE)
			sends(on.fd, bad(kind), 10);
	struct iovec part = { NONE, 10 }, good = { "GOOD", 4 };
	struct mmsghdr messages[] = {
		{ { .msg_iov = &good, .msg_iovlen = 1 }, 77 },
		{ { .msg_iov = &part, .msg_iovlen = 1 }, 77 },
	};
	DO(sendmmsg(on.fd, messages, 2, 0));
	line("  lengths %u %u", messages[0].msg_len, messages[1].msg_len);
	DO(sendto(on.fd, "to", 2, 0, (void *)NONE, 16));
	DO(send(on.fd, LAST(4), 4, 0));
	peer_reads(on.there, 8);
	exchange(on);
}

static void send_file(void)
{
	stream on = connected();
	FILE *file = tmpfile();
	fputs("the bytes of a file", file);
	fflush(file);
	*(off_t *)LAST(8) = 4;
	for (int kind = 0; kind < KINDS; kind++)
		if (kind != NOTHING && kind != NOT_WRITABLE)
			DO(sendfile(on.fd, fileno(file), bad(kind), 10));
	DO(sendfile(on.fd, fileno(file), LAST(8), 5));
	peer_reads(on.there, 5);
	fclose(file);
}

static void send_file_with_signals_blocked(void)
{
	with_signals_blocked(send_file);
}

/* What was not read comes again. */
static void receive_stream(void)
{
	stream on = connected();
	for (int kind = 0; kind < KINDS; kind++) {
		void *place = bad(kind);
		socklen_t length = 16;
		struct iovec part = { place, 100 }, parts[2] = { { room, 3 }, part };
		struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
		peer_writes(on.there, "the bytes of a stream");
		show_ready(on.fd, POLLIN, 300);
		DO(recv(on.fd, place, 100, MSG_PEEK));
		DO(recv(on.fd, place, 100, 0));
		DO(recv(on.fd, place, 21, MSG_WAITALL));
		DO(read(on.fd, place, 100));
		DO(readv(on.fd, &part, 1));
		DO(readv(on.fd, parts, 2));
		DO(recvmsg(on.fd, &message, MSG_DONTWAIT));
		message = (struct msghdr){ .msg_iov = place, .msg_iovlen = 1 };
		if (kind != NOT_WRITABLE)
			DO(recvmsg(on.fd, &message, MSG_DONTWAIT));
		DO(recvmsg(on.fd, place, MSG_DONTWAIT));
		DO(recvmmsg(on.fd, place, 1, MSG_DONTWAIT, NULL));
		receive_shown(on.fd, 2, 0);
		DO(recvfrom(on.fd, room, 2, 0, place, &length));
		if (kind != SHORT)
			DO(recvfrom(on.fd, room, 2, 0, (void *)room, place));
		receive_shown(on.fd, 2, MSG_PEEK);
		if (kind == SHORT)
			DO(recv(on.fd, place, 4, 0));
		receive_shown(on.fd, 100, 0);
	}
	exchange(on);
}

static void others_of_streams(void)
{
	stream on = connected();
	peer_writes(on.there, "waits");
	show_ready(on.fd, POLLIN, 300);
	everything_else(on.fd);
	DO(connect(on.fd, (void *)NONE, 16));
	DO(connect(on.fd, (void *)LAST(8), 16));
	receive_shown(on.fd, 100, 0);
	int fd = tcp();
	DO(connect(fd, (void *)NONE, 16));
	DO(connect(fd, NULL, 16));
	DO(connect(fd, LAST(8), 16));
	DO(bind(fd, LAST(8), 16));
	exchange(on);
}

static void others_of_streams_with_signals_blocked(void)
{
	with_signals_blocked(others_of_streams);
}

static void wait_for_streams(void)
{
	stream on = connected();
	peer_writes(on.there, "waits");
	show_ready(on.fd, POLLIN, 300);
	waits(on.fd);
	exchange(on);
}

/* A connection whose client's name finds no room is closed. */
static void accept_names(void)
{
	int listening = tcp_listener(HOST, 5000, 10);
	for (int kind = 1; kind < KINDS; kind++) {
		void *place = bad(kind);
		socklen_t length = 16;
		int there = peer_connect(HOST, 5000);
		DO(accept(listening, place, &length) >= 0);
		peer_reads_rest(there);
		if (kind == SHORT)
			continue;
		there = peer_connect(HOST, 5000);
		DO(accept4(listening, (void *)room, place, 0) >= 0);
		peer_reads_rest(there);
	}
	peer_connect(HOST, 5000);
	DO(accept(listening, (void *)room, (socklen_t *)&(socklen_t){ 16 }) >= 0);
}

static void accept_names_with_signals_blocked(void)
{
	with_signals_blocked(accept_names);
}

const probe_case fault_cases[] = {
	{ "send_datagrams", send_datagrams },
	{ "send_many", send_many },
	{ "receive_datagrams", receive_datagrams },
	{ "receive_names", receive_names },
	{ "receive_many", receive_many },
	{ "others_of_datagrams", others_of_datagrams },
	{ "others_of_datagrams_with_signals_blocked", others_of_datagrams_with_signals_blocked },
	{ "wait_for_datagrams", wait_for_datagrams },
	{ "select_writes_late", select_writes_late },
	{ "send_stream", send_stream, false, STREAMS_OURS },
	{ "send_part", send_part, false, STREAMS_OURS },
	{ "send_good_part", send_good_part, false, STREAMS_OURS },
	{ "send_file", send_file, false, STREAMS_OURS },
	{ "send_file_with_signals_blocked", send_file_with_signals_blocked, false, STREAMS_OURS },
	{ "receive_stream", receive_stream, false, STREAMS_OURS },
	{ "others_of_streams", others_of_streams, false, STREAMS_OURS },
	{ "others_of_streams_with_signals_blocked", others_of_streams_with_signals_blocked, false, STREAMS_OURS },
	{ "wait_for_streams", wait_for_streams, false, STREAMS_OURS },
	{ "accept_names", accept_names, false, STREAMS_OURS },
	{ "accept_names_with_signals_blocked", accept_names_with_signals_blocked, false, STREAMS_OURS },
	{ NULL, NULL, false },
};
