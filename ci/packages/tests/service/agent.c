/*
 * What a process that runs over libvma does towards vmad, written from the protocol's description; and
 * the other end of its connection. Static, so that it runs in any system.
 *
 *   agent ask UID                           introduces itself as that user; prints the answer
 *   agent peer PORT SECONDS                 accepts one connection, says nothing, prints how it ended
 *   agent die UID LOCAL PEER PORT           connects as root, tells vmad of it as that user, and dies
 *                                           so that its kernel tells the peer nothing
 *   agent flow INTERFACE TAP LOCAL PORT     asks for a TCP flow to go to a TAP; prints the answer
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define DIRECTORY "/tmp/vma"
#define DAEMON "/var/run/vma_agent.sock"

struct __attribute__((packed)) header {
	uint8_t code, version, status, reserved;
	int32_t pid;
};
struct __attribute__((packed)) init {
	struct header header;
	uint32_t library;
};
struct __attribute__((packed)) state {
	struct header header;
	uint32_t fd, local, peer;
	uint16_t local_port, peer_port;
	uint8_t type, state;
};

struct __attribute__((packed)) flow {
	struct header header;
	uint8_t type, action;
	uint32_t interface, tap, local;
	uint16_t local_port;
	uint32_t peer;
	uint16_t peer_port;
};

static void check(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

static struct sockaddr_in address(const char *host, const char *port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
	check(inet_pton(AF_INET, host, &a.sin_addr) == 1, host);
	return a;
}

static void become(const char *uid)
{
	check(setresgid(atoi(uid), atoi(uid), atoi(uid)) == 0, "setresgid");
	check(setresuid(atoi(uid), atoi(uid), atoi(uid)) == 0, "setresuid");
}

/* Files, INIT, and the answer to it: 12 bytes with code 0x81. Returns the socket. */
static int introduce(void)
{
	struct sockaddr_un own = {.sun_family = AF_UNIX}, theirs = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = 3};
	struct init init = {{1, 3, 0, 0, getpid()}, 0x9000}, answer;
	char file[100];
	int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	umask(022);
	snprintf(file, sizeof file, DIRECTORY "/vma_agent.%d.pid", getpid());
	check(open(file, O_CREAT | O_RDONLY | O_CLOEXEC, 0640) >= 0, file);
	snprintf(own.sun_path, sizeof own.sun_path, DIRECTORY "/vma_agent.%d.sock", getpid());
	check(bind(s, (void *)&own, sizeof own) == 0, own.sun_path);
	strcpy(theirs.sun_path, DAEMON);
	check(connect(s, (void *)&theirs, sizeof theirs) == 0, DAEMON);
	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	check(send(s, &init, sizeof init, 0) == sizeof init, "INIT");
	check(recv(s, &answer, sizeof answer, 0) == sizeof answer, "answer to INIT");
	if (answer.header.code != 0x81 || answer.header.pid != getpid()) {
		fprintf(stderr, "answer %#x to process %d\n", answer.header.code, answer.header.pid);
		exit(1);
	}
	return s;
}

static void ask(const char *uid)
{
	become(uid);
	introduce();
	puts("answered");
}

static void peer(const char *port, const char *seconds)
{
	struct sockaddr_in a = address("0.0.0.0", port);
	struct pollfd wait = {.events = POLLIN};
	char byte;
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	check(bind(listener, (void *)&a, sizeof a) == 0, "bind");
	check(listen(listener, 1) == 0, "listen");
	puts("listening");
	fflush(stdout);
	wait.fd = accept(listener, NULL, NULL);
	check(wait.fd >= 0, "accept");
	if (poll(&wait, 1, 1000 * atoi(seconds)) == 0)
		puts("nothing happened");
	else if (recv(wait.fd, &byte, 1, 0) < 0)
		puts(strerror(errno));
	else
		puts("an orderly end");
}

static void die(const char *uid, const char *local_host, const char *peer_host, const char *port)
{
	struct sockaddr_in local = address(local_host, "0"), far = address(peer_host, port);
	struct state state = {.header = {2, 3, 0, 0, getpid()}, .type = SOCK_STREAM, .state = 4};
	socklen_t length = sizeof local;
	int one = 1, agent, s = socket(AF_INET, SOCK_STREAM, 0);

	check(bind(s, (void *)&local, sizeof local) == 0, "bind");
	check(connect(s, (void *)&far, sizeof far) == 0, "connect");
	check(getsockname(s, (void *)&local, &length) == 0, "getsockname");
	/* The kernel forgets the connection with the process, as if it had never known it: tcp(7). */
	check(setsockopt(s, IPPROTO_TCP, TCP_REPAIR, &one, sizeof one) == 0, "TCP_REPAIR");
	become(uid);
	agent = introduce();
	state.fd = s;
	state.local = local.sin_addr.s_addr;
	state.local_port = local.sin_port;
	state.peer = far.sin_addr.s_addr;
	state.peer_port = far.sin_port;
	check(send(agent, &state, sizeof state, 0) == sizeof state, "STATE");
	raise(SIGKILL);
}

static void ask_for_flow(const char *interface, const char *tap, const char *host, const char *port)
{
	struct sockaddr_in local = address(host, port);
	/* A TCP 3-tuple, to be added, with an answer. */
	struct flow flow = {.header = {4, 3, 1, 0, getpid()}, .type = 4, .action = 1};
	struct header answer;
	int agent = introduce();

	flow.interface = if_nametoindex(interface);
	flow.tap = if_nametoindex(tap);
	flow.local = local.sin_addr.s_addr;
	flow.local_port = local.sin_port;
	check(send(agent, &flow, sizeof flow, 0) == sizeof flow, "FLOW");
	check(recv(agent, &answer, sizeof answer, 0) == sizeof answer, "answer to FLOW");
	puts(answer.code == 0x84 && answer.status == 0 ? "done" : "refused");
}

int main(int count, char **words)
{
	alarm(20);
	if (count == 3 && !strcmp(words[1], "ask"))
		ask(words[2]);
	else if (count == 4 && !strcmp(words[1], "peer"))
		peer(words[2], words[3]);
	else if (count == 6 && !strcmp(words[1], "die"))
		die(words[2], words[3], words[4], words[5]);
	else if (count == 6 && !strcmp(words[1], "flow"))
		ask_for_flow(words[2], words[3], words[4], words[5]);
	else
		return 2;
	return 0;
}
