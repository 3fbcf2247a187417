// Short connections, many a second: one request, one answer, closed.
//
// usage: connections server <ip> <first port> <ports> orderly|abort
//        connections client <ip> <first port> <ports> orderly|abort <rate> <rounds> <seconds>
//
// The server answers and, if orderly, closes first (so that TIME-WAIT is its own); if not, the client
// resets the connection after the answer. The client starts <rate> connections a second, or as many
// as it can with 256 at once; after each round it waits until all have ended and prints
//     round 1 done 30000 failed 0 seconds 3.01 rss 12345 descriptors 12
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define AT_ONCE 256
#define DESCRIPTORS 20000
#define MESSAGE 64
#define STEP_LIMIT 10

enum step { NONE, LISTENING, CONNECTING, ANSWERING, ENDING };

static enum step steps[DESCRIPTORS];
static double started[DESCRIPTORS];
static int orderly, epfd, open_now;
static long done, failed;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void watch(int fd, enum step step, unsigned events, int operation)
{
	struct epoll_event event = {.events = events, .data.fd = fd};
	if (fd >= DESCRIPTORS) {
		fprintf(stderr, "descriptor %d\n", fd);
		exit(1);
	}
	steps[fd] = step;
	if (epoll_ctl(epfd, operation, fd, &event))
		die("epoll_ctl");
}

static void end(int fd, int reset)
{
	struct linger linger = {.l_onoff = 1};
	if (reset && setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger))
		die("SO_LINGER");
	steps[fd] = NONE;
	if (close(fd))
		die("close");
	open_now--;
}

static void fail(int fd, const char *what)
{
	if (failed++ < 10)
		fprintf(stderr, "%s after %.3f s: %s\n", what, now() - started[fd], strerror(errno));
	end(fd, 1);
}

static void serve(int fd)
{
	char buffer[MESSAGE];
	if (steps[fd] == LISTENING) {
		for (;;) {
			int connection = accept4(fd, NULL, NULL, SOCK_NONBLOCK);
			if (connection < 0) {
				if (errno != EAGAIN && errno != ECONNABORTED)
					die("accept4");
				return;
			}
			open_now++;
			watch(connection, ANSWERING, EPOLLIN, EPOLL_CTL_ADD);
		}
	}
	ssize_t len = recv(fd, buffer, sizeof buffer, 0);
	if (len == MESSAGE && steps[fd] == ANSWERING) {
		if (send(fd, buffer, len, MSG_NOSIGNAL) != len)
			end(fd, 1);
		else if (orderly)
			end(fd, 0);
		else
			steps[fd] = ENDING;
	} else if (len >= 0 || errno != EAGAIN) {
		end(fd, 0);
	}
}

static void run_server(const struct sockaddr_in *at, int ports)
{
	struct epoll_event events[AT_ONCE];
	int on = 1;
	for (int n = 0; n < ports; n++) {
		struct sockaddr_in one = *at;
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		one.sin_port = htons(ntohs(at->sin_port) + n);
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		if (fd < 0 || bind(fd, (void *)&one, sizeof one) || listen(fd, 4096))
			die("listen");
		watch(fd, LISTENING, EPOLLIN, EPOLL_CTL_ADD);
	}
	for (;;) {
		int count = epoll_wait(epfd, events, AT_ONCE, -1);
		if (count < 0 && errno != EINTR)
			die("epoll_wait");
		for (int i = 0; i < count; i++)
			serve(events[i].data.fd);
	}
}

static void start(const struct sockaddr_in *to)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
	if (fd < 0)
		die("socket");
	// As a load generator does: the port is chosen with the peer in mind.
	setsockopt(fd, IPPROTO_IP, 24 /* IP_BIND_ADDRESS_NO_PORT */, &on, sizeof on);
	open_now++;
	started[fd] = now();
	watch(fd, CONNECTING, EPOLLOUT, EPOLL_CTL_ADD);
	if (connect(fd, (void *)to, sizeof *to) && errno != EINPROGRESS)
		fail(fd, "connect");
}

static void proceed(int fd)
{
	char buffer[MESSAGE] = "short";
	if (steps[fd] == CONNECTING) {
		socklen_t len = sizeof errno;
		if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &errno, &len) || errno)
			return fail(fd, "connect");
		if (send(fd, buffer, MESSAGE, MSG_NOSIGNAL) != MESSAGE)
			return fail(fd, "send");
		return watch(fd, ANSWERING, EPOLLIN, EPOLL_CTL_MOD);
	}
	ssize_t len = recv(fd, buffer, sizeof buffer, 0);
	if (len < 0)
		return errno == EAGAIN ? (void)0 : fail(fd, "recv");
	if (steps[fd] == ANSWERING && len == MESSAGE && !strcmp(buffer, "short")) {
		if (orderly) {
			steps[fd] = ENDING;
			return;
		}
	} else if (steps[fd] != ENDING || len) {
		errno = EPROTO;
		return fail(fd, "recv");
	}
	done++;
	end(fd, !orderly);
}

static long resident_kib(void)
{
	long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	if (!file || fscanf(file, "%*d %ld", &pages) != 1)
		die("statm");
	fclose(file);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int is_transmit_ring(int fd)
{
	int domain = 0;
	socklen_t len = sizeof domain;
	getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len);
	return domain == AF_XDP;
}

// Those of the library's rings are left out: a further one is opened when two threads send at once.
static int descriptors(void)
{
	int count = -3; // . and .. and the folder itself
	DIR *folder = opendir("/proc/self/fd");
	for (struct dirent *entry; (entry = readdir(folder));)
		count += !is_transmit_ring(atoi(entry->d_name));
	closedir(folder);
	return count;
}

static void run_round(const struct sockaddr_in *to, int ports, double rate, double seconds)
{
	struct epoll_event events[AT_ONCE];
	double begin = now(), time = begin;
	long begun = 0;
	while (time < begin + seconds || open_now) {
		while (time < begin + seconds && open_now < AT_ONCE && begun < (time - begin) * rate) {
			struct sockaddr_in one = *to;
			one.sin_port = htons(ntohs(to->sin_port) + begun++ % ports);
			start(&one);
		}
		int count = epoll_wait(epfd, events, AT_ONCE, open_now < AT_ONCE ? 1 : 1000);
		for (int i = 0; i < count; i++)
			proceed(events[i].data.fd);
		time = now();
		if (time > begin + seconds + STEP_LIMIT) {
			fprintf(stderr, "%d connections do not end:", open_now);
			for (int fd = 0; fd < DESCRIPTORS; fd++)
				if (steps[fd])
					fprintf(stderr, " %d in step %d", fd, steps[fd]);
			fprintf(stderr, "\n");
			exit(1);
		}
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = {.sin_family = AF_INET};
	if (argc < 6)
		return 2;
	inet_aton(argv[2], &at.sin_addr);
	at.sin_port = htons(atoi(argv[3]));
	orderly = !strcmp(argv[5], "orderly");
	epfd = epoll_create1(0);
	if (!strcmp(argv[1], "server"))
		run_server(&at, atoi(argv[4]));
	if (argc < 9)
		return 2;
	for (int round = 1; round <= atoi(argv[7]); round++) {
		double begin = now();
		done = failed = 0;
		run_round(&at, atoi(argv[4]), atof(argv[6]), atof(argv[8]));
		double end = now();
		// The last ones are closed here, but their FIN is still on its way.
		usleep(300000);
		printf("round %d done %ld failed %ld seconds %.2f rss %ld descriptors %d\n", round, done,
		       failed, end - begin, resident_kib(), descriptors());
		fflush(stdout);
	}
	return 0;
}
