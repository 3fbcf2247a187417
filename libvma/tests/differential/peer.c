/* The other host: a process in the other namespace, on the kernel's sockets, that does as told over
 * a local socket. */
#include "peer.h"

#include <sched.h>
#include <stddef.h>

#define BARRIER_PORT 29999

int first_descriptor;
static int control = -1, listening_for_barrier;

void preload_of_peers(void)
{
	const char *library = getenv("PEER_PRELOAD");
	if (library)
		setenv("LD_PRELOAD", library, 1);
	else
		unsetenv("LD_PRELOAD");
}

static void go_to(const char *namespace)
{
	if (strcmp(namespace, "-") == 0)
		return;
	int fd = open(namespace, O_RDONLY);
	must("open the namespace", fd);
	must("setns", setns(fd, CLONE_NEWNET));
	close(fd);
}

int peer_start(const char *namespace)
{
	int pair[2];
	must("socketpair", socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
	pid_t child = fork();
	must("fork", child);
	if (child == 0) {
		char number[12];
		snprintf(number, sizeof number, "%d", pair[1]);
		go_to(namespace);
		close(pair[0]);
		preload_of_peers();
		execl("/proc/self/exe", "prober", "peer", number, (char *)NULL);
		_exit(5);
	}
	close(pair[1]);
	control = pair[0];
	listening_for_barrier = udp(BARRIER_PORT);
	first_descriptor = listening_for_barrier + 1;
	return control;
}

struct answer peer_ask(struct order order)
{
	struct answer answer;
	must("write to the peer", write(control, &order, sizeof order));
	long length;
	do /* a case may have signals that interrupt */
		length = recv(control, &answer, sizeof answer, 0);
	while (length < 0 && errno == EINTR);
	if (length != sizeof answer) {
		line("! the peer is gone");
		_exit(6);
	}
	if (answer.result < 0) {
		line("! the peer failed at operation %d: %s", order.operation, error_name(answer.error));
		_exit(7);
	}
	return answer;
}

struct order peer_order(enum operation operation, int socket, const char *ip, int port)
{
	struct order order = { .operation = operation, .socket = socket, .port = port };
	snprintf(order.ip, sizeof order.ip, "%s", ip);
	return order;
}

int peer_open(const char *ip, int port)
{
	return peer_ask(peer_order(OPEN, -1, ip, port)).result;
}

void peer_close(int socket)
{
	peer_ask(peer_order(CLOSE, socket, "", 0));
}

void peer_say_to(int socket, const char *ip, int to_port, const char *text)
{
	struct order order = peer_order(SEND, socket, ip, to_port);
	snprintf(order.text, sizeof order.text, "%s", text);
	order.count = 1;
	peer_ask(order);
}

void peer_say(int socket, int to_port, const char *text)
{
	peer_say_to(socket, HOST, to_port, text);
}

void peer_say_later(int socket, int to_port, const char *text, int delay)
{
	struct order order = peer_order(SEND, socket, HOST, to_port);
	snprintf(order.text, sizeof order.text, "%s", text);
	order.count = 1;
	order.delay = delay;
	peer_ask(order);
}

void peer_send(int socket, const char *ip, int to_port, int length, int count, int delay)
{
	struct order order = peer_order(SEND, socket, ip, to_port);
	order.length = length;
	order.count = count;
	order.delay = delay;
	peer_ask(order);
}

void peer_set(int socket, int level, int name, int value)
{
	struct order order = peer_order(SET, socket, "", 0);
	order.level = level;
	order.name = name;
	order.value = value;
	peer_ask(order);
}

void peer_join(int socket, const char *group)
{
	peer_ask(peer_order(JOIN, socket, group, 0));
}

void peer_hears(int socket)
{
	struct answer answer = peer_ask(peer_order(HEAR, socket, "", 0));
	if (answer.length < 0)
		line("  peer hears nothing (%s)", error_name(answer.error));
	else
		line("  peer hears %s from %s, ttl %d, tos %#x", answer.shown, name_of(&answer.from),
		     answer.ttl, answer.tos);
}

void peer_counts(int socket, int count)
{
	struct order order = peer_order(COUNT, socket, "", 0);
	order.count = count;
	line("  peer counts %d of %d", peer_ask(order).result, count);
}

void barrier(void)
{
	char byte[8];
	peer_ask(peer_order(BARRIER, 0, HOST, BARRIER_PORT));
	while (recv(listening_for_barrier, byte, sizeof byte, 0) < 0)
		must("the barrier", errno == EINTR ? 0 : -1);
}

/* From here on: in the peer. */

static int open_here(const struct order *order)
{
	int on = 1, fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct timeval patience = { 0, 300000 };
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &on, sizeof on);
	setsockopt(fd, IPPROTO_IP, IP_RECVTTL, &on, sizeof on);
	setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &on, sizeof on);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	int size = 4 << 20;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size);
	struct in_addr from = at(PEER, 0).sin_addr;
	setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &from, sizeof from);
	return bind(fd, ADDRESS(order->ip, order->port)) ? -1 : fd;
}

static int send_here(int fd, const struct order *order)
{
	static unsigned char bytes[ROOM];
	struct sockaddr_in to = at(order->ip, order->port);
	for (int n = 0; n < order->count; n++) {
		int length = order->length;
		if (order->text[0]) {
			length = strlen(order->text);
			memcpy(bytes, order->text, length);
		} else {
			for (int i = 0; i < length; i++)
				bytes[i] = i + n;
		}
		/* ECONNREFUSED from an earlier datagram is reported on this one: again. */
		if (sendto(fd, bytes, length, 0, (struct sockaddr *)&to, sizeof to) < 0 &&
		    sendto(fd, bytes, length, 0, (struct sockaddr *)&to, sizeof to) < 0)
			return -1;
	}
	return 0;
}

static void hear_here(int fd, struct answer *answer)
{
	char control_room[128];
	struct iovec into = { room, sizeof room };
	struct msghdr message = { .msg_name = &answer->from, .msg_namelen = sizeof answer->from,
		.msg_iov = &into, .msg_iovlen = 1,
		.msg_control = control_room, .msg_controllen = sizeof control_room };
	answer->length = recvmsg(fd, &message, 0);
	answer->error = errno;
	if (answer->length < 0)
		return;
	snprintf(answer->shown, sizeof answer->shown, "%s", text_of(room, answer->length));
	for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
		if (at->cmsg_type == (at->cmsg_level == IPPROTO_IPV6 ? IPV6_HOPLIMIT : IP_TTL))
			memcpy(&answer->ttl, CMSG_DATA(at), sizeof answer->ttl);
		else if (at->cmsg_type == (at->cmsg_level == IPPROTO_IPV6 ? IPV6_TCLASS : IP_TOS))
			answer->tos = *CMSG_DATA(at);
	}
}

static int count_here(int fd, int most)
{
	int count = 0;
	while (count < most && recv(fd, room, sizeof room, 0) >= 0)
		count++;
	return count;
}

int peer_slot(int *sockets, int fd)
{
	int slot = 0;
	while (slot < SOCKETS && sockets[slot] >= 0)
		slot++;
	if (slot == SOCKETS || fd < 0)
		return -1;
	sockets[slot] = fd;
	return slot;
}

int peer_main(int commands)
{
	int sockets[SOCKETS], barrier_socket = socket(AF_INET, SOCK_DGRAM, 0);
	for (int i = 0; i < SOCKETS; i++)
		sockets[i] = -1;
	struct order order;
	while (recv(commands, &order, sizeof order, 0) == sizeof order) {
		struct answer answer = { 0 };
		if (order.operation >= LISTEN) {
			peer_streams(commands, sockets, &order);
			continue;
		}
		int fd = order.socket >= 0 && order.socket < SOCKETS ? sockets[order.socket] : -1;
		bool answered = false;
		switch (order.operation) {
		case OPEN:
			answer.result = peer_slot(sockets, open_here(&order));
			break;
		case CLOSE:
			answer.result = close(fd);
			sockets[order.socket] = -1;
			break;
		case SEND:
			if (order.delay) {
				must("answer", write(commands, &answer, sizeof answer));
				answered = true;
				usleep(order.delay * 1000);
			}
			answer.result = send_here(fd, &order);
			break;
		case SET:
			answer.result = setsockopt(fd, order.level, order.name, &order.value, sizeof(int));
			break;
		case JOIN: {
			struct ip_mreq group = { at(order.ip, 0).sin_addr, at(PEER, 0).sin_addr };
			answer.result =
				setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group);
			break;
		}
		case HEAR:
			hear_here(fd, &answer);
			break;
		case COUNT:
			answer.result = count_here(fd, order.count);
			break;
		case BARRIER:
			answer.result = sendto(barrier_socket, "barrier", 7, 0, ADDRESS(order.ip, order.port));
			break;
		default:
			break;
		}
		if (answer.result < 0)
			answer.error = errno;
		if (!answered)
			must("answer", write(commands, &answer, sizeof answer));
	}
	return 0;
}
