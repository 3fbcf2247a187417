/* A prefork server whose workers start one after the other, under clients from its first moment on.
 *
 *   prefork server ADDRESS SECONDS
 *   prefork client ADDRESS SECONDS
 *
 * The client prints "FAIL ..." for each connection that was not answered, and "done" if any was. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 4, THREADS = 8, PORT = 7000 };
static struct sockaddr_in address = {.sin_family = AF_INET};
static _Atomic int answered, over;

static void work(int listener)
{
	for (;;) {
		struct pollfd one = {listener, POLLIN, 0};
		char bytes[64];
		poll(&one, 1, -1);
		int fd = accept(listener, NULL, NULL);
		if (fd < 0)
			continue;
		ssize_t got = recv(fd, bytes, sizeof bytes, 0);
		if (got > 0)
			send(fd, bytes, (size_t)got, MSG_NOSIGNAL);
		close(fd);
	}
}

static int server(int seconds)
{
	pid_t workers[WORKERS];
	int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 128) != 0)
		return perror("listen"), 1;
	/* What it still has to do: clients that come meanwhile are the workers'. */
	usleep(10000);
	for (int i = 0; i < WORKERS; i++) {
		workers[i] = fork();
		if (workers[i] == 0)
			work(listener);
		usleep(30000);
	}
	sleep((unsigned)seconds);
	for (int i = 0; i < WORKERS; i++)
		kill(workers[i], SIGKILL);
	return 0;
}

static void *client(void *argument)
{
	(void)argument;
	while (!over) {
		char bytes[64];
		struct timeval patience = {5, 0};
		const char *step = "connect";
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
		int good = connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
		/* Before it listens. */
		int early = !good && errno == ECONNREFUSED && answered == 0;
		if (good)
			step = "send", good = send(fd, "hello", 5, MSG_NOSIGNAL) == 5;
		if (good)
			step = "recv", good = recv(fd, bytes, sizeof bytes, 0) == 5;
		if (good)
			answered++;
		else if (!early)
			printf("FAIL %s: %s\n", step, strerror(errno));
		close(fd);
		if (early)
			usleep(500);
	}
	return NULL;
}

int main(int argc, char **words)
{
	if (argc != 4)
		return 2;
	address.sin_port = htons(PORT);
	inet_pton(AF_INET, words[2], &address.sin_addr);
	int seconds = atoi(words[3]);
	if (strcmp(words[1], "server") == 0)
		return server(seconds);
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, client, NULL);
	sleep((unsigned)seconds);
	over = 1;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	if (answered)
		printf("done\n");
	return 0;
}
