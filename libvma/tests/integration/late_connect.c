/* A library whose destructor connects, when all of those that were loaded before it have ended: to 10.99.0.2:7000, where it
 * says "late". */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

__attribute__((destructor)) static void leave(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7000) };
	struct timeval longest = { .tv_sec = 5 };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	inet_pton(AF_INET, "10.99.0.2", &to.sin_addr);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof longest);
	if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
		send(fd, "late", 4, MSG_NOSIGNAL);
	close(fd);
}
