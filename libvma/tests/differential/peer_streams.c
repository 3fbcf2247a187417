/* The other host's TCP: kernel sockets that listen, connect, read, write and close as told. */
#include "peer.h"

#define MUCH (8 << 20) /* the most that one order writes or reads */

/* How long the peer waits for what the case expects: long enough for a busy machine, and for
 * what never comes the cases say so themselves. */
#define PATIENCE 300

static void pattern(char *bytes, long length)
{
	for (long i = 0; i < length; i++)
		bytes[i] = i * 7 + (i >> 8) * 31;
}

char *stream_bytes(long length)
{
	static char bytes[MUCH];
	must("so many bytes", length <= MUCH ? 0 : -1);
	pattern(bytes, length);
	return bytes;
}

int peer_listen(const char *ip, int port, int backlog)
{
	struct order order = peer_order(LISTEN, -1, ip, port);
	order.count = backlog;
	return peer_ask(order).result;
}

int peer_accept(int socket)
{
	return peer_ask(peer_order(ACCEPT, socket, "", 0)).result;
}

void peer_accept_later(int socket, int delay)
{
	struct order order = peer_order(ACCEPT, socket, "", 0);
	order.delay = delay;
	peer_ask(order);
}

static int connect_there(const char *ip, int port, int from_port, bool shown)
{
	struct order order = peer_order(CONNECT, -1, ip, port);
	order.value = from_port;
	struct answer answer = peer_ask(order);
	if (shown)
		line("  peer connects: %s", answer.length < 0 ? error_name(answer.error) : "0");
	errno = answer.error;
	if (!shown)
		must("the peer's connect", answer.length);
	return answer.result;
}

int peer_connect(const char *ip, int port)
{
	return connect_there(ip, port, 0, false);
}

int peer_connect_from(int from_port, const char *ip, int port)
{
	return connect_there(ip, port, from_port, false);
}

int peer_connects(const char *ip, int port)
{
	return connect_there(ip, port, 0, true);
}

void peer_connect_later(const char *ip, int port, int delay)
{
	struct order order = peer_order(CONNECT, -1, ip, port);
	order.delay = delay;
	peer_ask(order);
}

static void write_there(int socket, const char *text, int length, int flags, int delay)
{
	struct order order = peer_order(WRITE, socket, "", 0);
	snprintf(order.text, sizeof order.text, "%s", text);
	order.length = length;
	order.value = flags;
	order.delay = delay;
	struct answer answer = peer_ask(order);
	if (!delay && answer.length < 0)
		line("  peer cannot write: %s", error_name(answer.error));
}

void peer_writes(int socket, const char *text)
{
	write_there(socket, text, 0, 0, 0);
}

void peer_writes_later(int socket, const char *text, int delay)
{
	write_there(socket, text, 0, 0, delay);
}

void peer_writes_urgent(int socket, const char *text)
{
	write_there(socket, text, 0, MSG_OOB, 0);
}

void peer_writes_urgent_later(int socket, const char *text, int delay)
{
	write_there(socket, text, 0, MSG_OOB, delay);
}

void peer_writes_much(int socket, int length)
{
	write_there(socket, "", length, 0, 1);
}

static void show_read(const struct answer *answer)
{
	if (answer->error > 0)
		line("  peer reads %s, then %s", answer->shown, error_name(answer->error));
	else
		line("  peer reads %s%s", answer->shown, answer->error ? ", then the end" : "");
}

static struct answer read_there(int socket, int length, int flags, int delay)
{
	struct order order = peer_order(READ, socket, "", 0);
	order.length = length;
	order.value = flags;
	order.delay = delay;
	return peer_ask(order);
}

void peer_reads(int socket, int length)
{
	struct answer answer = read_there(socket, length, 0, 0);
	show_read(&answer);
}

void peer_reads_rest(int socket)
{
	peer_reads(socket, MUCH);
}

void peer_reads_urgent(int socket)
{
	struct answer answer = read_there(socket, 1, MSG_OOB, 0);
	show_read(&answer);
}

void peer_reads_later(int socket, int length, int delay)
{
	read_there(socket, length, 0, delay);
}

void peer_has_read(void)
{
	struct answer answer = peer_ask(peer_order(LAST, -1, "", 0));
	show_read(&answer);
}

void peer_shuts(int socket, int how, int delay)
{
	struct order order = peer_order(SHUT, socket, "", 0);
	order.value = how;
	order.delay = delay;
	peer_ask(order);
}

void peer_ends(int socket, int delay)
{
	struct order order = peer_order(END, socket, "", 0);
	order.delay = delay;
	peer_ask(order);
}

void peer_resets(int socket, int delay)
{
	struct order order = peer_order(RESET, socket, "", 0);
	order.delay = delay;
	peer_ask(order);
}

void peer_shows(int socket, short awaited)
{
	struct order order = peer_order(SHOW, socket, "", 0);
	order.value = awaited;
	struct answer answer = peer_ask(order);
	line("  peer polls %#x", (unsigned)answer.length);
}

void peer_forget(void)
{
	peer_ask(peer_order(FORGET, -1, "", 0));
}

/* From here on: in the peer. */

/* Every write is a segment at once: Nagle's algorithm would hold it until the prober's acknowledgement
 * of the one before has arrived, and a barrier would overtake it. */
static void prepare(int fd)
{
	struct timeval patience = { 0, PATIENCE * 1000 };
	setsockopt(fd, SOL_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

static int listen_here(const struct order *order)
{
	int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	prepare(fd);
	if (bind(fd, ADDRESS(order->ip, order->port)) || listen(fd, order->count))
		return -1;
	return fd;
}

static int connect_here(const struct order *order, struct answer *answer)
{
	int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
	prepare(fd);
	if (order->value) {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		if (bind(fd, ADDRESS(PEER, order->value)))
			return -1;
	}
	answer->length = connect(fd, ADDRESS(order->ip, order->port));
	answer->error = errno;
	return fd;
}

/* Without a delay at most what fits at once: the prober does not read while it waits for us. */
static void write_here(int fd, const struct order *order, struct answer *answer)
{
	const char *bytes = order->text;
	long length = strlen(order->text);
	if (length == 0) {
		bytes = stream_bytes(order->length);
		length = order->length;
	}
	long done = 0;
	while (done < length) {
		long sent = send(fd, bytes + done, length - done, order->value | MSG_NOSIGNAL);
		if (sent < 0) {
			answer->length = -1;
			answer->error = errno;
			return;
		}
		done += sent;
	}
	answer->length = done;
}

/* How it ended is in `error`: 0 with all that was wanted, -1 with the end of the stream. */
static void read_here(int fd, const struct order *order, struct answer *answer)
{
	static char bytes[MUCH];
	long done = 0;
	while (done < order->length) {
		long received = recv(fd, bytes + done, order->length - done, order->value);
		if (received <= 0) {
			answer->error = received < 0 ? errno : -1;
			break;
		}
		done += received;
	}
	answer->length = done;
	snprintf(answer->shown, sizeof answer->shown, "%s", text_of(bytes, done));
}

static int end_here(int *slot, bool abort)
{
	struct linger hard = { 1, 0 };
	if (abort)
		setsockopt(*slot, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
	int result = close(*slot);
	*slot = -1;
	return result;
}

static void do_here(int *sockets, const struct order *order, struct answer *answer)
{
	int nowhere = -1;
	int *slot = order->socket >= 0 && order->socket < SOCKETS ? &sockets[order->socket] : &nowhere;
	struct pollfd wait = { *slot, order->value, 0 };
	switch (order->operation) {
	case LISTEN:
		answer->result = peer_slot(sockets, listen_here(order));
		break;
	case ACCEPT: {
		int fd = -1;
		wait.events = POLLIN;
		if (poll(&wait, 1, 10 * PATIENCE) == 1 && (fd = accept(*slot, NULL, NULL)) >= 0)
			prepare(fd);
		answer->result = peer_slot(sockets, fd);
		break;
	}
	case CONNECT:
		answer->result = peer_slot(sockets, connect_here(order, answer));
		break;
	case WRITE:
		write_here(*slot, order, answer);
		break;
	case READ:
		read_here(*slot, order, answer);
		break;
	case SHUT:
		answer->result = shutdown(*slot, order->value);
		break;
	case SHOW:
		poll(&wait, 1, PATIENCE);
		wait.events = POLLIN | POLLPRI | POLLOUT | POLLRDHUP;
		poll(&wait, 1, 0);
		answer->length = wait.revents;
		break;
	case END:
	case RESET:
		answer->result = end_here(slot, order->operation == RESET);
		break;
	case FORGET:
		for (int i = 0; i < SOCKETS; i++)
			if (sockets[i] >= 0)
				end_here(&sockets[i], true);
		break;
	default:
		break;
	}
}

void peer_streams(int commands, int *sockets, const struct order *order)
{
	static struct answer last;
	struct answer answer = { 0 };
	if (order->operation == LAST)
		answer = last;
	if (order->delay) {
		must("answer", write(commands, &answer, sizeof answer));
		usleep(order->delay * 1000);
	}
	do_here(sockets, order, &answer);
	if (answer.result < 0)
		answer.error = errno;
	if (!order->delay)
		must("answer", write(commands, &answer, sizeof answer));
	last = answer;
	last.result = 0;
}
