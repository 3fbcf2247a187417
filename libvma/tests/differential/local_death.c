/* Within one host: how a connection ends when the other process does, and what it hands on before. */
#include "prober.h"

#define MUCH 300000

/* The other program connects and says hello. */
static int met(const char *what, pid_t *other)
{
	int listening = tcp_listener(HOST, 5000, 5);
	*other = other_start(what, 5000);
	int fd = DO(accept(listening, NULL, NULL));
	close(listening);
	receive_shown(fd, 5, MSG_WAITALL);
	return fd;
}

/* What a connection shows once its peer is gone. */
static void show_end(int fd)
{
	show_ready(fd, POLLRDHUP, 1000);
	receive_shown(fd, 100, 0);
	receive_shown(fd, 100, 0);
	DO(send(fd, "x", 1, MSG_NOSIGNAL));
	usleep(50000);
	DO(send(fd, "x", 1, MSG_NOSIGNAL));
	show_ready(fd, POLLERR, 200);
	show_error(fd);
	receive_shown(fd, 100, 0);
	DO(close(fd));
}

static void killed(void)
{
	pid_t other;
	int fd = met("idle", &other);
	DO(send(fd, "read it", 6, 0));
	other_ready();
	other_ready();
	kill(other, SIGKILL);
	other_ends(other);
	show_end(fd);
}

static void killed_with_unread_data(void)
{
	pid_t other;
	int fd = met("unread", &other);
	DO(send(fd, "unread", 6, 0));
	other_ready();
	kill(other, SIGKILL);
	other_ends(other);
	show_end(fd);
}

static void killed_with_unsent_data(void)
{
	pid_t other;
	int fd = met("killed_unsent", &other);
	other_ends(other);
	line("  all of it: %d", recv(fd, stream_bytes(MUCH) + MUCH, MUCH, MSG_WAITALL) == MUCH);
	show_end(fd);
}

/* Nobody does anything when it happens: the one that is there sleeps in a call. */
static void killed_while_waited_for(void)
{
	pid_t other;
	int fd = met("in_recv", &other);
	DO(send(fd, "read it", 6, 0));
	other_ready();
	other_ready();
	pid_t killer = fork();
	if (killer == 0) {
		usleep(60000);
		kill(other, SIGKILL);
		_exit(0);
	}
	TIMED(60, recv(fd, room, 100, 0));
	waitpid(killer, NULL, 0);
	other_ends(other);
	DO(close(fd));
	/* And in epoll_wait. */
	fd = met("in_recv", &other);
	DO(send(fd, "read it", 6, 0));
	other_ready();
	other_ready();
	int epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP };
	DO(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
	killer = fork();
	if (killer == 0) {
		usleep(60000);
		kill(other, SIGKILL);
		_exit(0);
	}
	int count = TIMED(60, epoll_wait(epoll, &event, 1, 2000));
	show_events(&event, count);
	waitpid(killer, NULL, 0);
	other_ends(other);
}

/* A sender that waits for room. */
static void killed_while_full(void)
{
	pid_t other;
	int fd = met("unread", &other);
	DO(send(fd, "unread", 6, 0));
	other_ready();
	DO(fcntl(fd, F_SETFL, O_NONBLOCK));
	while (send(fd, room, sizeof room, MSG_NOSIGNAL) > 0)
		;
	line("  full: %s", error_name(errno));
	DO(fcntl(fd, F_SETFL, 0));
	pid_t killer = fork();
	if (killer == 0) {
		usleep(60000);
		kill(other, SIGKILL);
		_exit(0);
	}
	TIMED(60, send(fd, "x", 1, MSG_NOSIGNAL));
	waitpid(killer, NULL, 0);
	other_ends(other);
	show_end(fd);
}

static void exits_with_unread_data(void)
{
	pid_t other;
	int fd = met("exit_unread", &other);
	DO(send(fd, "unread", 6, 0));
	other_ready();
	other_go();
	other_ends(other);
	show_end(fd);
	fd = met("close_unread", &other);
	DO(send(fd, "unread", 6, 0));
	other_ready();
	other_go();
	show_end(fd);
	kill(other, SIGKILL);
	other_ends(other);
}

static void exits_with_unsent_data(void)
{
	pid_t other;
	int fd = met("unsent", &other);
	other_ends(other);
	line("  all of it: %d", recv(fd, stream_bytes(MUCH) + MUCH, MUCH, MSG_WAITALL) == MUCH);
	line("  the same: %d",
	     memcmp(stream_bytes(MUCH), stream_bytes(MUCH) + MUCH, MUCH) == 0);
	show_end(fd);
}

static void forked(void)
{
	pid_t other;
	int fd = met("child", &other);
	other_ready();
	other_ends(other);
	other_go();
	for (int i = 0; i < 3; i++) {
		DO(send(fd, "for the child", 13, 0));
		receive_shown(fd, 13, MSG_WAITALL);
	}
	DO(shutdown(fd, SHUT_WR));
	receive_shown(fd, 100, 0);
	DO(close(fd));
	fd = met("two", &other);
	receive_shown(fd, 3 * 13, MSG_WAITALL);
	DO(send(fd, "firstother", 10, 0));
	receive_shown(fd, 10, MSG_WAITALL);
	other_ends(other);
	receive_shown(fd, 100, 0);
	DO(close(fd));
}

static void executed(void)
{
	pid_t other;
	int fd = met("exec", &other);
	for (int i = 0; i < 3; i++) {
		DO(send(fd, "through cat", 11, 0));
		receive_shown(fd, 11, MSG_WAITALL);
	}
	DO(shutdown(fd, SHUT_WR));
	receive_shown(fd, 100, 0);
	other_ends(other);
	DO(close(fd));
}

static void by_sendfile_and_splice(void)
{
	static char got[MUCH];
	pid_t other;
	int fd = met("sendfile", &other);
	line("  all of it: %d", recv(fd, got, MUCH, MSG_WAITALL) == MUCH);
	line("  the same: %d", memcmp(stream_bytes(MUCH), got, MUCH) == 0);
	DO(send(fd, stream_bytes(10000), 10000, 0));
	receive_shown(fd, 10000, MSG_WAITALL);
	receive_shown(fd, 100, 0);
	other_ends(other);
	DO(close(fd));
}

const probe_case local_death_cases[] = {
	{ "killed", killed, true, STREAMS_SHARED },
	{ "killed_with_unread_data", killed_with_unread_data, true, STREAMS_SHARED },
	{ "killed_with_unsent_data", killed_with_unsent_data, true, STREAMS_SHARED },
	{ "killed_while_waited_for", killed_while_waited_for, true, STREAMS_SHARED },
	{ "killed_while_full", killed_while_full, true, STREAMS_SHARED },
	{ "exits_with_unread_data", exits_with_unread_data, true, STREAMS_SHARED },
	{ "exits_with_unsent_data", exits_with_unsent_data, true, STREAMS_SHARED },
	{ "forked", forked, true, STREAMS_SHARED },
	{ "executed", executed, true, STREAMS_SHARED },
	{ "sendfile_and_splice", by_sendfile_and_splice, true, STREAMS_SHARED },
	{ NULL, NULL, false, NO_STREAMS },
};
