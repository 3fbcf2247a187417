/* closed_peer server|client <ip> <port> [<TCP_NODELAY>]: a client that goes on sending, a byte at a time, to a server that
 * has closed. How many of its calls succeeded at the most (but for one time, when the server may have had no CPU), and how
 * long they took at the least if they began soon. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 20
#define TRIES 8
/* The server's, after it has closed: more than twice as long as a client waits and sends. The client's, before it connects
 * again: until the server waits for it. */
#define SERVER_MICROS 80000
#define CLIENT_MICROS 100000
/* A send buffer holds fewer. */
#define MOST 1000000

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

static long micros(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void serve(int listening)
{
	for (;;) {
		char byte;
		int fd = accept(listening, NULL, NULL);
		must(fd >= 0, "accept");
		for (int i = 0; i < ROUNDS; i++)
			must(recv(fd, &byte, 1, 0) == 1 && send(fd, &byte, 1, 0) == 1, "answer");
		recv(fd, &byte, 1, 0);
		close(fd);
		/* Nothing of the program's looks at the network meanwhile. */
		usleep(SERVER_MICROS);
	}
}

int main(int count, char **words)
{
	int nodelay = count > 4 ? atoi(words[4]) : 0, one = 1;
	long most = 0, second = 0, shortest = MOST;
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(words[3])) };
	inet_pton(AF_INET, words[2], &at.sin_addr);
	signal(SIGPIPE, SIG_IGN);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (words[1][0] == 's') {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		must(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 10) == 0, "listen");
		serve(fd);
	}
	for (int i = 0; i < TRIES; i++) {
		char byte = 'x';
		must(connect(fd, (struct sockaddr *)&at, sizeof at) == 0, "connect");
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &nodelay, sizeof nodelay);
		for (int round = 0; round < ROUNDS; round++)
			must(send(fd, &byte, 1, 0) == 1 && recv(fd, &byte, 1, 0) == 1, "ask");
		/* Within the host: until the two processes have found each other. */
		if (i == 0)
			usleep(300000);
		must(send(fd, &byte, 1, 0) == 1, "the last word");
		/* Every other time the end has long been seen. */
		usleep(i % 2 ? 30000 : 3000);
		long sends = 0, begin = micros();
		while (sends < MOST && send(fd, &byte, 1, 0) == 1)
			sends++;
		long took = micros() - begin;
		printf("%ld sends in %ld us: %m\n", sends, took);
		if (sends > most) {
			second = most;
			most = sends;
		} else if (sends > second) {
			second = sends;
		}
		if (i % 2 == 0 && took < shortest)
			shortest = took;
		close(fd);
		usleep(CLIENT_MICROS);
		fd = socket(AF_INET, SOCK_STREAM, 0);
	}
	printf("most sends but one %ld\nshortest soon after %ld\n", second, shortest);
	return 0;
}
