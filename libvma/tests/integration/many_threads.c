/*
 * Threads that each talk to an echo by a socket of their own, in short messages of which every byte is known.
 *
 * usage: many_threads udp|tcp THREADS MESSAGES: to 10.99.0.2:7000; prints "done" for each thread, or what was wrong
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The original corrupted packets below 205 bytes, which it copied into the work request. */
#define LONGEST 204
#define BURST 4

static int kind, messages;

static int length(long thread, int number)
{
	return 8 + (thread * 31 + number * 7) % (LONGEST - 7);
}

static void fill(unsigned char *bytes, long thread, int number)
{
	int count = length(thread, number);
	for (int at = 0; at < count; at++)
		bytes[at] = thread * 37 + number * 11 + at * 3;
	bytes[0] = thread;
	memcpy(bytes + 1, &number, sizeof(number));
}

static int receive(int fd, unsigned char *bytes, int count)
{
	return recv(fd, bytes, count, kind == SOCK_STREAM ? MSG_WAITALL : 0);
}

static const char *talk(int fd, long thread)
{
	unsigned char sent[LONGEST], got[LONGEST];
	for (int number = 0; number < messages; number += BURST) {
		for (int at = number; at < number + BURST; at++) {
			fill(sent, thread, at);
			if (send(fd, sent, length(thread, at), 0) != length(thread, at))
				return "send";
		}
		for (int at = number; at < number + BURST; at++) {
			fill(sent, thread, at);
			int count = length(thread, at);
			if (receive(fd, got, kind == SOCK_STREAM ? count : LONGEST) != count)
				return "length";
			if (memcmp(sent, got, count) != 0)
				return "bytes";
		}
	}
	return "done";
}

static void *work(void *thread)
{
	struct sockaddr_in to = {AF_INET, htons(7000), {inet_addr("10.99.0.2")}, {0}};
	struct timeval patience = {20, 0};
	int fd = socket(AF_INET, kind, 0);
	const char *said = "connect";
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0) {
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
		said = talk(fd, (long)thread);
	}
	printf("%s\n", said);
	close(fd);
	return NULL;
}

int main(int count, char **words)
{
	pthread_t threads[64];
	long wanted = atol(words[2]);
	(void)count;
	kind = strcmp(words[1], "udp") == 0 ? SOCK_DGRAM : SOCK_STREAM;
	messages = atoi(words[3]);
	for (long at = 0; at < wanted; at++)
		pthread_create(&threads[at], NULL, work, (void *)at);
	for (long at = 0; at < wanted; at++)
		pthread_join(threads[at], NULL);
	return 0;
}
