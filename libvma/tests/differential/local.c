/* Within one host: what its kernel's loopback does with datagrams and connections that find nobody, or
 * too many, or several. */
#include "prober.h"

/* The peer is found while the first datagrams are on their way: some time for that. */
static void settle(int fd, int there)
{
	for (int i = 0; i < 3; i++) {
		DO(sendto(fd, "hello", 5, 0, ADDRESS(PEER, 6000)));
		peer_hears(there);
		peer_say(there, 5000, "hello");
		receive_from_shown(fd, 100, 0);
		usleep(20000);
	}
}

static void refused(void)
{
	static const char *const places[] = { HOST, PEER };
	for (int i = 0; i < 2; i++) {
		int fd = socket(AF_INET, SOCK_DGRAM, 0);
		DO(connect(fd, ADDRESS(places[i], 5999)));
		DO(send(fd, "x", 1, 0));
		show_ready(fd, POLLERR, 200);
		receive_shown(fd, 100, MSG_DONTWAIT);
		receive_shown(fd, 100, MSG_DONTWAIT);
		DO(send(fd, "x", 1, 0));
		DO(send(fd, "x", 1, 0));
		show_error(fd);
		/* Nobody hears of it who is not connected. */
		int open = socket(AF_INET, SOCK_DGRAM, 0);
		DO(sendto(open, "x", 1, 0, ADDRESS(places[i], 5999)));
		show_ready(open, POLLERR, 30);
		int stream = tcp();
		DO(connect(stream, ADDRESS(places[i], 5999)));
		show_error(stream);
	}
}

/* Somebody who was there and is not any more, and is again. */
static void comes_and_goes(void)
{
	int there = peer_open(PEER, 6000), fd = udp_at(HOST, 5000);
	settle(fd, there);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	for (int i = 0; i < 2; i++) {
		peer_close(there);
		DO(send(fd, "nobody", 6, 0));
		show_ready(fd, POLLERR, 200);
		receive_shown(fd, 100, MSG_DONTWAIT);
		there = peer_open(PEER, 6000);
		for (int n = 0; n < 3; n++) {
			DO(send(fd, "again", 5, 0));
			peer_hears(there);
			peer_say(there, 5000, "again");
			receive_from_shown(fd, 100, 0);
			usleep(10000);
		}
	}
	/* Another process has the port now. */
	peer_close(there);
	pid_t other = other_start("idle_datagrams", 5001);
	other_ready();
	DO(connect(fd, ADDRESS(HOST, 5001)));
	for (int n = 0; n < 3; n++) {
		DO(send(fd, "to another", 10, 0));
		receive_from_shown(fd, 100, 0);
		usleep(10000);
	}
	kill(other, SIGKILL);
	other_ends(other);
	DO(send(fd, "nobody", 6, 0));
	show_ready(fd, POLLERR, 200);
	receive_shown(fd, 100, MSG_DONTWAIT);
}

static void dropped(void)
{
	int there = peer_open(PEER, 6000), fd = udp_at(HOST, 5000), count = 0;
	settle(fd, there);
	set(fd, SOL_SOCKET, SO_RCVBUF, 20000);
	static const int lengths[] = { 1, 100, 1400 };
	for (int i = 0; i < 3; i++) {
		peer_send(there, HOST, 5000, lengths[i], 400, 0);
		barrier();
		for (count = 0; recv(fd, room, sizeof room, MSG_DONTWAIT) > 0; count++)
			;
		line("~ of 400 datagrams of %d bytes: %d", lengths[i], count);
		/* There is room again. */
		peer_say(there, 5000, "after");
		receive_from_shown(fd, 100, 0);
	}
}

static void in_order(void)
{
	int there = peer_open(PEER, 6000), fd = udp_at(HOST, 5000), wrong = 0, count = 0;
	set(fd, SOL_SOCKET, SO_RCVBUF, 1 << 20);
	/* From the very first datagram on, which the kernel may have. */
	for (int round = 0; round < 20; round++) {
		peer_send(there, HOST, 5000, 50 + round, 20, 0);
		barrier();
		for (int n = 0; n < 20; n++) {
			long length = recv(fd, room, sizeof room, MSG_DONTWAIT);
			count += length >= 0;
			/* The peer's pattern begins with the number of the datagram. */
			wrong += length != 50 + round || room[0] != n;
		}
	}
	line("  %d datagrams, %d out of order", count, wrong);
	/* And to the peer. */
	for (int n = 0; n < 200; n++)
		must("sendto", sendto(fd, room, 10 + n % 50, 0, ADDRESS(PEER, 6000)));
	peer_counts(there, 200);
}

/* What carries a control message goes by the kernel, and keeps its place between the others. */
static void mixed_ways(void)
{
	int there = peer_open(PEER, 6000), fd = udp_at(HOST, 5000), ttl = 9;
	struct sockaddr_in to = at(PEER, 6000);
	settle(fd, there);
	char control[CMSG_SPACE(sizeof ttl)], text[20];
	for (int n = 0; n < 12; n++) {
		snprintf(text, sizeof text, "number %d", n);
		struct msghdr message = { .msg_name = &to, .msg_namelen = sizeof to,
			.msg_iov = &(struct iovec){ text, strlen(text) }, .msg_iovlen = 1 };
		if (n % 4 == 1 || n % 4 == 2) {
			message.msg_control = control;
			message.msg_controllen = sizeof control;
			struct cmsghdr *header = CMSG_FIRSTHDR(&message);
			header->cmsg_level = IPPROTO_IP;
			header->cmsg_type = IP_TTL;
			header->cmsg_len = CMSG_LEN(sizeof ttl);
			memcpy(CMSG_DATA(header), &ttl, sizeof ttl);
		}
		DO(sendmsg(fd, &message, 0));
	}
	for (int n = 0; n < 12; n++)
		peer_hears(there);
	peer_close(there);
}

/* As many connections as the backlog allows, and no more. */
static void backlog(void)
{
	static const int limits[] = { 0, 1, 4 };
	for (int i = 0; i < 3; i++) {
		int listening = tcp_listener(HOST, 5000, limits[i]), established = 0, fds[10];
		for (int n = 0; n < 10; n++) {
			fds[n] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
			connect(fds[n], ADDRESS(HOST, 5000));
		}
		usleep(50000);
		for (int n = 0; n < 10; n++) {
			struct pollfd wait = { fds[n], POLLOUT, 0 };
			established += poll(&wait, 1, 0) == 1;
		}
		line("  backlog %d: %d of 10 established", limits[i], established);
		for (int n = 0; n < 10; n++)
			close(fds[n]);
		close(listening);
	}
	/* The peer's connections wait there until they are accepted. */
	int listening = tcp_listener(HOST, 5000, 2), there[3];
	for (int n = 0; n < 3; n++) {
		there[n] = peer_connect(HOST, 5000);
		peer_writes(there[n], "early");
	}
	DO(listen(listening, 5));
	for (int n = 0; n < 3; n++) {
		int fd = DO(accept(listening, NULL, NULL));
		receive_shown(fd, 5, MSG_WAITALL);
		exchange((stream){ fd, there[n] });
		DO(close(fd));
		peer_reads_rest(there[n]);
	}
}

static void shared_port(void)
{
	int on = 1, fd = socket(AF_INET, SOCK_DGRAM, 0), ours = 0, theirs = 0;
	DO(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on));
	DO(bind(fd, ADDRESS(HOST, 5000)));
	pid_t other = other_start("share", 5000);
	other_ready();
	for (int n = 0; n < 64; n++) {
		/* From here: another process than the peer, one socket for each. */
		int from = udp_at(HOST, 0);
		struct pollfd wait[2] = { { fd, POLLIN, 0 }, { from, POLLIN, 0 } };
		for (int repeat = 0; repeat < 3; repeat++) {
			must("sendto", sendto(from, "x", 1, 0, ADDRESS(HOST, 5000)));
			if (poll(wait, 2, 500) < 1) {
				line("  lost");
				continue;
			}
			if (wait[0].revents)
				ours += recv(fd, room, 10, 0) == 1;
			if (wait[1].revents)
				theirs += recv(from, room, 10, 0) == 5;
		}
		close(from);
	}
	line("  %d, both have some: %d", ours + theirs, ours > 0 && theirs > 0);
	other_go();
	other_ends(other);
	/* Now all of it is ours. */
	for (int n = 0; n < 10; n++) {
		int from = udp_at(HOST, 0);
		must("sendto", sendto(from, "x", 1, 0, ADDRESS(HOST, 5000)));
		struct pollfd wait = { fd, POLLIN, 0 };
		if (poll(&wait, 1, 500) != 1)
			line("  lost");
		recv(fd, room, 10, MSG_DONTWAIT);
		close(from);
	}
}

static void shared_listener(void)
{
	int on = 1, fd = tcp(), ours = 0, theirs = 0;
	DO(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on));
	DO(bind(fd, ADDRESS(HOST, 5000)));
	DO(listen(fd, 64));
	pid_t other = other_start("share_streams", 5000);
	other_ready();
	for (int n = 0; n < 64; n++) {
		int from = tcp();
		must("connect", connect(from, ADDRESS(HOST, 5000)));
		struct pollfd wait[2] = { { fd, POLLIN, 0 }, { from, POLLIN, 0 } };
		if (poll(wait, 2, 1000) < 1) {
			line("  lost");
		} else if (wait[0].revents) {
			int accepted = accept(fd, NULL, NULL);
			must("accept", accepted);
			must("send", send(accepted, "ours", 4, 0));
			ours += recv(from, room, 10, 0) == 4;
			close(accepted);
		} else {
			theirs += recv(from, room, 10, 0) == 5;
		}
		close(from);
	}
	line("  %d, both have some: %d", ours + theirs, ours > 0 && theirs > 0);
	other_go();
	other_ends(other);
}

/* Two programs talk to one port at the same moment, one of them plain. */
static void plain_too(void)
{
	int fd = udp_at(HOST, 5000), ended = 0, status, ends = 0;
	pid_t one = other_start("talk", 5000);
	char *library = getenv("PEER_PRELOAD");
	unsetenv("PEER_PRELOAD");
	pid_t two = other_start("talk", 5000);
	if (library)
		setenv("PEER_PRELOAD", library, 1);
	long until = milliseconds() + 10000;
	while (ended < 2 && milliseconds() < until) {
		struct pollfd wait = { fd, POLLIN, 0 };
		struct sockaddr_storage from;
		socklen_t length = sizeof from;
		if (poll(&wait, 1, 20) == 1) {
			long got = recvfrom(fd, room, 100, 0, (struct sockaddr *)&from, &length);
			must("sendto", sendto(fd, room, got, 0, (struct sockaddr *)&from, length));
		} else {
			pid_t who = waitpid(-1, &status, WNOHANG);
			if (who == one || who == two) {
				ended++;
				ends |= status;
			}
		}
	}
	line("  %d ended, with %#x", ended, ends);
}

/* Names as the kernel has them, whoever moves the bytes. */
static void named(void)
{
	int listening = tcp_listener("0.0.0.0", 5010, 5), there = peer_connect(PEER, 5010);
	struct sockaddr_in from = { 0 };
	socklen_t length = sizeof from;
	int fd = DO(accept(listening, (struct sockaddr *)&from, &length));
	show_address("from", &from, length);
	show_names(fd);
	exchange((stream){ fd, there });
	show_names(fd);
	int door = peer_listen(PEER, 6000, 5);
	fd = tcp_bound(OTHER, 5011);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	there = peer_accept(door);
	exchange((stream){ fd, there });
	show_names(fd);
	/* Once more between the same two ports, while the first one stands. */
	int again = tcp_bound(OTHER, 5011);
	DO(connect(again, ADDRESS(PEER, 6000)));
	DO(close(fd));
	peer_reads_rest(there);
}

const probe_case local_cases[] = {
	{ "refused", refused, true, STREAMS_SHARED },
	{ "comes_and_goes", comes_and_goes, true, STREAMS_SHARED },
	{ "dropped", dropped, true, NO_STREAMS },
	{ "in_order", in_order, true, NO_STREAMS },
	{ "mixed_ways", mixed_ways, true, NO_STREAMS },
	{ "backlog", backlog, true, STREAMS_SHARED },
	{ "shared_port", shared_port, true, NO_STREAMS },
	{ "shared_listener", shared_listener, true, STREAMS_SHARED },
	{ "plain_too", plain_too, true, NO_STREAMS },
	{ "named", named, true, STREAMS_SHARED },
	{ NULL, NULL, false, NO_STREAMS },
};
