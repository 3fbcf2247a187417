/* Within one host: the error of a connection whose peer closes, exits or is killed with bytes unread, before and
 * behind the ends that either has told of. */
#include "prober.h"

#include <sys/mman.h>

#define UNREAD 1000

/* One way to the end. The other does what `steps` says (local_other.c), waits at `t`, and says `r` when it has come
 * there. In between this end reads (`e`), sends (`s`) and shuts down (`f`) as `own` says. */
typedef struct {
	const char *steps, *own;
	short awaited; /* what poll(2) tells of it */
} way;

static void end_by(const way *way, bool listens, bool sends_first)
{
	static int port = 5100;
	char what[64];
	int fd;
	pid_t other;
	port++;
	snprintf(what, sizeof what, "%s:%s", listens ? "ends" : "serves", way->steps);
	line("%s, %s", what, way->own);
	if (listens) {
		int listening = tcp_listener(HOST, port, 5);
		other = other_start(what, port);
		fd = accept(listening, NULL, NULL);
		must("accept", fd);
		close(listening);
	} else {
		other = other_start(what, port);
		other_ready();
		fd = tcp();
		must("connect", connect(fd, ADDRESS(HOST, port)));
	}
	/* A few times to and fro: the bytes go past the kernel by then. */
	for (int i = 0; i < 5; i++) {
		must("send", send(fd, "to and", 6, MSG_NOSIGNAL));
		must("recv", recv(fd, room, 6, MSG_WAITALL));
	}
	other_go();
	other_ready();
	for (const char *own = way->own; *own; own++) {
		if (*own == 'e')
			receive_shown(fd, 100, 0);
		if (*own == 's')
			DO(send(fd, stream_bytes(UNREAD), UNREAD, MSG_NOSIGNAL));
		if (*own == 'f')
			DO(shutdown(fd, SHUT_WR));
	}
	bool dies = strpbrk(way->steps, "xk") != NULL;
	other_go();
	if (dies)
		other_ends(other);
	else
		other_ready();
	show_ready(fd, way->awaited, 1000);
	if (sends_first)
		DO(send(fd, "x", 1, MSG_NOSIGNAL));
	receive_shown(fd, 100, 0);
	receive_shown(fd, 100, 0);
	show_error(fd);
	DO(send(fd, "x", 1, MSG_NOSIGNAL));
	receive_shown(fd, 100, 0);
	show_ready(fd, 0, 0);
	DO(close(fd));
	if (!dies) {
		kill(other, SIGKILL);
		other_ends(other);
	}
}

static void each(const way *ways)
{
	for (; ways->steps; ways++)
		for (int i = 0; i < 4; i++)
			end_by(ways, i & 1, i & 2);
}

static void before_any_end(void)
{
	each((const way[]){
		{ "rtuc", "s", POLLERR },
		{ "rtgc", "s", POLLERR }, /* having read some */
		{ "wrtuc", "s", POLLERR }, /* with bytes of its own to read */
		{ "rtuk", "s", POLLERR },
		{ "rtux", "s", POLLERR },
		{ "wrtux", "s", POLLERR },
		{ "rtuc", "sf", POLLERR }, /* the sender's end does not help */
		{ NULL, NULL, 0 },
	});
}

static void behind_the_peers_end(void)
{
	each((const way[]){
		{ "frtuc", "es", POLLERR },
		{ "frtgc", "es", POLLERR },
		{ "wfrtuc", "s", POLLERR },
		{ "frtuk", "es", POLLERR },
		{ "wfrtux", "s", POLLERR },
		{ NULL, NULL, 0 },
	});
}

static void behind_a_closed_socket(void)
{
	each((const way[]){
		{ "crt", "s", POLLERR },
		{ "wcrt", "s", POLLERR },
		{ "fcrt", "s", POLLERR },
		{ NULL, NULL, 0 },
	});
}

static void behind_both_ends(void)
{
	each((const way[]){
		{ "frtuc", "esf", POLLHUP },
		{ "rtgfuc", "sf", POLLHUP },
		{ "wfrtuc", "sf", POLLHUP },
		{ "frtuk", "esf", POLLHUP },
		{ NULL, NULL, 0 },
	});
}

/* SO_LINGER of zero: the end is a reset, whatever is under way. */
static void abrupt(void)
{
	each((const way[]){
		{ "rtzc", "", POLLERR },
		{ "rtzc", "f", POLLERR },
		{ "rtuzc", "s", POLLERR },
		{ "rtgzc", "s", POLLERR },
		{ "wrtzc", "", POLLERR }, /* with bytes of its own to read */
		{ "wrtuzc", "s", POLLERR },
		{ "frtzc", "e", POLLERR }, /* behind its end */
		{ "frtuzc", "es", POLLERR },
		{ "wfrtzc", "", POLLERR },
		{ "wfrtuzc", "s", POLLERR },
		{ NULL, NULL, 0 },
	});
}

static void abrupt_death(void)
{
	each((const way[]){
		{ "zrtx", "", POLLERR },
		{ "zrtk", "", POLLERR },
		{ "zwrtx", "", POLLERR },
		{ "zwrtk", "", POLLERR },
		{ "zrtux", "s", POLLERR },
		{ "zfrtx", "e", POLLERR },
		{ "zfrtk", "e", POLLERR },
		{ NULL, NULL, 0 },
	});
}

/* Both ends are told of: there is nothing left to reset. */
static void abrupt_behind_both_ends(void)
{
	each((const way[]){
		{ "frtzc", "ef", POLLHUP },
		{ "frtuzc", "esf", POLLHUP },
		{ "wfrtuzc", "sf", POLLHUP },
		{ NULL, NULL, 0 },
	});
}

/* Bytes to a socket that is shut down both ways, and not closed. */
static void behind_an_end_both_ways(void)
{
	each((const way[]){
		{ "brtl", "es", POLLERR },
		{ "wbrtl", "s", POLLERR },
		{ "fbrtl", "es", POLLERR },
		{ NULL, NULL, 0 },
	});
}

/* A look ahead over bytes that came by the kernel and those behind them, into memory that ends between them. */
static void peeks_behind_the_kernels(void)
{
	pid_t other;
	int listening = tcp_listener(HOST, 5099, 5);
	other = other_start("late", 5099);
	int fd = DO(accept(listening, NULL, NULL));
	close(listening);
	usleep(50000); /* until its offer is here */
	receive_shown(fd, 2, 0);
	other_ready();
	other_go();
	other_ready();
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must("mprotect", mprotect(pages + 4096, 4096, PROT_NONE));
	int there = 0;
	for (int i = 0; i < 2000 && there < 103; i++) {
		must("recv", there = recv(fd, room, 500, MSG_PEEK));
		usleep(1000);
	}
	line("  %d bytes", there);
	DO(recv(fd, pages + 4096 - 3, 50, MSG_PEEK));
	receive_shown(fd, 3, MSG_PEEK);
	DO(close(fd));
	kill(other, SIGKILL);
	other_ends(other);
	munmap(pages, 8192);
}

const probe_case local_end_cases[] = {
	{ "before_any_end", before_any_end, true, STREAMS_SHARED },
	{ "behind_the_peers_end", behind_the_peers_end, true, STREAMS_SHARED },
	{ "behind_a_closed_socket", behind_a_closed_socket, true, STREAMS_SHARED },
	{ "behind_both_ends", behind_both_ends, true, STREAMS_SHARED },
	{ "abrupt", abrupt, true, STREAMS_SHARED },
	{ "abrupt_death", abrupt_death, true, STREAMS_SHARED },
	{ "abrupt_behind_both_ends", abrupt_behind_both_ends, true, STREAMS_SHARED },
	{ "behind_an_end_both_ways", behind_an_end_both_ways, true, STREAMS_SHARED },
	{ "peeks_behind_the_kernels", peeks_behind_the_kernels, true, STREAMS_SHARED },
	{ NULL, NULL, false, NO_STREAMS },
};
