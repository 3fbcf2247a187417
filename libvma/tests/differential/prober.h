/* The prober: runs cases against the socket API and writes what it sees, one line per call.
 *
 * Run with and without the library, the two transcripts must be the same. So nothing in a line may
 * depend on chance: ports above EPHEMERAL and time stamps are masked, durations become classes. */
#ifndef PROBER_H
#define PROBER_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <linux/sockios.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The prober's address, the peer's, and the peer's second one. */
#ifdef WITHIN_ONE_HOST
#define HOST "127.0.0.1"
#define PEER "127.0.0.2"
#define OTHER "127.0.0.3"
#else
#define HOST "10.99.0.1"
#define PEER "10.99.0.2"
#define OTHER "10.99.0.3"
#endif

/* Behind the peer as a router: nobody answers, or ICMP does. */
#define SILENT "10.97.1.1"
#define UNREACHABLE "10.97.2.1"
#define PROHIBITED "10.97.3.1"
#define NO_ROUTE "192.0.2.1"

/* The longest datagram that a packet of the cable carries. */
#if defined OVER_IPV6 && !defined WITHIN_ONE_HOST
#define WHOLE 1452
#else
#define WHOLE 1472
#endif

#define EPHEMERAL 32768
#define ROOM 70000

typedef struct {
	const char *name;
	void (*run)(void);
	/* Some datagrams of this case are the kernel's even with the library: local destinations,
	 * errors, options that are not offloaded. Of other cases it must see none. */
	bool kernel_too;
	/* What of this case's segments the kernel may have. The datagrams of a TCP case are the
	 * barrier's. */
	enum { NO_STREAMS, STREAMS_OURS, STREAMS_SHARED } streams;
} probe_case;

extern const probe_case names_cases[], bad_descriptor_cases[], bad_pointer_cases[], fault_cases[], fault_handler_cases[],
	option_cases[], send_cases[], receive_cases[], ancillary_cases[], train_cases[], limit_cases[], multicast_cases[], wait_cases[], epoll_cases[],
	signal_cases[], longjmp_cases[], descriptor_cases[], process_cases[], thread_cases[];
extern const probe_case tcp_connect_cases[], tcp_accept_cases[], tcp_send_cases[],
	tcp_receive_cases[], tcp_urgent_cases[], tcp_close_cases[], tcp_process_cases[],
	tcp_ready_cases[], tcp_epoll_cases[], tcp_option_cases[], tcp_live_option_cases[], option_table_cases[], tcp_local_cases[], tcp_dual_cases[],
	udp_dual_cases[], udp_dual_option_cases[], call_cases[], cancel_cases[];
extern const probe_case local_cases[], local_death_cases[], local_end_cases[]; /* within one host only */

/* prober.c: what the kernel's UDP and TCP received and sent in this namespace. */

long kernel_datagrams(void);
long kernel_segments(void);
/* Connections that were closed may still be closing, through the kernel if they were its. */
void until_quiet(void);

/* trace.c: the transcript. */

extern char room[ROOM]; /* for what is received */
extern char device_name[IF_NAMESIZE]; /* the one interface besides lo */
extern const char *case_name;
extern int first_descriptor; /* the number the cases start at */

/* A line of the current case. */
void line(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Reports a result: errno's name if it is -1, and whether a success left errno alone. */
long report(const char *call, long result);
/* As report, with how long it took: "at once", "about `expected` ms", "before" that, or, if it came
 * late, what it was. A late call makes the runner measure its case again. */
long report_timed(const char *call, long result, int expected);
void watch_start(void);

#define UNTOUCHED 4242
/* Runs a call and reports it under its own source text. */
#define DO(call) (errno = UNTOUCHED, report(#call, (long)(call)))
/* The same for a call that should take about this many milliseconds (0: none). */
#define TIMED(expected, call) \
	(watch_start(), errno = UNTOUCHED, report_timed(#call, (long)(call), expected))

const char *error_name(int error);
/* Bytes as text, or as length and hash if long. Static storage, several in turn. */
const char *text_of(const void *bytes, size_t length);
const char *name_of(const struct sockaddr_in *address);
void show_bytes(const char *what, const void *bytes, long length);
void show_address(const char *what, const struct sockaddr_in *address, socklen_t length);
/* Lengths, flags and control messages of a received message. */
void show_message(const struct msghdr *message);
void show_events(const struct epoll_event *events, int count);
void show_poll(const struct pollfd *fds, int count);

/* Fills `room`, so that what a call must not touch can be seen. */
void wipe(void);
/* recv into `room`, shown with the bytes; true if something came. */
bool receive_shown(int fd, size_t length, int flags);
/* The same with the source address. */
bool receive_from_shown(int fd, size_t length, int flags);

/* Things every case needs; trouble in them ends the prober. */
struct sockaddr_in at(const char *ip, int port);
int udp(int port);                    /* bound to 0.0.0.0 */
int udp_at(const char *ip, int port); /* bound to an address */
void must(const char *what, long result);
long milliseconds(void);

#define ADDRESS(ip, port) ((struct sockaddr *)&(struct sockaddr_in[]){ at(ip, port) }), \
	sizeof(struct sockaddr_in)

/* peer.c: the other host, a process in the other namespace with the kernel's sockets. If the
 * namespace is "-" it is another process here, with the library that PEER_PRELOAD names. */

int peer_start(const char *namespace);
/* In a child: chooses what the program that exec starts has preloaded. */
void preload_of_peers(void);
int peer_main(int control);

/* Opens a socket there; the number names it in what follows. */
int peer_open(const char *ip, int port);
void peer_close(int socket);
void peer_say(int socket, int to_port, const char *text);
void peer_say_to(int socket, const char *ip, int to_port, const char *text);
/* After `delay` ms: `count` datagrams of `length` bytes, the calls of the prober going on. */
void peer_send(int socket, const char *ip, int to_port, int length, int count, int delay);
void peer_say_later(int socket, int to_port, const char *text, int delay);
void peer_set(int socket, int level, int name, int value);
void peer_join(int socket, const char *group);
/* Waits for a datagram there and writes what it was; "nothing" after 300 ms. */
void peer_hears(int socket);
/* How many of `count` datagrams come. */
void peer_counts(int socket, int count);
/* All that the peer sent before has been delivered to the sockets here. */
void barrier(void);

/* peer_streams.c: its TCP. What is read and written there is shown in the transcript. */

int peer_listen(const char *ip, int port, int backlog);
int peer_accept(int socket);
/* The connection is forgotten with the case's other ones. */
void peer_accept_later(int socket, int delay);
/* Connects to an address here; that must succeed. */
int peer_connect(const char *ip, int port);
int peer_connect_from(int from_port, const char *ip, int port);
/* Connects, or fails after 300 ms at the latest; shows which. */
int peer_connects(const char *ip, int port);
/* After `delay` ms. The connection is forgotten with the case's other ones. */
void peer_connect_later(const char *ip, int port, int delay);
void peer_writes(int socket, const char *text);
void peer_writes_later(int socket, const char *text, int delay);
void peer_writes_urgent(int socket, const char *text);
void peer_writes_urgent_later(int socket, const char *text, int delay);
/* Many bytes, those of stream_bytes, while the calls of the prober go on. */
void peer_writes_much(int socket, int length);
/* Reads and shows so many bytes, and what came instead of them: the end, an error, nothing. */
void peer_reads(int socket, int length);
void peer_reads_rest(int socket);
void peer_reads_urgent(int socket);
/* Reads them after `delay` ms, the calls of the prober going on; shown when asked for. */
void peer_reads_later(int socket, int length, int delay);
void peer_has_read(void);
void peer_shuts(int socket, int how, int delay);
void peer_ends(int socket, int delay);
void peer_resets(int socket, int delay);
/* Waits for these events, at most 300 ms, and shows all that there are. */
void peer_shows(int socket, short awaited);
/* Aborts what a case left open. */
void peer_forget(void);
/* Bytes that tell their place. Static storage. */
char *stream_bytes(long length);

/* local_other.c: one more program on this host, that does something with a connection to a port, or
 * with datagrams, and may be killed. Under the library if the peer is. */

pid_t other_start(const char *what, int port);
/* Waits until it said that it is where it should be. */
void other_ready(void);
/* Lets it go on behind that. */
void other_go(void);
int other_main(const char *what, int port);
/* How it ended is shown. */
void other_ends(pid_t other);

/* tcp.c: a stream between the prober and its peer, from either side. */

typedef struct {
	int fd, there;
} stream;

int tcp(void);
int tcp_bound(const char *ip, int port); /* with SO_REUSEADDR */
int tcp_listener(const char *ip, int port, int backlog); /* looked at */
/* The library takes over a listener when it is first waited for: those who connected before are
 * the kernel's. */
void look(int listening);
stream connected(void); /* the prober to the peer's port 6000 */
stream accepted(void);  /* the peer to the prober's port 5000 */
/* A few bytes each way. */
void exchange(stream on);
/* What the socket has: getsockname, getpeername. */
void show_names(int fd);
/* SO_ERROR, which it clears. */
void show_error(int fd);
/* The events of poll for everything, now or after at most `patience` ms for the `awaited` ones. */
void show_ready(int fd, short awaited, int patience);
/* Waits until the peer's TCP acknowledged everything. */
void acknowledged(int fd);
void set(int fd, int level, int name, int value);
/* setsockopt of an int, and getsockopt of one, shown. */
#define SET(fd, level, name, value) DO(setsockopt(fd, level, name, &(int){ value }, sizeof(int)))
#define GET(fd, level, name) show_option(fd, level, name, #name)
void show_option(int fd, int level, int name, const char *text);
/* Counts a signal from here on. */
extern volatile int signals;
void count_signal(int signal, int flags);
void alarm_in(int milliseconds);
#define SIGNALS() line("  signals %d", signals)

#endif
