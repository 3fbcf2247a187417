/* What the TCP cases share: streams between prober and peer, and what is shown of them. */
#include "prober.h"

volatile int signals;

int tcp(void)
{
	return socket(AF_INET, SOCK_STREAM, 0);
}

int tcp_bound(const char *ip, int port)
{
	int fd = tcp();
	must("socket", fd);
	set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	must("bind", bind(fd, ADDRESS(ip, port)));
	return fd;
}

int tcp_listener(const char *ip, int port, int backlog)
{
	int fd = tcp_bound(ip, port);
	must("listen", listen(fd, backlog));
	look(fd);
	return fd;
}

void look(int listening)
{
	struct pollfd wait = { listening, POLLIN, 0 };
	must("poll", poll(&wait, 1, 0));
}

stream connected(void)
{
	int door = peer_listen(PEER, 6000, 10), fd = tcp();
	must("connect", connect(fd, ADDRESS(PEER, 6000)));
	stream made = { fd, peer_accept(door) };
	peer_ends(door, 0);
	return made;
}

stream accepted(void)
{
	int listening = tcp_listener(HOST, 5000, 10);
	int there = peer_connect(HOST, 5000);
	stream made = { accept(listening, NULL, NULL), there };
	must("accept", made.fd);
	close(listening);
	return made;
}

void exchange(stream on)
{
	DO(send(on.fd, "from here", 9, 0));
	peer_reads(on.there, 9);
	peer_writes(on.there, "from there");
	receive_shown(on.fd, 10, MSG_WAITALL);
}

void show_names(int fd)
{
	struct sockaddr_in address = { 0 };
	socklen_t length = sizeof address;
	if (DO(getsockname(fd, (struct sockaddr *)&address, &length)) == 0)
		show_address("own", &address, length);
	length = sizeof address;
	if (DO(getpeername(fd, (struct sockaddr *)&address, &length)) == 0)
		show_address("peer", &address, length);
}

void show_error(int fd)
{
	int error = -1;
	socklen_t length = sizeof error;
	if (DO(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length)) == 0)
		line("  SO_ERROR %s", error ? error_name(error) : "0");
}

#define EVERYTHING (POLLIN | POLLOUT | POLLPRI | POLLRDHUP | POLLRDNORM | POLLWRNORM | POLLRDBAND \
	| POLLWRBAND)

void show_ready(int fd, short awaited, int patience)
{
	struct pollfd wait = { fd, awaited, 0 };
	if (patience)
		poll(&wait, 1, patience);
	wait.events = EVERYTHING;
	errno = UNTOUCHED;
	report("poll", poll(&wait, 1, 0));
	show_poll(&wait, 1);
}

void acknowledged(int fd)
{
	int left = -1;
	for (int i = 0; i < 400 && left != 0; i++) {
		must("SIOCOUTQ", ioctl(fd, SIOCOUTQ, &left));
		if (left)
			usleep(5000);
	}
	line("  not acknowledged: %d", left);
}

void set(int fd, int level, int name, int value)
{
	must("setsockopt", setsockopt(fd, level, name, &value, sizeof value));
}

void show_option(int fd, int level, int name, const char *text)
{
	int value = -77;
	socklen_t length = sizeof value;
	errno = UNTOUCHED;
	int result = getsockopt(fd, level, name, &value, &length);
	char call[64];
	snprintf(call, sizeof call, "get %s", text);
	report(call, result);
	if (result == 0)
		line("  %d, length %d", value, (int)length);
}

static void counting(int signal)
{
	(void)signal;
	signals++;
}

void count_signal(int signal, int flags)
{
	struct sigaction action = { .sa_handler = counting, .sa_flags = flags };
	must("sigaction", sigaction(signal, &action, NULL));
	signals = 0;
}

void alarm_in(int milliseconds)
{
	struct itimerval soon = { .it_value = { 0, milliseconds * 1000 } };
	signals = 0;
	must("setitimer", setitimer(ITIMER_REAL, &soon, NULL));
}
