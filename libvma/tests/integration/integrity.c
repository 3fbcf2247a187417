/* Connections of random sizes whose ends fork, exec, pass the descriptor on, change threads and close
 * early: every byte is there, in order and once, or the reader gets an error.
 *
 *   integrity server ADDRESS PORT MODEL COUNT            MODEL: thread or fork, for each connection
 *   integrity client ADDRESS PORT COUNT SEED THREADS
 *   integrity go-on FD STATE                             what exec() starts
 *
 * Each end prints "done" for each connection that ended as it should, and "FAIL ..." for all others. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* What an end does in the middle of its connection. */
enum change {
	NOTHING,
	CHILD_GOES_ON,  /* fork; the parent closes at once */
	PARENT_GOES_ON, /* fork; the child exits at once */
	EXEC,           /* fork; the child executes a program, which goes on */
	PASS,           /* another process gets the descriptor by SCM_RIGHTS */
	THREAD,
	DUPLICATE,      /* dup, close of the first number */
	SYSTEM,         /* a program runs meanwhile */
	CLOSE_EARLY,    /* close with unread data: the peer may get an error from there on */
	CHANGES
};
static const char *const names[] = {"nothing", "child-goes-on", "parent-goes-on", "exec", "pass", "thread", "duplicate", "system", "close-early"};

/* An end of a connection, in a form that survives exec and passing. */
struct state {
	uint64_t seed, random;
	uint64_t to_send, sent, to_receive, received, change_at;
	int32_t is_client, change, peer_change, shut;
};

/* What the client tells first. */
struct header {
	uint64_t seed, up, down, change_at;
	int32_t server_change, client_change;
};

static int helper = -1; /* takes descriptors and goes on with them */
static char *self;

static void finish(int fd, struct state *s);

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
	return *x;
}

/* The byte at a position of a direction's stream. */
static unsigned char at(uint64_t seed, uint64_t position)
{
	uint64_t x = (seed + position / 8) * 0x9e3779b97f4a7c15u;
	x ^= x >> 29;
	return (unsigned char)(x >> (8 * (position % 8)));
}

static uint64_t stream(const struct state *s, int sent_by_client)
{
	return s->seed * 2 + (uint64_t)sent_by_client;
}

static void say(const char *text)
{
	if (write(1, text, strlen(text)) < 0)
		abort();
}

static void fail(const struct state *s, const char *what, int error)
{
	char line[400];
	snprintf(line, sizeof line, "FAIL %s: %s (%s); own change %s, the peer's %s; sent %llu of %llu, received %llu of %llu; seed %llu\n",
	         s->is_client ? "client" : "server", what, error ? strerror(error) : "no error", names[s->change], names[s->peer_change],
	         (unsigned long long)s->sent, (unsigned long long)s->to_send, (unsigned long long)s->received,
	         (unsigned long long)s->to_receive, (unsigned long long)s->seed);
	say(line);
}

/* An error of the connection: right only if the peer closed early. */
static void error_or_done(const struct state *s, const char *what, int error)
{
	if (s->peer_change == CLOSE_EARLY && (error == ECONNRESET || error == EPIPE))
		say("done\n");
	else
		fail(s, what, error);
}

/* A process that does not end by itself has not said how its connection ended. */
static void ended(pid_t child, int status)
{
	char line[100];
	if (child > 0 && status != 0) {
		snprintf(line, sizeof line, "FAIL a process ended with status %#x\n", status);
		say(line);
	}
}

/* Waits for a child, or for any (-1); 0 if there is none any more. */
static int wait_for(pid_t child, int options)
{
	int status;
	child = waitpid(child, &status, options);
	ended(child, status);
	return child > 0;
}

static void hand_to_helper(int fd, const struct state *s)
{
	char room[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec data = {(void *)s, sizeof *s};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &fd, sizeof fd);
	if (sendmsg(helper, &message, 0) < 0)
		fail(s, "passing", errno);
}

static void help(int from)
{
	for (;;) {
		struct state s;
		char room[CMSG_SPACE(sizeof(int))];
		struct iovec data = {&s, sizeof s};
		struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
		if (recvmsg(from, &message, 0) <= 0) {
			while (wait_for(-1, 0))
				;
			_exit(0);
		}
		int fd;
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
		if (fork() == 0) {
			finish(fd, &s);
			_exit(0);
		}
		close(fd);
		while (wait_for(-1, WNOHANG))
			;
	}
}

static void start_helper(void)
{
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0)
		abort();
	if (fork() == 0) {
		close(pair[0]);
		/* Ends with the last process that could send. */
		help(pair[1]);
	}
	close(pair[1]);
	helper = pair[0];
	fcntl(helper, F_SETFD, FD_CLOEXEC);
}

struct job {
	int fd;
	struct state state;
};

static void *in_thread(void *argument)
{
	struct job job = *(struct job *)argument;
	free(argument);
	finish(job.fd, &job.state);
	return NULL;
}

/* Makes the change. True: somebody else goes on. */
static int change(int *fd, struct state *s)
{
	enum change what = s->change;
	char number[16], text[2 * sizeof *s + 1];
	pid_t child;
	s->change_at = UINT64_MAX;
	switch (what) {
	case CHILD_GOES_ON:
	case EXEC:
		for (size_t i = 0; i < sizeof *s; i++)
			sprintf(text + 2 * i, "%02x", ((unsigned char *)s)[i]);
		snprintf(number, sizeof number, "%d", *fd);
		child = fork();
		if (child == 0) {
			if (what == EXEC) {
				fcntl(*fd, F_SETFD, 0);
				execl(self, self, "go-on", number, text, NULL);
				fail(s, "exec", errno);
				_exit(1);
			}
			/* Of connections that other threads have: two children that wait for the end of each
			 * other's, and keep it from coming, would wait for ever. */
			close_range(3, (unsigned)*fd - 1, 0), close_range((unsigned)*fd + 1, ~0u, 0);
			finish(*fd, s);
			_exit(0);
		}
		close(*fd);
		wait_for(child, 0);
		return 1;
	case PARENT_GOES_ON:
		child = fork();
		if (child == 0)
			_exit(0);
		if (next(&s->random) & 1)
			wait_for(child, 0);
		return 0;
	case PASS:
		hand_to_helper(*fd, s);
		close(*fd);
		return 1;
	case THREAD: {
		pthread_t thread;
		struct job *job = malloc(sizeof *job);
		*job = (struct job){*fd, *s};
		if (pthread_create(&thread, NULL, in_thread, job) != 0)
			abort();
		pthread_join(thread, NULL);
		return 1;
	}
	case DUPLICATE: {
		int other = dup(*fd);
		close(*fd);
		*fd = other;
		return 0;
	}
	case SYSTEM:
		if (system("exit 0") != 0)
			fail(s, "system", errno);
		return 0;
	case CLOSE_EARLY:
		close(*fd);
		say("done\n");
		return 1;
	default:
		return 0;
	}
}

/* After so long without progress a connection is reported; then it has so long to go on. */
enum { WATCH_MS = 10000, PATIENCE_MS = 15000 };

/* Tells the test to look at both ends. */
static void stalled(int fd, const struct state *s)
{
	/* The port is at the same place in addresses of both families. */
	struct sockaddr_in6 own = {0}, peer = {0};
	socklen_t own_len = sizeof own, peer_len = sizeof peer;
	getsockname(fd, (struct sockaddr *)&own, &own_len);
	getpeername(fd, (struct sockaddr *)&peer, &peer_len);
	fprintf(stderr, "STALL %s, process %d, fd %d, ports %d and %d: own change %s, the peer's %s; sent %llu of %llu, received %llu of %llu; seed %llu\n",
	        s->is_client ? "client" : "server", getpid(), fd, ntohs(own.sin6_port), ntohs(peer.sin6_port), names[s->change], names[s->peer_change],
	        (unsigned long long)s->sent, (unsigned long long)s->to_send, (unsigned long long)s->received,
	        (unsigned long long)s->to_receive, (unsigned long long)s->seed);
}

/* Sends and receives what is left, and closes. */
static void finish(int fd, struct state *s)
{
	static _Thread_local unsigned char buffer[1 << 17];
	int ended = 0;
	while (!ended || s->sent < s->to_send) {
		if (s->sent + s->received >= s->change_at && change(&fd, s))
			return;
		struct pollfd one = {fd, (short)((ended ? 0 : POLLIN) | (s->sent < s->to_send ? POLLOUT : 0)), 0};
		int ready = poll(&one, 1, WATCH_MS);
		if (ready == 0) {
			stalled(fd, s);
			ready = poll(&one, 1, PATIENCE_MS);
		}
		if (ready <= 0) {
			fail(s, "nothing moves any more", ready ? errno : 0);
			close(fd);
			return;
		}
		/* Mostly some kilobytes, at times a byte, at times much. */
		uint64_t kind = next(&s->random) % 8, size = next(&s->random);
		size = kind == 0 ? 1 : kind == 1 ? 1 + size % sizeof buffer : 1 + size % 6000;
		if (one.revents & (POLLIN | POLLHUP | POLLERR) && !ended) {
			ssize_t got = recv(fd, buffer, size, MSG_DONTWAIT);
			if (got < 0 && errno != EAGAIN) {
				error_or_done(s, "recv", errno);
				close(fd);
				return;
			}
			if (got == 0) {
				ended = 1;
				if (s->received < s->to_receive && s->peer_change != CLOSE_EARLY) {
					fail(s, "a clean end too early", 0);
					close(fd);
					return;
				}
			}
			for (ssize_t i = 0; i < got; i++)
				if (buffer[i] != at(stream(s, !s->is_client), s->received + (uint64_t)i)) {
					fail(s, "another byte", 0);
					close(fd);
					return;
				}
			s->received += got > 0 ? (uint64_t)got : 0;
			if (s->received > s->to_receive) {
				fail(s, "too many bytes", 0);
				close(fd);
				return;
			}
		}
		if (one.revents & POLLOUT && s->sent < s->to_send) {
			if (size > s->to_send - s->sent)
				size = s->to_send - s->sent;
			for (uint64_t i = 0; i < size; i++)
				buffer[i] = at(stream(s, s->is_client), s->sent + i);
			ssize_t put = send(fd, buffer, size, MSG_DONTWAIT | MSG_NOSIGNAL);
			if (put < 0 && errno != EAGAIN) {
				error_or_done(s, "send", errno);
				close(fd);
				return;
			}
			s->sent += put > 0 ? (uint64_t)put : 0;
		}
		if (s->sent == s->to_send && !s->shut) {
			s->shut = 1;
			/* Who has everything may as well close. */
			if (s->received < s->to_receive || next(&s->random) & 1)
				shutdown(fd, SHUT_WR);
			else if (s->received == s->to_receive)
				break;
		}
	}
	close(fd);
	say("done\n");
}

static void limit_waiting(int fd)
{
	struct timeval patience = {15, 0};
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
}

/* The reset of a peer that closed early may be lost, and nothing repeats it: an end that has sent everything
 * learns of it only if it asks (RFC 9293 section 3.8.4). For all other connections keep-alives would hide what
 * this program looks for. */
static void ask_early_closer(int fd, const struct state *s)
{
	int on = 1, seconds = 2;
	if (s->peer_change != CLOSE_EARLY)
		return;
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
}

static void serve(int fd)
{
	struct header h;
	struct state s = {.random = 88172645463325252u ^ (uint64_t)fd};
	limit_waiting(fd);
	ssize_t got;
	/* While another thread is in system(), which blocks SIGCHLD in that thread only, this one gets the signal.
	 * A call with a time limit then ends with EINTR, although there is no handler (signal(7)). */
	do
		got = recv(fd, &h, sizeof h, MSG_WAITALL);
	while (got < 0 && errno == EINTR);
	if (got != sizeof h) {
		fail(&s, "header", got < 0 ? errno : 0);
		close(fd);
		return;
	}
	s.seed = h.seed, s.random += h.seed, s.to_send = h.down, s.to_receive = h.up;
	s.change = h.server_change, s.peer_change = h.client_change, s.change_at = h.change_at;
	ask_early_closer(fd, &s);
	finish(fd, &s);
}

static void *serve_in_thread(void *argument)
{
	serve((int)(intptr_t)argument);
	return NULL;
}

static struct addrinfo *address(char **words)
{
	struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *to = NULL;
	if (getaddrinfo(words[0], words[1], &hints, &to) != 0)
		abort();
	return to;
}

static int server(char **words)
{
	struct addrinfo *to = address(words);
	int forks = strcmp(words[2], "fork") == 0, count = atoi(words[3]), one = 1;
	int listener = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, to->ai_addr, to->ai_addrlen) != 0 || listen(listener, 256) != 0)
		return perror("listen"), 1;
	pthread_t *threads = calloc((size_t)count, sizeof *threads);
	for (int i = 0; i < count; i++) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			return perror("accept"), 1;
		if (!forks) {
			if (pthread_create(&threads[i], NULL, serve_in_thread, (void *)(intptr_t)fd) != 0)
				abort();
			continue;
		}
		if (fork() == 0) {
			close(listener);
			serve(fd);
			/* As an ordinary program: its children go on without it. */
			exit(0);
		}
		close(fd);
	}
	for (int i = 0; i < count && !forks; i++)
		pthread_join(threads[i], NULL);
	close(helper);
	while (wait_for(-1, 0))
		;
	return 0;
}

static struct addrinfo *target;
static uint64_t first_seed;
static int connections;
static _Atomic int number;

static void *client_thread(void *argument)
{
	(void)argument;
	for (int mine = number++; mine < connections; mine = number++) {
		struct state s = {.is_client = 1, .seed = first_seed + (uint64_t)mine};
		s.random = s.seed * 0x9e3779b97f4a7c15u | 1;
		for (int i = 0; i < 8; i++)
			next(&s.random);
		/* Some are short, some are long. */
		uint64_t most = next(&s.random) % 4 ? 20000 : 600000;
		s.to_send = next(&s.random) % most, s.to_receive = next(&s.random) % most;
		s.change = (int)(next(&s.random) % CHANGES), s.peer_change = (int)(next(&s.random) % CHANGES);
		uint64_t all = s.to_send + s.to_receive + 1;
		s.change_at = next(&s.random) % all;
		struct header h = {s.seed, s.to_send, s.to_receive, next(&s.random) % all, s.peer_change, s.change};
		int fd = socket(target->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (connect(fd, target->ai_addr, target->ai_addrlen) != 0) {
			fail(&s, "connect", errno);
			close(fd);
			continue;
		}
		if (send(fd, &h, sizeof h, MSG_NOSIGNAL) != sizeof h) {
			fail(&s, "sending the header", errno);
			close(fd);
			continue;
		}
		ask_early_closer(fd, &s);
		finish(fd, &s);
	}
	return NULL;
}

static int client(char **words)
{
	target = address(words), connections = atoi(words[2]), first_seed = strtoull(words[3], NULL, 10);
	int threads = atoi(words[4]);
	pthread_t thread[64];
	for (int i = 0; i < threads; i++)
		if (pthread_create(&thread[i], NULL, client_thread, NULL) != 0)
			abort();
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	close(helper);
	while (wait_for(-1, 0))
		;
	return 0;
}

int main(int argc, char **words)
{
	signal(SIGPIPE, SIG_IGN);
	self = realpath("/proc/self/exe", NULL);
	if (argc == 4 && strcmp(words[1], "go-on") == 0) {
		struct state s;
		for (size_t i = 0; i < sizeof s; i++)
			sscanf(words[3] + 2 * i, "%2hhx", (unsigned char *)&s + i);
		finish(atoi(words[2]), &s);
		return 0;
	}
	/* Before any socket of the Internet. */
	start_helper();
	if (argc == 6 && strcmp(words[1], "server") == 0)
		return server(words + 2);
	if (argc == 7 && strcmp(words[1], "client") == 0)
		return client(words + 2);
	fprintf(stderr, "usage: see the source\n");
	return 2;
}
