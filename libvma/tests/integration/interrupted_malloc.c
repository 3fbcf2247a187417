/* Socket calls in a handler that has interrupted malloc(), which must not enter malloc() again: it would wait for itself.
 *
 *   interrupted server ADDRESS     for each kind of call, how often it came to malloc() or free()
 *   interrupted client ADDRESS     opens connections, each with a word, and waits for their ends */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

enum { ACCEPTED = 4, WAITING = 3, BIG = 300000 };
static __thread volatile int armed, inside;
static __thread volatile long again;

/* Every entrance: the first one of an armed thread is interrupted. */
static void enter(void)
{
	again += inside;
	if (armed) {
		armed = 0;
		inside = 1;
		raise(SIGUSR1);
		inside = 0;
	}
}

void *malloc(size_t size)
{
	enter();
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	enter();
	return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
	enter();
	return __libc_realloc(old, size);
}

void *memalign(size_t align, size_t size)
{
	enter();
	return __libc_memalign(align, size);
}

void *aligned_alloc(size_t align, size_t size)
{
	return memalign(align, size);
}

int posix_memalign(void **memory, size_t align, size_t size)
{
	*memory = memalign(align, size);
	return *memory == NULL;
}

void free(void *memory)
{
	enter();
	__libc_free(memory);
}

static struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = 0};
static int listener, accepted[ACCEPTED], other, epoll;
static char big[BIG];
static volatile int failed, ran;
static void *volatile memory;

static void must(int good)
{
	failed |= !good;
}

static void sends(void)
{
	for (int i = 0; i < ACCEPTED; i++)
		must(send(accepted[i], big, BIG, MSG_DONTWAIT | MSG_NOSIGNAL) > 0);
}

static void receives(void)
{
	struct iovec parts[2] = {{big, 2}, {big + 2, 100}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
	must(recv(accepted[0], big, 1, MSG_PEEK) == 1);
	must(recvmsg(accepted[0], &message, MSG_DONTWAIT) == 5);
	must(read(accepted[1], big, 100) == 5);
}

static void waits(void)
{
	struct pollfd one = {accepted[2], POLLIN, 0};
	struct epoll_event event = {.events = EPOLLIN, .data.fd = accepted[2]};
	fd_set set;
	must(poll(&one, 1, 100) == 1);
	FD_ZERO(&set);
	FD_SET(accepted[2], &set);
	must(select(accepted[2] + 1, &set, NULL, NULL, NULL) == 1);
	must(epoll_ctl(epoll, EPOLL_CTL_ADD, accepted[2], &event) == 0);
	must(epoll_wait(epoll, &event, 1, 100) == 1);
}

static void sends_datagrams(void)
{
	struct sockaddr_in peer = address;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	peer.sin_addr.s_addr ^= htonl(3);
	must(sendto(fd, "word", 4, 0, (struct sockaddr *)&peer, sizeof peer) == 4);
	close(fd);
}

static void connects(void)
{
	struct sockaddr_in peer = address;
	peer.sin_addr.s_addr ^= htonl(3);
	peer.sin_port = htons(9);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	must(connect(fd, (struct sockaddr *)&peer, sizeof peer) == -1);
	close(fd);
}

static void accepts(void)
{
	other = accept(listener, NULL, NULL);
	must(other >= 0 && recv(other, big, 100, 0) == 5);
}

static void closes(void)
{
	must(close(accepted[0]) == 0 && shutdown(accepted[1], SHUT_WR) == 0 && close(accepted[1]) == 0);
}

static void resets(void)
{
	struct linger at_once = {1, 0};
	must(setsockopt(accepted[2], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
	must(close(accepted[2]) == 0);
}

static void closes_listener(void)
{
	must(close(listener) == 0);
}

static const struct {
	const char *name;
	void (*run)(void);
} CALLS[] = {
	{"receive", receives}, {"wait", waits}, {"send", sends}, {"datagram", sends_datagrams},
	{"connect", connects}, {"accept", accepts}, {"close", closes}, {"reset", resets},
	{"close listener", closes_listener},
};
static void (*volatile now)(void);

static void handler(int signal)
{
	(void)signal;
	now();
	ran = 1;
}

static int server(void)
{
	int one = 1;
	struct pollfd ready;
	listener = socket(AF_INET, SOCK_STREAM, 0);
	epoll = epoll_create1(0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 128) != 0)
		return perror("listen"), 1;
	/* The interface is attached meanwhile. */
	ready = (struct pollfd){listener, POLLIN, 0};
	poll(&ready, 1, 300);
	puts("listening");
	fflush(stdout);
	for (int i = 0; i < ACCEPTED; i++) {
		accepted[i] = accept(listener, NULL, NULL);
		ready.fd = accepted[i];
		poll(&ready, 1, -1);
	}
	/* The last one says that all others are there. */
	if (recv(accepted[ACCEPTED - 1], big, 100, 0) != 5 || recv(accepted[ACCEPTED - 1], big, 100, 0) != 1)
		return perror("recv"), 1;
	signal(SIGUSR1, handler);
	for (size_t i = 0; i < sizeof CALLS / sizeof CALLS[0]; i++) {
		failed = ran = 0;
		now = CALLS[i].run;
		again = 0;
		armed = 1;
		memory = malloc(100);
		free(memory);
		printf("%s %ld%s\n", CALLS[i].name, again, failed ? " failed" : ran ? "" : " was not made");
		fflush(stdout);
	}
	return 0;
}

static int connection(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0 || send(fd, "word.", 5, 0) != 5)
		perror("connect"), exit(1);
	return fd;
}

static int client(void)
{
	int fds[ACCEPTED + WAITING];
	for (int i = 0; i < ACCEPTED + WAITING; i++)
		fds[i] = connection();
	if (send(fds[ACCEPTED - 1], ".", 1, 0) != 1)
		return perror("send"), 1;
	for (int i = 0; i < ACCEPTED + WAITING; i++)
		while (recv(fds[i], big, BIG, 0) > 0)
			;
	return 0;
}

int main(int count, char **words)
{
	(void)count;
	address.sin_port = htons(7000);
	inet_pton(AF_INET, words[2], &address.sin_addr);
	return words[1][0] == 's' ? server() : client();
}
