/* socket, bind, connect, getsockname, getpeername, and calls on what is no socket. */
#include "prober.h"

static void show_name(int fd)
{
	struct sockaddr_in address = { 0 };
	socklen_t length = sizeof address;
	if (DO(getsockname(fd, (struct sockaddr *)&address, &length)) == 0)
		show_address("own", &address, length);
}

static void show_peer(int fd)
{
	struct sockaddr_in address = { 0 };
	socklen_t length = sizeof address;
	if (DO(getpeername(fd, (struct sockaddr *)&address, &length)) == 0)
		show_address("peer", &address, length);
}

static void kinds(void)
{
	int fd = DO(socket(AF_INET, SOCK_DGRAM, 0));
	DO(fcntl(fd, F_GETFL));
	DO(fcntl(fd, F_GETFD));
	fd = DO(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_UDP));
	DO(fcntl(fd, F_GETFL));
	DO(fcntl(fd, F_GETFD));
	DO(socket(AF_INET, SOCK_DGRAM, IPPROTO_TCP));
	DO(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
	DO(socket(AF_INET, 99, 0));
	DO(socket(AF_INET, SOCK_DGRAM | 0x40000000, 0));
	DO(socket(12345, SOCK_DGRAM, 0));
	DO(socket(AF_INET, SOCK_DGRAM, 300));
	DO(socket(AF_UNIX, SOCK_DGRAM, 0));
	DO(socket(AF_INET, SOCK_DGRAM, 0));
	DO(listen(fd, 5));
	DO(accept(fd, NULL, NULL));
	DO(accept4(fd, NULL, NULL, 0));
}

static void bind_errors(void)
{
	int fd = DO(socket(AF_INET, SOCK_DGRAM, 0));
	struct sockaddr_in6 six = { .sin6_family = AF_INET6 };
	struct sockaddr_in any = { .sin_family = AF_UNSPEC };
	char large[256] = { AF_INET };
	struct sockaddr_in address = at(HOST, 5000);
	DO(bind(fd, NULL, 16));
	DO(bind(fd, (struct sockaddr *)&address, 15));
	DO(bind(fd, (struct sockaddr *)&address, 0));
	DO(bind(fd, (struct sockaddr *)&address, -1));
	DO(bind(fd, (struct sockaddr *)large, 200));
	DO(bind(fd, (struct sockaddr *)&six, sizeof six));
	DO(bind(fd, ADDRESS("10.98.0.1", 5000)));
	DO(bind(fd, ADDRESS("10.99.0.255", 5000)));
	DO(bind(fd, (struct sockaddr *)&any, sizeof any));
	show_name(fd);
	DO(bind(fd, ADDRESS(HOST, 5001)));
	int first = DO(socket(AF_INET, SOCK_DGRAM, 0)), second = DO(socket(AF_INET, SOCK_DGRAM, 0));
	DO(bind(first, ADDRESS(HOST, 5000)));
	DO(bind(second, ADDRESS(HOST, 5000)));
	DO(bind(second, ADDRESS("0.0.0.0", 5000)));
	DO(bind(second, ADDRESS("127.0.0.1", 5000)));
	DO(close(first));
	DO(close(second));
	second = DO(socket(AF_INET, SOCK_DGRAM, 0));
	DO(bind(second, ADDRESS(HOST, 5000)));
}

static void names(void)
{
	int fd = DO(socket(AF_INET, SOCK_DGRAM, 0));
	struct sockaddr_in address;
	socklen_t length = sizeof address;
	show_name(fd);
	show_peer(fd);
	DO(bind(fd, ADDRESS("0.0.0.0", 0)));
	show_name(fd);
	memset(&address, 0xaa, sizeof address);
	length = 4;
	DO(getsockname(fd, (struct sockaddr *)&address, &length));
	line("  length %d, %s", (int)length, text_of(&address.sin_addr, 4));
	length = 0;
	DO(getsockname(fd, (struct sockaddr *)&address, &length));
	line("  length %d", (int)length);
	length = -1;
	DO(getsockname(fd, (struct sockaddr *)&address, &length));
	length = sizeof address;
	DO(getsockname(fd, NULL, &length));
	DO(getsockname(fd, (struct sockaddr *)&address, NULL));
	DO(connect(fd, ADDRESS(PEER, 6000)));
	show_name(fd);
	show_peer(fd);
	length = 4;
	DO(getpeername(fd, (struct sockaddr *)&address, &length));
	line("  length %d", (int)length);
	DO(getpeername(fd, (struct sockaddr *)&address, NULL));
	/* Bound by connect alone. */
	int other = DO(socket(AF_INET, SOCK_DGRAM, 0));
	DO(connect(other, ADDRESS(PEER, 6000)));
	show_name(other);
	/* Bound by sending alone: the address stays open. */
	other = DO(socket(AF_INET, SOCK_DGRAM, 0));
	int there = peer_open(PEER, 6000);
	DO(sendto(other, "bound", 5, 0, ADDRESS(PEER, 6000)));
	show_name(other);
	show_peer(other);
	peer_hears(there);
	peer_close(there);
}

static void connect_errors(void)
{
	int fd = DO(socket(AF_INET, SOCK_DGRAM, 0));
	struct sockaddr_in address = at(PEER, 6000);
	struct sockaddr_in6 six = { .sin6_family = AF_INET6 };
	struct sockaddr none = { .sa_family = AF_UNSPEC };
	DO(connect(fd, NULL, 16));
	DO(connect(fd, (struct sockaddr *)&address, 8));
	DO(connect(fd, (struct sockaddr *)&address, 1));
	DO(connect(fd, (struct sockaddr *)&six, sizeof six));
	DO(connect(fd, ADDRESS("10.99.0.255", 6000)));
	DO(connect(fd, ADDRESS("255.255.255.255", 6000)));
	DO(connect(fd, ADDRESS("10.98.0.1", 6000)));
	show_name(fd);
	DO(connect(fd, ADDRESS(PEER, 0)));
	show_name(fd);
	show_peer(fd);
	DO(send(fd, "x", 1, 0));
	DO(connect(fd, &none, sizeof none));
	show_name(fd);
	show_peer(fd);
	DO(connect(fd, &none, 2));
	DO(connect(fd, ADDRESS("0.0.0.0", 6000)));
	show_peer(fd);
}

/* What arrives while a socket is connected here, there, nowhere. */
static void reconnect(void)
{
	int first = peer_open(PEER, 6000), second = peer_open(PEER, 6001);
	struct sockaddr none = { .sa_family = AF_UNSPEC };
	int fd = udp(5000);
	peer_say(second, 5000, "before connect");
	barrier();
	DO(connect(fd, ADDRESS(PEER, 6000)));
	peer_say(second, 5000, "stranger");
	peer_say(first, 5000, "friend");
	barrier();
	receive_from_shown(fd, 100, MSG_DONTWAIT);
	receive_from_shown(fd, 100, MSG_DONTWAIT);
	receive_from_shown(fd, 100, MSG_DONTWAIT);
	DO(send(fd, "to first", 8, 0));
	peer_hears(first);
	peer_say(first, 5000, "from the old peer");
	barrier();
	DO(connect(fd, ADDRESS(PEER, 6001)));
	show_name(fd);
	show_peer(fd);
	peer_say(first, 5000, "too late");
	peer_say(second, 5000, "new friend");
	barrier();
	receive_from_shown(fd, 100, MSG_DONTWAIT);
	receive_from_shown(fd, 100, MSG_DONTWAIT);
	receive_from_shown(fd, 100, MSG_DONTWAIT);
	DO(send(fd, "to second", 9, 0));
	peer_hears(second);
	DO(connect(fd, &none, sizeof none));
	show_name(fd);
	DO(send(fd, "x", 1, 0));
	peer_say(first, 5000, "open again");
	barrier();
	receive_from_shown(fd, 100, MSG_DONTWAIT);
	DO(sendto(fd, "to first", 8, 0, ADDRESS(PEER, 6000)));
	peer_hears(first);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	DO(send(fd, "and again", 9, 0));
	peer_hears(first);
	peer_close(first);
	peer_close(second);
}

static int reused(const char *ip, int option)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
	DO(setsockopt(fd, SOL_SOCKET, option, &on, sizeof on));
	DO(bind(fd, ADDRESS(ip, 5000)));
	return fd;
}

static void drain(int fd)
{
	while (receive_from_shown(fd, 100, MSG_DONTWAIT))
		;
}

static void reuse_address(void)
{
	int there = peer_open(PEER, 6000);
	int first = reused("0.0.0.0", SO_REUSEADDR), second = reused("0.0.0.0", SO_REUSEADDR);
	peer_say(there, 5000, "for the last that was bound");
	barrier();
	drain(first);
	drain(second);
	DO(close(second));
	peer_say(there, 5000, "for the one that is left");
	barrier();
	drain(first);
	peer_close(there);
}

/* The most specific address wins, and a connected socket before all others. */
static void most_specific(void)
{
	int there = peer_open(PEER, 6000), elsewhere = peer_open(PEER, 6001);
	int exact = reused(HOST, SO_REUSEADDR), any = reused("0.0.0.0", SO_REUSEADDR);
	peer_say(there, 5000, "one");
	barrier();
	drain(exact);
	drain(any);
	int connected = reused(HOST, SO_REUSEADDR);
	DO(connect(connected, ADDRESS(PEER, 6000)));
	peer_say(there, 5000, "two");
	peer_say(elsewhere, 5000, "three");
	barrier();
	drain(exact);
	drain(any);
	drain(connected);
	DO(close(connected));
	DO(close(exact));
	peer_say(there, 5000, "four");
	barrier();
	drain(any);
	peer_close(there);
	peer_close(elsewhere);
}

static void reuse_port(void)
{
	int there = peer_open(PEER, 6000), on = 1;
	int first = reused("0.0.0.0", SO_REUSEPORT), second = reused("0.0.0.0", SO_REUSEPORT);
	int without = DO(socket(AF_INET, SOCK_DGRAM, 0));
	DO(bind(without, ADDRESS("0.0.0.0", 5000)));
	DO(setsockopt(without, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
	DO(bind(without, ADDRESS("0.0.0.0", 5000)));
	int received = 0;
	for (int i = 0; i < 20; i++)
		peer_say(there, 5000, "shared");
	barrier();
	for (int i = 0; i < 20; i++)
		received += recv(first, room, 100, MSG_DONTWAIT) == 6;
	/* Which of the two a flow goes to is the hash's choice: all to one. */
	line("  all to one: %d", received == 0 || received == 20);
	for (int i = 0; i < 20; i++)
		received += recv(second, room, 100, MSG_DONTWAIT) == 6;
	line("  together %d", received);
	peer_close(there);
}

static void device(void)
{
	int there = peer_open(PEER, 6000);
	int fd = udp(5000);
	char name[IF_NAMESIZE] = "x";
	socklen_t length = sizeof name;
	DO(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length));
	line("  length %d", (int)length);
	DO(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "nosuch0", 7));
	DO(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device_name, strlen(device_name) + 1));
	length = sizeof name;
	DO(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length));
	line("  %s, length %d", name, (int)length);
	peer_say(there, 5000, "on the device");
	barrier();
	receive_from_shown(fd, 100, MSG_DONTWAIT);
	DO(sendto(fd, "by the device", 13, 0, ADDRESS(PEER, 6000)));
	peer_hears(there);
	DO(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 2));
	peer_say(there, 5000, "on another device");
	barrier();
	receive_from_shown(fd, 100, MSG_DONTWAIT);
	DO(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "", 0));
	peer_say(there, 5000, "on any device");
	barrier();
	receive_from_shown(fd, 100, MSG_DONTWAIT);
	peer_close(there);
}

static void within_the_host(void)
{
	int there = peer_open(PEER, 6000), one = udp(5000), two = udp_at("127.0.0.1", 5001);
	int exact = udp_at(HOST, 5002);
	DO(sendto(two, "loopback", 8, 0, ADDRESS("127.0.0.1", 5000)));
	receive_from_shown(one, 100, 0);
	DO(sendto(one, "own address", 11, 0, ADDRESS(HOST, 5002)));
	receive_from_shown(exact, 100, 0);
	DO(sendto(exact, "itself", 6, 0, ADDRESS(HOST, 5002)));
	receive_from_shown(exact, 100, 0);
	/* Both ways at once: the host's own and the network's. */
	peer_say(there, 5000, "from outside");
	barrier();
	DO(sendto(exact, "from inside", 11, 0, ADDRESS(HOST, 5000)));
	struct pollfd wait = { one, POLLIN, 0 };
	for (int i = 0; i < 2; i++) {
		DO(poll(&wait, 1, 1000));
		long length = recv(one, room, 100, MSG_DONTWAIT);
		line("  one of the two: %d", length == 12 || length == 11);
	}
	receive_from_shown(one, 100, MSG_DONTWAIT);
	peer_close(there);
}

const probe_case names_cases[] = {
	{ "kinds", kinds, false },
	{ "bind_errors", bind_errors, false },
	{ "names", names, true }, /* the kernel binds with the first datagram */
	{ "connect_errors", connect_errors, true }, /* a send that fails is counted */
	{ "reconnect", reconnect, false },
	{ "reuse_address", reuse_address, false },
	{ "most_specific", most_specific, false },
	{ "reuse_port", reuse_port, true },
	{ "device", device, true }, /* once bound to lo, it stays with the kernel */
	{ "within_the_host", within_the_host, true },
	{ NULL, NULL, false },
};

/* Every call on one descriptor that is not what it needs. */
static void everything(int fd)
{
	struct sockaddr_in address = at(PEER, 6000);
	struct sockaddr *name = (struct sockaddr *)&address;
	socklen_t length = sizeof address;
	struct iovec part = { room, 10 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	struct mmsghdr many = { .msg_hdr = message };
	struct epoll_event event = { .events = EPOLLIN };
	int value = 1, number = 0;
	line("descriptor %d", fd);
	DO(bind(fd, name, length));
	DO(connect(fd, name, length));
	DO(listen(fd, 1));
	DO(accept(fd, name, &length));
	DO(getsockname(fd, name, &length));
	DO(getpeername(fd, name, &length));
	DO(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &length));
	DO(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof value));
	DO(shutdown(fd, SHUT_RDWR));
	DO(send(fd, "x", 1, 0));
	DO(sendto(fd, "x", 1, 0, name, sizeof address));
	DO(sendmsg(fd, &message, 0));
	DO(sendmmsg(fd, &many, 1, 0));
	DO(recv(fd, room, 10, MSG_DONTWAIT));
	DO(recvfrom(fd, room, 10, MSG_DONTWAIT, name, &length));
	DO(recvmsg(fd, &message, MSG_DONTWAIT));
	DO(recvmmsg(fd, &many, 1, MSG_DONTWAIT, NULL));
	DO(ioctl(fd, FIONBIO, &value));
	DO(ioctl(fd, FIONREAD, &number));
	DO(fcntl(fd, F_GETFL));
	DO(dup3(fd, fd, 0));
	int epoll = epoll_create1(0);
	DO(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
	DO(epoll_ctl(epoll, EPOLL_CTL_DEL, fd, &event));
	DO(epoll_wait(fd, &event, 1, 0));
	close(epoll);
}

static void numbers(void)
{
	static const int fds[] = { -1, 1 << 30, 1023, INT32_MIN };
	struct pollfd list[] = { { -1, POLLIN, 0x55 }, { 1 << 30, POLLIN, 0 }, { 1023, POLLOUT, 0 } };
	for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
		everything(fds[i]);
		DO(write(fds[i], "x", 1));
		DO(read(fds[i], room, 1));
		DO(close(fds[i]));
		DO(dup(fds[i]));
		DO(dup2(fds[i], fds[i]));
	}
	DO(poll(list, 3, 0));
	show_poll(list, 3);
}

static void closed(void)
{
	int fd = udp(5000);
	DO(close(fd));
	everything(fd);
	DO(write(fd, "x", 1));
	DO(read(fd, room, 1));
	DO(readv(fd, &(struct iovec){ room, 1 }, 1));
	DO(writev(fd, &(struct iovec){ room, 1 }, 1));
	DO(close(fd));
}

static void not_sockets(void)
{
	int ends[2];
	must("pipe", pipe(ends));
	everything(ends[0]);
	int epoll = epoll_create1(0);
	everything(epoll);
	DO(read(epoll, room, 1));
	DO(epoll_ctl(epoll, EPOLL_CTL_ADD, epoll, &(struct epoll_event){ .events = EPOLLIN }));
}

/* Pointers to nowhere: an error, never a crash. */
static void sending_from_nowhere(void)
{
	int fd = udp(5000), there = peer_open(PEER, 6000);
	void *nowhere = (void *)16;
	struct iovec part = { nowhere, 10 };
	struct msghdr message = { .msg_name = nowhere, .msg_namelen = 16 };
	DO(sendto(fd, nowhere, 10, 0, ADDRESS(PEER, 6000)));
	DO(sendto(fd, "x", 1, 0, nowhere, 16));
	DO(sendmsg(fd, &message, 0));
	DO(sendmsg(fd, nowhere, 0));
	DO(sendmmsg(fd, nowhere, 1, 0));
	DO(connect(fd, ADDRESS(PEER, 6000)));
	DO(send(fd, nowhere, 10, 0));
	DO(write(fd, nowhere, 3));
	DO(writev(fd, nowhere, 3));
	DO(writev(fd, &part, 1));
	message = (struct msghdr){ .msg_iov = nowhere, .msg_iovlen = 1 };
	DO(sendmsg(fd, &message, 0));
	DO(send(fd, "good", 4, 0));
	peer_hears(there);
	peer_close(there);
}

static void receiving_to_nowhere(void)
{
	int fd = udp(5000), there = peer_open(PEER, 6000);
	void *nowhere = (void *)16;
	socklen_t length = 16;
	struct iovec part = { nowhere, 10 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	for (int i = 0; i < 12; i++)
		peer_say(there, 5000, "nowhere");
	barrier();
	DO(recv(fd, nowhere, 10, MSG_DONTWAIT | MSG_PEEK));
	DO(recv(fd, nowhere, 10, MSG_DONTWAIT));
	DO(read(fd, nowhere, 10));
	DO(readv(fd, &part, 1));
	DO(readv(fd, nowhere, 1));
	DO(recvmsg(fd, &message, MSG_DONTWAIT));
	DO(recvmsg(fd, nowhere, MSG_DONTWAIT));
	DO(recvmmsg(fd, nowhere, 1, MSG_DONTWAIT, NULL));
	DO(recvfrom(fd, room, 10, MSG_DONTWAIT, nowhere, &length));
	DO(recvfrom(fd, room, 10, MSG_DONTWAIT, (struct sockaddr *)room, nowhere));
	int left = 0;
	while (recv(fd, room, 100, MSG_DONTWAIT) >= 0)
		left++;
	line("  %d left", left);
	peer_close(there);
}

static void waiting_nowhere(void)
{
	int fd = udp(5000), epoll = epoll_create1(0);
	void *nowhere = (void *)16;
	struct epoll_event event = { .events = EPOLLIN };
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	DO(poll(nowhere, 1, 0));
	DO(select(fd + 1, nowhere, NULL, NULL, NULL));
	DO(epoll_wait(epoll, nowhere, 1, 0));
	DO(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, nowhere));
	DO(bind(fd, nowhere, 16));
	DO(connect(fd, nowhere, 16));
	DO(getsockname(fd, nowhere, (void *)32));
	DO(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, nowhere, 4));
	DO(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, nowhere, 8));
	DO(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, nowhere, (void *)32));
	DO(ioctl(fd, FIONREAD, nowhere));
}

const probe_case bad_pointer_cases[] = {
	{ "sending_from_nowhere", sending_from_nowhere, true },
	{ "receiving_to_nowhere", receiving_to_nowhere, true },
	{ "waiting_nowhere", waiting_nowhere, true },
	{ NULL, NULL, false },
};

const probe_case bad_descriptor_cases[] = {
	{ "numbers", numbers, false },
	{ "closed", closed, false },
	{ "not_sockets", not_sockets, false },
	{ NULL, NULL, false },
};
