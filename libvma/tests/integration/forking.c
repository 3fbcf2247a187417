/* Forks while its other thread sends datagrams below a lock that a fork handler takes, too. The handler is registered before
 * any library's constructor runs, so by the order of pthread_atfork(3) it would come after those of constructors.
 *
 *   forking ADDRESS COUNT     forks so often */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sockaddr_in peer = {.sin_family = AF_INET};
static int fd;
static volatile int stop;

static void take(void)
{
	pthread_mutex_lock(&lock);
}

static void give(void)
{
	pthread_mutex_unlock(&lock);
}

static void first_of_all(void)
{
	pthread_atfork(take, give, give);
}

__attribute__((section(".preinit_array"), used)) static void (*const early)(void) = first_of_all;

static void *sender(void *unused)
{
	while (!stop) {
		take();
		if (sendto(fd, "datagram", 8, 0, (struct sockaddr *)&peer, sizeof peer) != 8)
			perror("sendto"), exit(1);
		give();
	}
	return unused;
}

int main(int count, char **words)
{
	pthread_t thread;
	int status;
	(void)count;
	peer.sin_port = htons(7000);
	inet_pton(AF_INET, words[1], &peer.sin_addr);
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	pthread_create(&thread, NULL, sender, NULL);
	for (int i = 0; i < atoi(words[2]); i++) {
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		if (waitpid(child, &status, 0) != child || status != 0)
			return perror("child"), 1;
	}
	/* The sockets of a process that ends are the kernel's. */
	stop = 1;
	pthread_join(thread, NULL);
	puts("forked");
	return 0;
}
