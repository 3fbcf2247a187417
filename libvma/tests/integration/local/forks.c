// A server with a thread for each connection, which forks before it answers, and its client.
//
// usage: forks serve <port>
//        forks call <port> <threads> <connections of each>
//
// The child exits at once; the thread waits for it, sends 100 kB, shuts down and closes. The client
// reads to the end, and prints how the connections ended:
//     whole 400 reset 0 short 0 wrong 0
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE 100000

static char pattern[SIZE];
static struct sockaddr_in address = {.sin_family = AF_INET};
static int connections;
static long whole, resets, shorts, wrong;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void *answer(void *argument)
{
	int fd = (int)(long)argument;
	char request[64];
	if (recv(fd, request, sizeof request, 0) <= 0)
		die("recv of a request");
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	if (child < 0 || waitpid(child, NULL, 0) != child)
		die("fork or waitpid");
	for (size_t sent = 0; sent < SIZE;) {
		ssize_t count = send(fd, pattern + sent, SIZE - sent, MSG_NOSIGNAL);
		if (count <= 0) {
			perror("send of the answer");
			break;
		}
		sent += count;
	}
	shutdown(fd, SHUT_WR);
	close(fd);
	return NULL;
}

static void serve(void)
{
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 128))
		die("bind or listen");
	for (;;) {
		pthread_t thread;
		int fd = accept(listener, NULL, NULL);
		if (fd < 0)
			die("accept");
		if (pthread_create(&thread, NULL, answer, (void *)(long)fd))
			die("pthread_create");
		pthread_detach(thread);
	}
}

static void call_once(void)
{
	char got[SIZE + 1];
	size_t len = 0;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd, (struct sockaddr *)&address, sizeof address))
		die("connect");
	if (send(fd, "request", 7, 0) != 7)
		die("send of a request");
	for (;;) {
		ssize_t count = recv(fd, got + len, sizeof got - len, 0);
		if (count < 0) {
			__atomic_add_fetch(&resets, 1, __ATOMIC_RELAXED);
			break;
		}
		if (count == 0) {
			__atomic_add_fetch(len < SIZE ? &shorts : &whole, 1, __ATOMIC_RELAXED);
			break;
		}
		if (len + count > SIZE || memcmp(got + len, pattern + len, count)) {
			__atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
			break;
		}
		len += count;
	}
	close(fd);
}

static void *call(void *unused)
{
	for (int i = 0; i < connections; i++)
		call_once();
	return unused;
}

int main(int argc, char **argv)
{
	for (int i = 0; i < SIZE; i++)
		pattern[i] = i * 7 + i / 251;
	if (argc < 3)
		return 2;
	address.sin_port = htons(atoi(argv[2]));
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (argc == 3)
		serve();
	int threads = atoi(argv[3]);
	pthread_t ids[threads];
	connections = atoi(argv[4]);
	for (int i = 0; i < threads; i++)
		pthread_create(&ids[i], NULL, call, NULL);
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	printf("whole %ld reset %ld short %ld wrong %ld\n", whole, resets, shorts, wrong);
	return 0;
}
