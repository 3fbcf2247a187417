/* What the programs of these tests have in common. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>

#define CHECK(condition)                                                                                   \
	do {                                                                                               \
		if (!(condition)) {                                                                        \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno);          \
			exit(1);                                                                           \
		}                                                                                          \
	} while (0)

/* The call fails with this errno. */
#define FAILS(call, error)                                                                                 \
	do {                                                                                               \
		errno = 0;                                                                                 \
		long result_ = (long)(call);                                                               \
		if (result_ != -1 || errno != (error)) {                                                   \
			fprintf(stderr, "line %d: %s: %ld, errno %d\n", __LINE__, #call, result_, errno);  \
			exit(1);                                                                           \
		}                                                                                          \
	} while (0)

/* Pages of memory that the process has. */
static inline long resident(void)
{
	long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file && fscanf(file, "%*d %ld", &pages) == 1);
	fclose(file);
	return pages;
}

static inline struct sockaddr_in address(const char *host, int port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
	CHECK(inet_pton(AF_INET, host, &at.sin_addr) == 1);
	return at;
}

static inline int bound(int type, const char *host, int port)
{
	struct sockaddr_in at = address(host, port);
	int fd = socket(AF_INET, type, 0);
	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
	return fd;
}

static inline void connected(int fd, const char *host, int port)
{
	struct sockaddr_in at = address(host, port);
	CHECK(connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
}

/* Tells the test how far the program is. */
static inline void say(const char *text)
{
	puts(text);
	fflush(stdout);
}
