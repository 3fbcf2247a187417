/* Both ends here: over lo, and over this host's own address, which is the kernel's lo as well. */
#include "prober.h"

static const char *const places[] = { "127.0.0.1", HOST };

static void made(const char *place, int ends[2])
{
	int listening = tcp_listener(place, 5000, 5);
	ends[0] = DO(tcp());
	DO(connect(ends[0], ADDRESS(place, 5000)));
	ends[1] = DO(accept(listening, NULL, NULL));
	close(listening);
}

static void whole(void)
{
	for (int i = 0; i < 2; i++) {
		int ends[2];
		made(places[i], ends);
		show_names(ends[0]);
		show_names(ends[1]);
		for (int turn = 0; turn < 2; turn++) {
			int from = ends[turn], to = ends[1 - turn];
			DO(send(from, "hello", 5, 0));
			show_ready(to, POLLIN, 100);
			receive_shown(to, 100, MSG_PEEK);
			receive_shown(to, 100, 0);
			receive_shown(to, 100, MSG_DONTWAIT);
		}
		DO(shutdown(ends[0], SHUT_WR));
		receive_shown(ends[1], 100, 0);
		DO(send(ends[1], "goes on", 7, 0));
		receive_shown(ends[0], 100, 0);
		DO(close(ends[1]));
		receive_shown(ends[0], 100, 0);
		show_ready(ends[0], POLLHUP, 100);
		DO(close(ends[0]));
	}
}

static void reset(void)
{
	for (int i = 0; i < 2; i++) {
		int ends[2];
		struct linger linger = { 1, 0 };
		made(places[i], ends);
		DO(send(ends[1], "unread", 6, 0));
		DO(setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
		DO(close(ends[1]));
		show_ready(ends[0], POLLERR, 100);
		receive_shown(ends[0], 100, 0);
		receive_shown(ends[0], 100, 0);
		DO(send(ends[0], "x", 1, MSG_NOSIGNAL));
		DO(close(ends[0]));
	}
}

static void refused(void)
{
	for (int i = 0; i < 2; i++) {
		int fd = DO(tcp());
		DO(connect(fd, ADDRESS(places[i], 5999)));
		show_ready(fd, POLLIN, 0);
		show_error(fd);
		DO(close(fd));
		fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		DO(connect(fd, ADDRESS(places[i], 5999)));
		show_ready(fd, POLLIN, 100);
		show_error(fd);
		DO(close(fd));
	}
}

/* A stream of lo, one of the interface and datagrams in one set. */
static void together(void)
{
	int ends[2], epoll = DO(epoll_create1(0)), datagrams = udp(5001);
	made("127.0.0.1", ends);
	stream on = connected();
	int from = peer_open(PEER, 6000), fds[] = { ends[0], on.fd, datagrams };
	for (int i = 0; i < 3; i++)
		DO(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i],
			     &(struct epoll_event){ .events = EPOLLIN, .data.u32 = i }));
	struct epoll_event event;
	struct pollfd list[] = { { fds[0], POLLIN, 0 }, { fds[1], POLLIN, 0 }, { fds[2], POLLIN, 0 } };
	for (int i = 0; i < 9; i++) {
		if (i % 3 == 0)
			must("send", send(ends[1], "x", 1, 0));
		else if (i % 3 == 1)
			peer_writes(on.there, "x");
		else
			peer_say(from, 5001, "x");
		barrier();
		DO(epoll_wait(epoll, &event, 1, 1000));
		show_events(&event, 1);
		DO(poll(list, 3, 1000));
		show_poll(list, 3);
		receive_shown(fds[i % 3], 10, 0);
	}
	peer_writes_later(on.there, "x", 30);
	TIMED(30, epoll_wait(epoll, &event, 1, 1000));
}

/* Both ends connect at once. */
static void both_connect(void)
{
	int one = tcp_bound("127.0.0.1", 5400), other = tcp_bound("127.0.0.1", 5401);
	DO(fcntl(one, F_SETFL, O_NONBLOCK));
	DO(connect(one, ADDRESS("127.0.0.1", 5401)));
	show_ready(one, POLLOUT, 0);
	DO(connect(other, ADDRESS("127.0.0.1", 5400)));
}

const probe_case tcp_local_cases[] = {
	{ "whole", whole, false, STREAMS_SHARED },
	{ "reset", reset, false, STREAMS_SHARED },
	{ "refused", refused, false, STREAMS_SHARED },
	{ "together", together, false, STREAMS_SHARED },
	{ "both_connect", both_connect, false, STREAMS_SHARED },
	{ NULL, NULL, false },
};
