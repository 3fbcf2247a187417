/* One of two programs that exchange bytes which tell where they belong, until one of them is killed.
 *
 * usage: twin serve|call tcp|udp <port> blocking|epoll <bytes>
 *
 * A server serves one peer after the other. Either sends at most so many bytes, and a caller ends with
 * its peer, or once as many have come.
 * Either says how many bytes came, and ends with 9 at the first one that is wrong. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCK 65536

static void must(const char *what, long result)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s\n", what, strerror(errno));
		_exit(8);
	}
}

static void wrong(const char *what, uint64_t at)
{
	fprintf(stderr, "WRONG: %s at %llu\n", what, (unsigned long long)at);
	_exit(9);
}

static uint64_t random_word(void)
{
	uint64_t word;
	must("getrandom", getrandom(&word, sizeof word, 0));
	return word;
}

/* What the bytes from `at` of the stream with this key are. */
static void pattern(uint8_t *bytes, uint64_t key, uint64_t at, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		uint64_t word = (key + ((at + i) >> 3)) * 0x9e3779b97f4a7c15u;
		bytes[i] = word >> 8 * ((at + i) & 7);
	}
}

static struct sockaddr_in address(int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return at;
}

/* A direction of a stream: its first eight bytes are its key. */
struct direction {
	uint64_t key, done;
};

/* The next part of what we send; its length. */
static size_t next_part(struct direction *out, uint8_t *bytes, unsigned *seed)
{
	size_t length = 1 + rand_r(seed) % (rand_r(seed) % 4 ? 300 : BLOCK - 8);
	if (out->done == 0) {
		memcpy(bytes, &out->key, sizeof out->key);
		pattern(bytes + 8, out->key, 8, length);
		return length + 8;
	}
	pattern(bytes, out->key, out->done, length);
	return length;
}

static void check(struct direction *in, const uint8_t *bytes, size_t length)
{
	static __thread uint8_t expected[BLOCK];
	size_t at = 0;
	while (at < length && in->done < 8) {
		((uint8_t *)&in->key)[in->done++] = bytes[at++];
	}
	pattern(expected, in->key, in->done, length - at);
	if (memcmp(expected, bytes + at, length - at) != 0)
		wrong("a byte of the stream", in->done);
	in->done += length - at;
}

struct conversation {
	int fd;
	bool calls;
	uint64_t most;
	struct direction in, out;
};

static bool has_enough(const struct conversation *with)
{
	return with->calls && with->in.done >= with->most;
}

/* The end of a peer, whatever it looks like. */
static bool is_end(void)
{
	return errno == ECONNRESET || errno == EPIPE;
}

static void *writing(void *argument)
{
	struct conversation *with = argument;
	static __thread uint8_t bytes[BLOCK];
	unsigned seed = with->out.key;
	while (with->out.done < with->most) {
		size_t length = next_part(&with->out, bytes, &seed), done = 0;
		while (done < length) {
			ssize_t sent = send(with->fd, bytes + done, length - done, MSG_NOSIGNAL);
			if (sent < 0) {
				if (!is_end())
					must("send", sent);
				return NULL;
			}
			done += sent;
		}
		with->out.done += length;
	}
	shutdown(with->fd, SHUT_WR);
	return NULL;
}

static void exchange_blocking(struct conversation *with)
{
	static uint8_t bytes[BLOCK];
	pthread_t writer;
	must("pthread_create", -pthread_create(&writer, NULL, writing, with));
	for (;;) {
		ssize_t length = recv(with->fd, bytes, sizeof bytes, 0);
		if (length < 0 && !is_end())
			must("recv", length);
		if (length <= 0)
			break;
		check(&with->in, bytes, length);
		if (has_enough(with))
			break;
	}
	pthread_join(writer, NULL);
}

static void exchange_by_epoll(struct conversation *with)
{
	static uint8_t bytes[BLOCK], part[BLOCK];
	size_t length = 0, done = 0;
	unsigned seed = with->out.key;
	int epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT };
	must("epoll_create1", epoll);
	must("fcntl", fcntl(with->fd, F_SETFL, O_NONBLOCK));
	must("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_ADD, with->fd, &event));
	bool wants_out = true, ended = false;
	for (;;) {
		int ready = epoll_wait(epoll, &event, 1, -1);
		/* SIGCONT interrupts it. */
		if (ready < 0 && errno == EINTR)
			continue;
		must("epoll_wait", ready);
		if (event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
			ssize_t got = recv(with->fd, bytes, sizeof bytes, 0);
			if (got < 0 && errno != EAGAIN) {
				if (!is_end())
					must("recv", got);
				break;
			}
			if (got == 0) {
				if (!wants_out)
					break;
				/* The other half is still open, unless sending tells otherwise. */
				ended = true;
				event.events = EPOLLOUT;
				must("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_MOD, with->fd, &event));
			}
			if (got > 0)
				check(&with->in, bytes, got);
			if (has_enough(with) && !wants_out)
				break;
		}
		while (wants_out && (event.events & EPOLLOUT)) {
			if (done == length) {
				if (with->out.done >= with->most) {
					if (has_enough(with) || ended) {
						close(epoll);
						return;
					}
					shutdown(with->fd, SHUT_WR);
					event.events = EPOLLIN;
					must("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_MOD, with->fd, &event));
					wants_out = false;
					break;
				}
				length = next_part(&with->out, part, &seed);
				with->out.done += length;
				done = 0;
			}
			ssize_t sent = send(with->fd, part + done, length - done, MSG_NOSIGNAL);
			if (sent < 0) {
				/* A peer that is gone shows as readable, too. */
				if (errno != EAGAIN && (ended || !is_end())) {
					if (!is_end())
						must("send", sent);
					close(epoll);
					return;
				}
				break;
			}
			done += sent;
		}
	}
	close(epoll);
}

static uint64_t exchange(int fd, bool calls, bool by_epoll, uint64_t most)
{
	struct conversation with = { fd, calls, most, { 0 }, { random_word(), 0 } };
	if (by_epoll)
		exchange_by_epoll(&with);
	else
		exchange_blocking(&with);
	close(fd);
	return with.in.done;
}

static void say(const char *what, uint64_t count)
{
	printf("%s %llu\n", what, (unsigned long long)count);
	fflush(stdout);
}

static void serve_tcp(int port, bool by_epoll, uint64_t most)
{
	struct sockaddr_in at = address(port);
	int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must("setsockopt", setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int)));
	must("bind", bind(listening, (struct sockaddr *)&at, sizeof at));
	must("listen", listen(listening, 16));
	say("listening", port);
	for (;;) {
		int fd = accept(listening, NULL, NULL);
		must("accept", fd);
		say("served", exchange(fd, false, by_epoll, most));
	}
}

static void call_tcp(int port, bool by_epoll, uint64_t most)
{
	struct sockaddr_in at = address(port);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd, (struct sockaddr *)&at, sizeof at) < 0) {
		if (errno != ECONNREFUSED && errno != ECONNRESET)
			must("connect", -1);
		say("refused", 0);
		return;
	}
	say("got", exchange(fd, true, by_epoll, most));
}

/* What a datagram begins with. */
struct head {
	uint64_t key, number;
	uint32_t length, check;
};

static void check_datagram(const uint8_t *bytes, ssize_t length, struct head *head)
{
	static uint8_t expected[BLOCK];
	if (length < (ssize_t)sizeof *head)
		wrong("a short datagram", length);
	memcpy(head, bytes, sizeof *head);
	if (head->length != length || head->check != (uint32_t)(head->key ^ head->number))
		wrong("a datagram's head", head->number);
	pattern(expected, head->key, head->number, length - sizeof *head);
	if (memcmp(expected, bytes + sizeof *head, length - sizeof *head) != 0)
		wrong("a datagram's bytes", head->number);
}

static void serve_udp(int port, bool by_epoll)
{
	static uint8_t bytes[BLOCK];
	struct sockaddr_in at = address(port), from;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	must("bind", bind(fd, (struct sockaddr *)&at, sizeof at));
	struct pollfd wait = { fd, POLLIN, 0 };
	if (by_epoll)
		must("fcntl", fcntl(fd, F_SETFL, O_NONBLOCK));
	say("listening", port);
	for (;;) {
		struct head head;
		socklen_t size = sizeof from;
		if (by_epoll)
			must("poll", poll(&wait, 1, -1));
		ssize_t length = recvfrom(fd, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &size);
		if (length < 0 && errno == EAGAIN)
			continue;
		must("recvfrom", length);
		check_datagram(bytes, length, &head);
		if (sendto(fd, bytes, length, 0, (struct sockaddr *)&from, size) < 0 && errno != EAGAIN)
			must("sendto", -1);
	}
}

static void call_udp(int port, uint64_t most)
{
	static uint8_t bytes[BLOCK];
	struct sockaddr_in at = address(port);
	struct timeval patience = { 0, 100000 };
	int fd = socket(AF_INET, SOCK_DGRAM, 0), in_vain = 0;
	uint64_t key = random_word(), sent = 0, last = 0, received = 0;
	unsigned seed = key;
	must("setsockopt", setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience));
	must("connect", connect(fd, (struct sockaddr *)&at, sizeof at));
	while (received < most && in_vain < 5) {
		for (int i = 0; i < 4; i++) {
			struct head head = { key, ++sent };
			head.length = sizeof head + rand_r(&seed) % (rand_r(&seed) % 4 ? 300 : 20000);
			head.check = head.key ^ head.number;
			memcpy(bytes, &head, sizeof head);
			pattern(bytes + sizeof head, key, sent, head.length - sizeof head);
			if (send(fd, bytes, head.length, 0) < 0 && errno != ECONNREFUSED && errno != EAGAIN)
				must("send", -1);
		}
		for (int i = 0; i < 4; i++) {
			struct head head;
			ssize_t length = recv(fd, bytes, sizeof bytes, 0);
			if (length < 0) {
				if (errno != ECONNREFUSED && errno != EAGAIN)
					must("recv", length);
				if (errno == ECONNREFUSED)
					usleep(20000);
				in_vain++;
				break;
			}
			check_datagram(bytes, length, &head);
			if (head.key != key)
				wrong("somebody else's datagram", head.number);
			if (head.number <= last)
				wrong("the order of datagrams", head.number);
			last = head.number;
			received += length;
			in_vain = 0;
		}
	}
	say("got", received);
}

int main(int count, char **words)
{
	if (count != 6)
		return 2;
	signal(SIGPIPE, SIG_IGN);
	bool serves = strcmp(words[1], "serve") == 0, tcp = strcmp(words[2], "tcp") == 0;
	bool by_epoll = strcmp(words[4], "epoll") == 0;
	int port = atoi(words[3]);
	uint64_t most = strtoull(words[5], NULL, 10);
	if (serves && tcp)
		serve_tcp(port, by_epoll, most);
	else if (serves)
		serve_udp(port, by_epoll);
	else if (tcp)
		call_tcp(port, by_epoll, most);
	else
		call_udp(port, most);
	return 0;
}
