/*
 * Sends that put nothing on the wire, and then one of each that does.
 *
 * usage: dummy ROUNDS: a UDP and a TCP socket to 10.99.0.2:7000, whose peers get one byte each
 */
#include "extra.h"

#define DUMMY VMA_SND_FLAGS_DUMMY

static void each_way(int fd, struct sockaddr_in *to)
{
	char bytes[64] = "dummy";
	struct iovec part = {bytes, sizeof(bytes)};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	if (to) {
		message.msg_name = to;
		message.msg_namelen = sizeof(*to);
	}
	struct mmsghdr messages[2] = {{.msg_hdr = message}, {.msg_hdr = message}};
	CHECK(sendto(fd, bytes, 64, DUMMY, (struct sockaddr *)to, to ? sizeof(*to) : 0) == 64);
	CHECK(sendmsg(fd, &message, DUMMY) == 64);
	CHECK(sendmmsg(fd, messages, 2, DUMMY) == 2);
	CHECK(messages[0].msg_len == 64 && messages[1].msg_len == 64);
}

static void of_the_kernel(void)
{
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	/* The flag is MSG_SYN, which sockets of other families ignore. */
	char byte;
	struct iovec part = {"x", 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	struct mmsghdr messages = {.msg_hdr = message};
	CHECK(send(pair[0], "x", 1, DUMMY) == 1);
	CHECK(sendto(pair[0], "x", 1, DUMMY, NULL, 0) == 1);
	CHECK(sendmsg(pair[0], &message, DUMMY) == 1);
	CHECK(sendmmsg(pair[0], &messages, 1, DUMMY) == 1);
	for (int sent = 0; sent < 4; sent++)
		CHECK(recv(pair[1], &byte, 1, MSG_DONTWAIT) == 1 && byte == 'x');
	int ends[2];
	CHECK(pipe(ends) == 0);
	FAILS(send(ends[1], "x", 1, DUMMY), ENOTSOCK);
	FAILS(send(-1, "x", 1, DUMMY), EBADF);
	/* A socket that takes IPv6 only is the kernel's, and so is one that was given to it. */
	int six = socket(AF_INET6, SOCK_DGRAM, 0);
	struct sockaddr_in6 six_at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	FAILS(send(six, "x", 1, DUMMY), EDESTADDRREQ);
	CHECK(bind(six, (struct sockaddr *)&six_at, sizeof(six_at)) == 0);
	struct sockaddr_in four_at = address("10.99.0.2", 7000);
	FAILS(sendto(six, "x", 1, DUMMY, (struct sockaddr *)&four_at, sizeof(four_at)), EINVAL);
	/* Others send to mapped addresses, which a socket of AF_INET does not. */
	int both = socket(AF_INET6, SOCK_DGRAM, 0), four = socket(AF_INET, SOCK_DGRAM, 0);
	six_at.sin6_port = htons(7000);
	inet_pton(AF_INET6, "::ffff:10.99.0.2", &six_at.sin6_addr);
	CHECK(sendto(both, "x", 1, DUMMY, (struct sockaddr *)&six_at, sizeof(six_at)) == 1);
	FAILS(sendto(four, "x", 1, DUMMY, (struct sockaddr *)&six_at, sizeof(six_at)), EAFNOSUPPORT);
	int given = bound(SOCK_DGRAM, "10.99.0.1", 5009);
	connected(given, "10.99.0.2", 7000);
	CHECK(send(given, "x", 1, DUMMY) == 1);
	shutdown(given, SHUT_RD);
	FAILS(send(given, "x", 1, DUMMY), EINVAL);
}

static void stream(int rounds)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	char bytes[4096] = {0};
	struct iovec parts[2] = {{bytes, 1}, {bytes, 1}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
	FAILS(send(fd, bytes, 1, DUMMY), EAGAIN);
	connected(fd, "10.99.0.2", 7000);
	FAILS(send(fd, bytes, 0, DUMMY), EAGAIN);
	FAILS(send(fd, bytes, sizeof(bytes), DUMMY), EAGAIN);
	FAILS(send(fd, bytes, 1, DUMMY | MSG_MORE), EAGAIN);
	FAILS(sendmsg(fd, &message, DUMMY), EAGAIN);
	CHECK(send(fd, bytes, 1400, DUMMY) == 1400);
	for (int round = 0; round < rounds; round++) {
		CHECK(send(fd, bytes, 64, DUMMY) == 64);
		each_way(fd, NULL);
	}
	say("stream");
	char go;
	CHECK(read(0, &go, 1) == 1);
	CHECK(send(fd, "t", 1, 0) == 1);
	CHECK(read(0, &go, 1) == 1);
	close(fd);
}

int main(int count, char **words)
{
	int rounds = count > 1 ? atoi(words[1]) : 1;
	struct sockaddr_in to = address("10.99.0.2", 7000);
	of_the_kernel();
	int fd = bound(SOCK_DGRAM, "10.99.0.1", 5000);
	FAILS(send(fd, "x", 1, DUMMY), EDESTADDRREQ);
	char large[65000] = {0};
	CHECK(sendto(fd, large, sizeof(large), DUMMY, (struct sockaddr *)&to, sizeof(to)) == sizeof(large));
	for (int round = 0; round < rounds; round++)
		each_way(fd, &to);
	connected(fd, "10.99.0.2", 7000);
	for (int round = 0; round < rounds; round++) {
		CHECK(send(fd, large, 64, DUMMY) == 64);
		each_way(fd, NULL);
	}
	say("datagrams");
	char go;
	CHECK(read(0, &go, 1) == 1);
	CHECK(send(fd, "u", 1, 0) == 1);
	CHECK(read(0, &go, 1) == 1);
	stream(rounds);
	return 0;
}
