/*
 * The time stamp that a callback gets of bytes of a stream. The program says what it waits for; the test sends that.
 *
 * usage: stamps HOST
 */
#include "extra.h"

#include <time.h>

static struct vma_api_t *vma;
static int64_t stamp, hardware;
static int calls;

static int64_t nanoseconds(struct timespec time)
{
	return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static int64_t now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_REALTIME, &time);
	return nanoseconds(time);
}

static vma_recv_callback_retval_t judge(int fd, size_t count, struct iovec iov[], struct vma_info_t *info, void *context)
{
	(void)fd, (void)count, (void)context;
	stamp = nanoseconds(info->sw_timestamp);
	hardware = nanoseconds(info->hw_timestamp);
	calls++;
	return *(char *)iov[0].iov_base == 'r' ? VMA_PACKET_RECV : VMA_PACKET_DROP;
}

/* Waits until bytes are judged. */
static void judged(int fd)
{
	int before = calls;
	struct pollfd one = {fd, POLLIN, 0};
	while (calls == before)
		CHECK(poll(&one, 1, 10) >= 0);
	CHECK(hardware == 0);
}

int main(int count, char **words)
{
	CHECK(count == 2 && (vma = vma_get_api()));
	char bytes[8];
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	connected(fd, words[1], 7000);
	CHECK(vma->register_recv_callback(fd, judge, NULL) == 0);
	/* Bytes that come while the program sleeps: the internal thread takes them, and notes when. */
	say("early");
	usleep(600000);
	int64_t before = now();
	judged(fd);
	CHECK(stamp < before - 200000000 && stamp > before - 10000000000);
	/* Bytes that come while it polls; none came between. */
	for (int round = 0; round < 3; round++) {
		int64_t last = stamp;
		before = now();
		say("soon");
		judged(fd);
		CHECK(stamp >= before && stamp <= now() && stamp > last);
	}
	/* Bytes that are left to receive calls, and others behind them. */
	say("received");
	judged(fd);
	CHECK(recv(fd, bytes, 1, MSG_WAITALL) == 1 && *bytes == 'r');
	before = now();
	say("behind");
	judged(fd);
	CHECK(stamp >= before && stamp <= now());
	say("done");
	return 0;
}
