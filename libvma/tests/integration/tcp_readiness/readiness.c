// What epoll tells of many streams: an echo server in each trigger mode, clients that check every
// byte, threads that add to the set of a thread that waits, and what a wait costs.
//
// usage: readiness serve <ip> <port> level|edge|oneshot <connections>   ends when so many have ended
//        readiness visit <ip> <port> <connections> <rounds>
//        readiness cost <ip> <port> <connections>     "nanoseconds 123", with one of them ready
//        readiness added <ip> <port>     to the set of a thread that waits
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DESCRIPTORS 4096
#define ROOM 65536

struct connection {
	char *bytes; // echoed, or to be
	size_t from, to;
	// Of a visitor.
	unsigned seed, round;
	size_t size, sent, received;
};

static struct connection *connections[DESCRIPTORS];
static struct sockaddr_in address;
static int epfd, registry, door, mode, expected, ended;
enum { LEVEL, EDGE, ONESHOT };

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void control(int operation, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.u64 = (uint64_t)fd << 32 | 0x5a5a};
	if (epoll_ctl(registry, operation, fd, &event))
		die("epoll_ctl");
}

static int descriptor(const struct epoll_event *event)
{
	if ((uint32_t)event->data.u64 != 0x5a5a) {
		fprintf(stderr, "data %llx\n", (unsigned long long)event->data.u64);
		exit(1);
	}
	return event->data.u64 >> 32;
}

static struct connection *made(int fd)
{
	if (fd >= DESCRIPTORS) {
		fprintf(stderr, "descriptor %d\n", fd);
		exit(1);
	}
	return connections[fd] = calloc(1, sizeof(struct connection));
}

static void finish(int fd)
{
	free(connections[fd]->bytes);
	free(connections[fd]);
	connections[fd] = NULL;
	close(fd);
	__atomic_add_fetch(&ended, 1, __ATOMIC_SEQ_CST);
}

// Level-triggered, what is waited for follows what is left to do.
static uint32_t wanted(const struct connection *on)
{
	uint32_t side = on->to > on->from ? EPOLLOUT : EPOLLIN;
	if (mode == EDGE)
		return EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
	return mode == ONESHOT ? side | EPOLLONESHOT : side;
}

// Until the kernel, or whoever does its work, says that it would block. True if the stream ended.
static int echo(int fd, struct connection *on)
{
	for (;;) {
		while (on->from < on->to) {
			ssize_t len = send(fd, on->bytes + on->from, on->to - on->from, MSG_NOSIGNAL);
			if (len < 0 && errno == EAGAIN)
				return 0;
			if (len < 0)
				die("send");
			on->from += len;
		}
		ssize_t len = recv(fd, on->bytes, ROOM, 0);
		if (len < 0 && errno == EAGAIN) {
			on->from = on->to = 0;
			return 0;
		}
		if (len < 0)
			die("recv");
		if (len == 0)
			return 1;
		on->from = 0;
		on->to = len;
	}
}

static void *serve(void *unused)
{
	struct epoll_event events[16];
	while (__atomic_load_n(&ended, __ATOMIC_SEQ_CST) < expected) {
		int count = epoll_wait(epfd, events, 16, 100);
		if (count < 0)
			die("epoll_wait");
		for (int i = 0; i < count; i++) {
			int fd = descriptor(&events[i]);
			if (fd == door) {
				int new;
				while ((new = accept4(door, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
					struct connection *on = made(new);
					on->bytes = malloc(ROOM);
					control(EPOLL_CTL_ADD, new, wanted(on));
				}
				if (errno != EAGAIN)
					die("accept");
				if (mode == ONESHOT)
					control(EPOLL_CTL_MOD, door, EPOLLIN | EPOLLONESHOT);
				continue;
			}
			struct connection *on = connections[fd];
			uint32_t before = wanted(on);
			if (echo(fd, on))
				finish(fd);
			else if (mode == ONESHOT || (mode == LEVEL && wanted(on) != before))
				control(EPOLL_CTL_MOD, fd, wanted(on));
		}
	}
	return unused;
}

static void listen_at(void)
{
	static const uint32_t extra[] = {0, EPOLLET, EPOLLONESHOT};
	int on = 1;
	door = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	// Before it listens: it is the same socket afterwards.
	control(EPOLL_CTL_ADD, door, EPOLLIN | extra[mode]);
	if (bind(door, (struct sockaddr *)&address, sizeof address) || listen(door, 1024))
		die("listen");
	// A one-shot one has fired by now if anybody looked: nobody did.
	control(EPOLL_CTL_MOD, door, EPOLLIN | extra[mode]);
	puts("listening");
	fflush(stdout);
}

static int connected(int flags)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd, (struct sockaddr *)&address, sizeof address))
		die("connect");
	if (flags)
		control(EPOLL_CTL_ADD, fd, flags);
	return fd;
}

static unsigned char byte_of(unsigned seed, unsigned round, size_t at)
{
	return seed * 7 + round * 13 + at * 31 + (at >> 8);
}

static void next_round(int fd, struct connection *on)
{
	on->round++;
	// Every tenth has more than buffers hold.
	on->size = on->seed % 10 == 0 ? 400000 : 1 + (on->seed * 131 + on->round * 977) % 5000;
	on->sent = on->received = 0;
	on->bytes = realloc(on->bytes, on->size);
	for (size_t i = 0; i < on->size; i++)
		on->bytes[i] = byte_of(on->seed, on->round, i);
	control(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT);
}

static void visit(int count, unsigned rounds)
{
	static unsigned char room[ROOM];
	struct epoll_event events[32];
	for (int i = 0; i < count; i++) {
		int fd = connected(EPOLLIN);
		made(fd)->seed = i;
		next_round(fd, connections[fd]);
	}
	while (ended < count) {
		int found = epoll_wait(epfd, events, 32, 10000);
		if (found <= 0)
			die("epoll_wait: nothing for 10 s");
		for (int i = 0; i < found; i++) {
			int fd = descriptor(&events[i]);
			struct connection *on = connections[fd];
			if (events[i].events & EPOLLOUT && on->sent < on->size) {
				ssize_t len = send(fd, on->bytes + on->sent, on->size - on->sent, MSG_DONTWAIT);
				if (len <= 0)
					die("send");
				on->sent += len;
				if (on->sent == on->size)
					control(EPOLL_CTL_MOD, fd, EPOLLIN);
			}
			if (!(events[i].events & EPOLLIN))
				continue;
			ssize_t len = recv(fd, room, sizeof room, MSG_DONTWAIT);
			if (len <= 0)
				die("recv");
			for (ssize_t at = 0; at < len; at++)
				if (room[at] != byte_of(on->seed, on->round, on->received + at)) {
					fprintf(stderr, "wrong byte\n");
					exit(1);
				}
			on->received += len;
			if (on->received < on->size)
				continue;
			if (on->round == rounds)
				finish(fd);
			else
				next_round(fd, on);
		}
	}
}

static int64_t nanoseconds(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static int ascending(const void *one, const void *two)
{
	int64_t a = *(const int64_t *)one, b = *(const int64_t *)two;
	return a < b ? -1 : a > b;
}

static void cost(int count)
{
	enum { BATCHES = 101, BATCH = 200 };
	int64_t taken[BATCHES];
	struct epoll_event events[8];
	int last = -1;
	for (int i = 0; i < count; i++)
		last = connected(EPOLLIN);
	if (send(last, "x", 1, 0) != 1)
		die("send");
	if (epoll_wait(epfd, events, 8, 10000) != 1)
		die("epoll_wait");
	for (int batch = 0; batch < BATCHES; batch++) {
		int64_t start = nanoseconds();
		for (int i = 0; i < BATCH; i++)
			if (epoll_wait(epfd, events, 8, 0) != 1 || descriptor(&events[0]) != last)
				die("epoll_wait");
		taken[batch] = (nanoseconds() - start) / BATCH;
	}
	// What is left unread would reset the connection.
	char byte;
	if (recv(last, &byte, 1, 0) != 1)
		die("recv");
	qsort(taken, BATCHES, sizeof *taken, ascending);
	printf("nanoseconds %lld\n", (long long)taken[BATCHES / 2]);
}

static int reported;

static void *waiter(void *unused)
{
	struct epoll_event event;
	if (epoll_wait(epfd, &event, 1, 10000) == 1)
		reported = descriptor(&event);
	return unused;
}

// The thread waits in the kernel, which knows nothing of the stream that is added then; later it
// waits for streams already.
static void added(void)
{
	int counter = eventfd(0, EFD_NONBLOCK);
	// As mio has it: one number to wait by, another one to register by.
	registry = dup(epfd);
	control(EPOLL_CTL_ADD, counter, EPOLLIN);
	for (int turn = 0; turn < 3; turn++) {
		pthread_t thread;
		char byte;
		int fd = connected(0);
		reported = -1;
		pthread_create(&thread, NULL, waiter, NULL);
		usleep(50000);
		if (turn == 2) {
			// Ready when it is added.
			send(fd, "x", 1, 0);
			recv(fd, &byte, 1, MSG_PEEK);
			control(EPOLL_CTL_ADD, fd, EPOLLIN);
		} else {
			control(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
			usleep(20000);
			send(fd, "x", 1, 0);
		}
		pthread_join(thread, NULL);
		if (reported != fd) {
			fprintf(stderr, "turn %d: %d, not %d\n", turn, reported, fd);
			exit(1);
		}
		if (recv(fd, &byte, 1, 0) != 1)
			die("recv");
	}
	// And what is not a socket, as before.
	pthread_t thread;
	pthread_create(&thread, NULL, waiter, NULL);
	usleep(50000);
	eventfd_write(counter, 1);
	pthread_join(thread, NULL);
	if (reported != counter)
		die("the counter");
}

int main(int count, char **words)
{
	if (count < 4)
		return 2;
	address.sin_family = AF_INET;
	address.sin_addr.s_addr = inet_addr(words[2]);
	address.sin_port = htons(atoi(words[3]));
	registry = epfd = epoll_create1(0);
	if (!strcmp(words[1], "serve")) {
		pthread_t threads[4];
		mode = !strcmp(words[4], "edge") ? EDGE : !strcmp(words[4], "oneshot") ? ONESHOT : LEVEL;
		expected = atoi(words[5]);
		listen_at();
		// With EPOLLONESHOT no two of them get the same stream.
		int more = mode == ONESHOT ? 4 : 0;
		for (int i = 0; i < more; i++)
			pthread_create(&threads[i], NULL, serve, NULL);
		serve(NULL);
		for (int i = 0; i < more; i++)
			pthread_join(threads[i], NULL);
	} else if (!strcmp(words[1], "visit")) {
		visit(atoi(words[4]), atoi(words[5]));
	} else if (!strcmp(words[1], "cost")) {
		cost(atoi(words[4]));
	} else {
		added();
	}
	return 0;
}
