/* Descriptors: copies, closing, numbers used again. */
#include "prober.h"

#include <linux/close_range.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static void both_ways(int fd, int there, int port)
{
	DO(sendto(fd, "out", 3, 0, ADDRESS(PEER, 6000)));
	peer_hears(there);
	peer_say(there, port, "in");
	receive_from_shown(fd, 100, 0);
}

static void copies(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	int copy = DO(dup(fd));
	both_ways(copy, there, 5000);
	peer_say(there, 5000, "queued");
	barrier();
	DO(close(fd));
	receive_from_shown(copy, 100, MSG_DONTWAIT);
	both_ways(copy, there, 5000);
	DO(recv(fd, room, 10, MSG_DONTWAIT));
	DO(send(fd, "x", 1, 0));
	fd = DO(fcntl(copy, F_DUPFD, 0));
	both_ways(fd, there, 5000);
	int high = DO(fcntl(copy, F_DUPFD, 70));
	both_ways(high, there, 5000);
	int cloexec = DO(fcntl(copy, F_DUPFD_CLOEXEC, 60));
	DO(fcntl(cloexec, F_GETFD));
	both_ways(cloexec, there, 5000);
	DO(close(copy));
	DO(close(high));
	DO(close(cloexec));
	both_ways(fd, there, 5000);
	/* The flags belong to the open file, so to all of them. */
	copy = DO(dup3(fd, 40, O_CLOEXEC));
	DO(fcntl(copy, F_GETFD));
	DO(fcntl(fd, F_SETFL, O_NONBLOCK));
	DO(fcntl(copy, F_GETFL));
	DO(recv(copy, room, 10, 0));
	/* So do options and connections. */
	DO(connect(copy, ADDRESS(PEER, 6000)));
	DO(send(fd, "by the other", 12, 0));
	peer_hears(there);
	DO(close(fd));
	DO(close(copy));
	fd = DO(socket(AF_INET, SOCK_DGRAM, 0));
	DO(bind(fd, ADDRESS("0.0.0.0", 5000))); /* free again */
	both_ways(fd, there, 5000);
	peer_close(there);
}

static void onto(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000), second = udp(5001);
	DO(dup2(fd, fd));
	both_ways(fd, there, 5000);
	DO(dup3(fd, fd, 0));
	DO(dup3(fd, 50, 0x1234));
	DO(dup2(fd, -1));
	DO(dup2(fd, 1 << 30));
	DO(dup2(900, fd)); /* fails, so closes nothing */
	both_ways(fd, there, 5000);
	/* Onto another socket: that one is gone, its port free. */
	DO(dup2(fd, second));
	both_ways(second, there, 5000);
	int again = DO(socket(AF_INET, SOCK_DGRAM, 0));
	DO(bind(again, ADDRESS("0.0.0.0", 5001)));
	both_ways(again, there, 5001);
	DO(close(fd));
	both_ways(second, there, 5000);
	/* A file onto a socket, a socket onto a file. */
	int null = open("/dev/null", O_RDWR);
	DO(dup2(null, again));
	DO(recv(again, room, 10, MSG_DONTWAIT));
	DO(write(again, "x", 1));
	DO(read(again, room, 10));
	DO(dup2(second, null));
	both_ways(null, there, 5000);
	DO(close(second));
	both_ways(null, there, 5000);
	peer_close(there);
}

/* Onto standard input, whose stream libc reads by itself. */
static void onto_input(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000), input = dup(0);
	DO(dup2(fd, 0));
	both_ways(0, there, 5000);
	both_ways(fd, there, 5000);
	DO(dup2(input, 0));
	DO(recv(0, room, 10, MSG_DONTWAIT));
	both_ways(fd, there, 5000);
	peer_close(there);
}

static void closing(void)
{
	int there = peer_open(PEER, 6000);
	for (int i = 0; i < 20; i++) {
		int fd = udp(5000);
		if (i % 7 == 0)
			both_ways(fd, there, 5000);
		else
			peer_say(there, 5000, "dropped with the socket");
		close(fd);
	}
	int fd = udp(5000);
	receive_from_shown(fd, 100, MSG_DONTWAIT);
	both_ways(fd, there, 5000);
	int copy = DO(dup2(fd, 30)), second = DO(dup2(fd, 31)), third = DO(dup2(fd, 32));
	DO(close_range(30, 31, CLOSE_RANGE_CLOEXEC));
	DO(fcntl(copy, F_GETFD));
	both_ways(copy, there, 5000);
	DO(close_range(31, 30, 0));
	DO(close_range(30, 31, 0x1000));
	DO(close_range(30, 31, 0));
	DO(recv(copy, room, 10, MSG_DONTWAIT));
	DO(recv(second, room, 10, MSG_DONTWAIT));
	both_ways(third, there, 5000);
	DO(close_range(25, ~0u, 0));
	DO(recv(third, room, 10, MSG_DONTWAIT));
	both_ways(fd, there, 5000);
	closefrom(20);
	both_ways(fd, there, 5000);
	/* A socket made after all of that. */
	int fresh = udp(5002);
	line("  descriptor %d", fresh);
	both_ways(fresh, there, 5002);
	peer_close(there);
}

static void streams(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	FILE *stream = fdopen(dup(fd), "w");
	fputs("by a stream", stream);
	DO(fclose(stream));
	peer_hears(there);
	struct timeval second = { 1, 0 };
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
	peer_say(there, 5000, "line\n");
	stream = fdopen(fd, "r");
	line("  %s", fgets(room, 100, stream) ? text_of(room, 4) : "nothing");
	DO(fclose(stream)); /* closes inside libc */
	stream = fopen("/proc/self/comm", "r"); /* opens inside libc */
	line("  the same number: %d", fileno(stream) == fd);
	DO(read(fileno(stream), room, 100));
	DO(fclose(stream));
	int again = DO(socket(AF_INET, SOCK_DGRAM, 0));
	DO(bind(again, ADDRESS("0.0.0.0", 5000)));
	both_ways(again, there, 5000);
	/* dprintf and a positioned read, which sockets have not. */
	DO(connect(again, ADDRESS(PEER, 6000)));
	DO(dprintf(again, "%s", "printed"));
	peer_hears(there);
	DO(pread(again, room, 1, 0));
	DO(lseek(again, 0, SEEK_SET));
	DO(ftruncate(again, 0));
	peer_close(there);
}

/* By syscall(), past the functions of these names, as some run times do. */
static void raw_calls(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000), second = udp(5001);
	struct sockaddr_in to = at(PEER, 6000);
	DO(syscall(SYS_sendto, fd, "raw", 3, 0, &to, sizeof to));
	peer_hears(there);
	DO(syscall(SYS_dup2, fd, second));
	both_ways(second, there, 5000);
	DO(syscall(SYS_close, fd));
	both_ways(second, there, 5000);
	DO(syscall(SYS_close, second));
	DO(recv(second, room, 10, MSG_DONTWAIT));
	DO(syscall(SYS_close, second));
	fd = udp(5000);
	both_ways(fd, there, 5000);
	for (int i = 0; i < 3; i++)
		peer_say(there, 5000, "raw");
	barrier();
	struct pollfd wait = { fd, POLLIN, 0 };
	DO(syscall(SYS_ppoll, &wait, 1, &(struct timespec){ 0, 0 }, NULL, 0));
	DO(syscall(SYS_recvfrom, fd, room, 10, MSG_DONTWAIT, NULL, NULL));
	struct msghdr message = { .msg_iov = &(struct iovec){ room, 10 }, .msg_iovlen = 1 };
	DO(syscall(SYS_recvmsg, fd, &message, MSG_DONTWAIT));
	DO(fcntl(fd, F_SETFL, O_NONBLOCK));
	DO(syscall(SYS_read, fd, room, 10));
	DO(syscall(SYS_getpid) == getpid());
	DO(syscall(99999));
	peer_close(there);
}

/* Numbers beyond the program's limit are nobody's, whatever a library keeps there. */
static void beyond_the_limit(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	struct rlimit limit;
	must("getrlimit", getrlimit(RLIMIT_NOFILE, &limit));
	int refused[5] = { 0 }, other = 0;
	for (int number = limit.rlim_cur; number < (int)limit.rlim_cur + 300; number++) {
		int results[] = { dup2(fd, number), fcntl(number, F_GETFD), fcntl(number, F_SETFD, FD_CLOEXEC),
				  fcntl(number, F_DUPFD, 0), close(number) };
		for (int i = 0; i < 5; i++)
			if (results[i] < 0 && errno == EBADF)
				refused[i]++;
			else
				other++;
	}
	line("  dup2 %d, F_GETFD %d, F_SETFD %d, F_DUPFD %d, close %d, other answers %d", refused[0], refused[1],
	     refused[2], refused[3], refused[4], other);
	both_ways(fd, there, 5000);
	peer_close(there);
}

const probe_case descriptor_cases[] = {
	{ "beyond_the_limit", beyond_the_limit, false },
	{ "copies", copies, false },
	{ "onto", onto, false },
	{ "onto_input", onto_input, true }, /* the kernel's from then on */
	{ "closing", closing, false },
	{ "raw_calls", raw_calls, true },
	{ "streams", streams, true }, /* libc's own calls inside stdio */
	{ NULL, NULL, false },
};
