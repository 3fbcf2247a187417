/* The less usual functions and system calls that use a descriptor: none may go round the library. */
#include "prober.h"

#include <aio.h>
#include <linux/aio_abi.h>
#include <stdarg.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

static int print_list(int fd, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	int length = vdprintf(fd, format, list);
	va_end(list);
	return length;
}

static void print(int fd)
{
	DO(dprintf(fd, "plain\n"));
	DO(dprintf(fd, "%d %s %c %ld %x %u %d %d\n", 1, "two", '3', 4L, 5, 6u, 7, 8));
	DO(dprintf(fd, "%.2f %d %g %.1f %s %f %f %f %f %f %f\n", 1.5, 2, 3.25, 4.5, "five", 6., 7., 8., 9., 10., 11.));
	DO(print_list(fd, "%s %d %.3f %s\n", "list", 2, 3.5, "4"));
	DO(dprintf(fd, "%s", ""));
}

static void printed(void)
{
	stream on = connected();
	print(on.fd);
	peer_reads(on.there, 116);
	static char much[50001];
	for (int i = 0; i < 50000; i++)
		much[i] = 'a' + i % 26;
	int length = DO(dprintf(on.fd, "%.50000s", much));
	peer_reads(on.there, length);
	peer_ends(on.there, 0);
	peer_reads_rest(on.there);
	int there = peer_open(PEER, 6001), fd = udp(5001);
	must("connect", connect(fd, ADDRESS(PEER, 6001)));
	print(fd);
	for (int i = 0; i < 5; i++)
		peer_hears(there);
	/* A file, as ever. */
	fd = open("/dev/null", O_WRONLY);
	print(fd);
	DO(dprintf(-1, "x"));
	peer_close(there);
}

static void vectors(void)
{
	static const int flags[] = { 0, RWF_NOWAIT, RWF_HIPRI, RWF_APPEND, 0x40000000 };
	stream on = connected();
	int there = peer_open(PEER, 6001), fd = udp(5001);
	must("connect", connect(fd, ADDRESS(PEER, 6001)));
	struct iovec out[] = { { "hello ", 6 }, { "there", 5 } }, in[] = { { room, 6 }, { room + 6, 100 } };
	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
		long done = DO(pwritev2(on.fd, out, 2, -1, flags[i]));
		if (done > 0)
			peer_reads(on.there, done);
		peer_writes(on.there, "and back");
		barrier();
		wipe();
		DO(preadv2(on.fd, in, 2, -1, flags[i]));
		show_bytes("got", room, 8);
		if (flags[i] != 0x40000000)
			DO(preadv2(on.fd, in, 2, -1, flags[i] | RWF_NOWAIT));
		else
			receive_shown(on.fd, 100, 0);
		done = DO(pwritev2(fd, out, 2, -1, flags[i]));
		if (done > 0)
			peer_hears(there);
		peer_say(there, 5001, "a datagram");
		barrier();
		wipe();
		DO(preadv2(fd, in, 2, -1, flags[i]));
		show_bytes("got", room, 10);
	}
	DO(preadv2(on.fd, in, 2, 0, 0));
	DO(pwritev2(on.fd, out, 2, 0, 0));
	DO(preadv(on.fd, in, 2, 0));
	DO(pwrite(on.fd, "x", 1, 0));
	DO(pread(on.fd, room, 1, 0));
	DO(preadv2(on.fd, in, -1, -1, RWF_NOWAIT));
	peer_close(there);
}

static void by_number(void)
{
	stream on = connected();
	unsigned long mask = 0, length = 8;
	struct { unsigned long *mask; unsigned long length; } both = { &mask, 8 };
	struct timespec second = { 1, 0 };
	struct pollfd wait = { on.fd, POLLIN, 0 };
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 1 };
	struct iovec part = { "vector", 6 };
	int epoll = epoll_create1(0), ends[2], file = open("/proc/self/exe", O_RDONLY);
	long offset = 1;
	fd_set set;
	must("pipe", pipe(ends));
	DO(epoll_ctl(epoll, EPOLL_CTL_ADD, on.fd, &event));
	DO(syscall(SYS_epoll_pwait, epoll, &event, 1, 0, &mask, length));
	DO(syscall(SYS_epoll_pwait2, epoll, &event, 1, &(struct timespec){ 0, 0 }, &mask, length));
	peer_writes(on.there, "x");
	barrier();
	DO(syscall(SYS_epoll_wait, epoll, &event, 1, 1000));
	DO(syscall(SYS_epoll_pwait, epoll, &event, 1, 1000, &mask, length));
	DO(syscall(SYS_epoll_pwait, epoll, &event, 1, 1000, NULL, 0));
	DO(syscall(SYS_epoll_pwait, epoll, &event, 1, 1000, &mask, 7));
	DO(syscall(SYS_epoll_pwait2, epoll, &event, 1, &second, &mask, length));
	DO(syscall(SYS_epoll_pwait2, epoll, &event, 1, NULL, NULL, 0));
	DO(syscall(SYS_ppoll, &wait, 1, &second, &mask, length));
	DO(syscall(SYS_ppoll, &wait, 1, NULL, NULL, 0));
	FD_ZERO(&set);
	FD_SET(on.fd, &set);
	second = (struct timespec){ 1, 0 };
	DO(syscall(SYS_pselect6, on.fd + 1, &set, NULL, NULL, &second, &both));
	line("  set %d", FD_ISSET(on.fd, &set) != 0);
	DO(syscall(SYS_pselect6, on.fd + 1, &set, NULL, NULL, &second, NULL));
	receive_shown(on.fd, 1, 0);
	second = (struct timespec){ 0, 200000000 };
	peer_writes_later(on.there, "y", 50);
	TIMED(50, syscall(SYS_ppoll, &wait, 1, &second, &mask, length));
	line("  time left: %d", second.tv_nsec > 100000000 && second.tv_nsec < 190000000);
	receive_shown(on.fd, 1, 0);
	DO(syscall(SYS_sendfile, on.fd, file, &offset, 3L));
	line("  offset %ld", offset);
	peer_reads(on.there, 3);
	must("write", write(ends[1], "by the pipe", 11));
	DO(syscall(SYS_splice, ends[0], NULL, on.fd, NULL, 11L, 0));
	peer_reads(on.there, 11);
	peer_writes(on.there, "to the pipe");
	barrier();
	DO(syscall(SYS_splice, on.fd, NULL, ends[1], NULL, 11L, 0));
	DO(read(ends[0], room, 100));
	show_bytes("got", room, 11);
	DO(syscall(SYS_pwritev2, on.fd, &part, 1, -1L, -1L, 0));
	peer_reads(on.there, 6);
	peer_writes(on.there, "z");
	part = (struct iovec){ room, 1 };
	DO(syscall(SYS_preadv2, on.fd, &part, 1, -1L, -1L, 0));
}

/* Calls of libc that read and write inside. */
static void inside(void)
{
	stream on = connected();
	struct aiocb block = { .aio_fildes = on.fd, .aio_buf = "by aio", .aio_nbytes = 6 };
	const struct aiocb *list[] = { &block };
	DO(aio_write(&block));
	DO(aio_suspend(list, 1, NULL));
	DO(aio_return(&block));
	peer_reads(on.there, 6);
	on = connected();
	block = (struct aiocb){ .aio_fildes = on.fd, .aio_buf = room, .aio_nbytes = 8 };
	peer_writes(on.there, "read it!");
	barrier();
	DO(lio_listio(LIO_WAIT, (struct aiocb *[]){ (block.aio_lio_opcode = LIO_READ, &block) }, 1, NULL));
	DO(aio_return(&block));
	show_bytes("got", room, 8);
	/* stdin and stderr of this very program. */
	int before[] = { dup(0), dup(2) };
	on = connected();
	peer_writes(on.there, "a line\nand more\n");
	barrier();
	must("dup2", dup2(on.fd, 0));
	clearerr(stdin);
	line("  %d", fgets(room, 100, stdin) == room);
	show_bytes("got", room, 7);
	must("dup2", dup2(on.fd, 2));
	DO(fprintf(stderr, "to %s\n", "stderr"));
	peer_reads(on.there, 10);
	exchange(on);
	must("dup2", dup2(before[0], 0));
	must("dup2", dup2(before[1], 2));
}

static void finish(pid_t child)
{
	int status = -1;
	waitpid(child, &status, 0);
	line("  child ends with %#x", status);
}

static void forked(void)
{
	for (int how = 0; how < 4; how++) {
		stream on = connected();
		struct { uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, rest[5]; } by = {
			.exit_signal = SIGCHLD };
		exchange(on);
		fflush(stdout);
		pid_t child = how == 0 ? _Fork() : how == 1 ? syscall(SYS_fork)
			: how == 2 ? syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL)
			: syscall(SYS_clone3, &by, sizeof by);
		if (child == 0) {
			exchange(on);
			fflush(stdout);
			_exit(0);
		}
		must("fork", child);
		finish(child);
		exchange(on);
	}
}

/* What was sent comes, and then the end. */
static void ended(void)
{
	int door = peer_listen(PEER, 6001, 5);
	for (int how = 0; how < 2; how++) {
		char text[100];
		fflush(stdout);
		pid_t child = fork();
		if (child == 0) {
			int fd = tcp();
			DO(connect(fd, ADDRESS(PEER, 6001)));
			DO(send(fd, "first words, ", 13, 0));
			fflush(stdout);
			if (how == 0)
				quick_exit(3);
			sprintf(text, "printf last >&%d", fd);
			execveat(AT_FDCWD, "/bin/sh", (char *[]){ "sh", "-c", text, NULL }, (char *[]){ NULL }, 0);
			_exit(9);
		}
		finish(child);
		peer_reads_rest(peer_accept(door));
	}
}

const probe_case call_cases[] = {
	{ "printed", printed, false, STREAMS_OURS },
	{ "vectors", vectors, false, STREAMS_OURS },
	{ "by_number", by_number, false, STREAMS_OURS },
	{ "inside", inside, true, STREAMS_SHARED },
	{ "forked", forked, true, STREAMS_SHARED },
	{ "ended", ended, true, STREAMS_SHARED },
	{ NULL, NULL, false },
};
