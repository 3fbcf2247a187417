/* Threads: one socket in several, and descriptors that go away under a call. */
#include "prober.h"

static int shared, total;
static unsigned long sum;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Receives until an empty datagram comes. */
static void *receiver(void *unused)
{
	(void)unused;
	for (;;) {
		unsigned char bytes[100];
		long length = recv(shared, bytes, sizeof bytes, 0);
		if (length <= 0)
			return (void *)(length == 0 ? 1L : 0L);
		pthread_mutex_lock(&lock);
		total++;
		sum += bytes[0];
		pthread_mutex_unlock(&lock);
	}
}

static void two_receivers(void)
{
	int there = peer_open(PEER, 6000), size = 1 << 20;
	shared = udp(5000);
	setsockopt(shared, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
	total = sum = 0;
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, receiver, NULL);
	for (int i = 0; i < 10; i++)
		peer_send(there, HOST, 5000, 20, 10, 0);
	peer_send(there, HOST, 5000, 0, 2, 0);
	for (int i = 0; i < 2; i++) {
		void *result;
		pthread_join(threads[i], &result);
		line("  ended well: %d", result != NULL);
	}
	line("  received %d, sum %lu", total, sum);
	peer_close(there);
}

static void *sender(void *number)
{
	char bytes[8] = { 'a' + (char)(long)number };
	long sent = 0;
	for (int i = 0; i < 100; i++)
		sent += sendto(shared, bytes, 8, 0, ADDRESS(PEER, 6000)) == 8;
	return (void *)sent;
}

static void four_senders(void)
{
	int there = peer_open(PEER, 6000);
	shared = udp(5000);
	pthread_t threads[4];
	for (long i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, sender, (void *)i);
	for (int i = 0; i < 4; i++) {
		void *sent;
		pthread_join(threads[i], &sent);
		line("  sent %ld", (long)sent);
	}
	peer_counts(there, 400);
	peer_close(there);
}

/* One thread waits, another makes a datagram come: sent to the host itself or by the peer. */
static void *waiter(void *how)
{
	struct pollfd wait = { shared, POLLIN, 0 };
	long result = -2;
	if ((long)how == 0) {
		result = recv(shared, room, 100, 0);
	} else if ((long)how == 1) {
		result = poll(&wait, 1, -1);
	} else {
		int epoll = epoll_create1(0);
		struct epoll_event event = { .events = EPOLLIN };
		epoll_ctl(epoll, EPOLL_CTL_ADD, shared, &event);
		result = epoll_wait(epoll, &event, 1, -1);
		close(epoll);
	}
	return (void *)result;
}

static void woken(void)
{
	int there = peer_open(PEER, 6000);
	for (long how = 0; how < 3; how++) {
		for (int local = 0; local < 2; local++) {
			int other = udp(5001);
			shared = udp(5000);
			pthread_t thread;
			void *result;
			pthread_create(&thread, NULL, waiter, (void *)how);
			usleep(20000);
			/* Another thread polls the ring meanwhile, and takes what is not its own. */
			struct pollfd wait = { other, POLLIN, 0 };
			poll(&wait, 1, 20);
			if (local)
				sendto(other, "abc", 3, 0, ADDRESS(HOST, 5000));
			else
				peer_say(there, 5000, "abc");
			pthread_join(thread, &result);
			line("  way %ld, %s: %ld", how, local ? "local" : "from the peer", (long)result);
			close(other);
			close(shared);
		}
	}
	peer_close(there);
}

/* What a call says whose descriptor goes away is between the threads; but it ends. */
static void *bounded(void *unused)
{
	(void)unused;
	char byte[100];
	recv(shared, byte, sizeof byte, 0);
	return NULL;
}

static void going_away(void)
{
	int there = peer_open(PEER, 6000);
	for (int how = 0; how < 4; how++) {
		shared = udp(5000);
		struct timeval limit = { 0, 300000 };
		setsockopt(shared, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
		pthread_t thread;
		pthread_create(&thread, NULL, bounded, NULL);
		usleep(50000);
		int other = udp(5001);
		if (how == 0)
			close(shared);
		else if (how == 1)
			dup2(other, shared);
		else if (how == 2)
			shutdown(shared, SHUT_RDWR);
		else
			connect(shared, ADDRESS(PEER, 6999)), send(shared, "x", 1, 0);
		pthread_join(thread, NULL);
		line("  way %d ended", how);
		peer_say(there, 5001, "the other");
		receive_shown(other, 100, 0);
		close(other);
		close(shared);
		int again = udp(5000); /* free */
		close(again);
	}
	peer_close(there);
}

/* Sockets come and go in two threads, each with its traffic. */
static void *churn(void *number)
{
	long good = 0;
	int port = 5100 + (int)(long)number;
	for (int i = 0; i < 100; i++) {
		int fd = udp(port), other = udp(port + 10);
		char byte[10];
		struct timeval second = { 1, 0 };
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
		sendto(other, "churn", 5, 0, ADDRESS(HOST, port));
		sendto(other, "churn", 5, 0, ADDRESS(PEER, 6000));
		good += recv(fd, byte, sizeof byte, 0) == 5;
		close(fd);
		close(other);
	}
	return (void *)good;
}

static void coming_and_going(void)
{
	int there = peer_open(PEER, 6000);
	pthread_t threads[3];
	for (long i = 0; i < 3; i++)
		pthread_create(&threads[i], NULL, churn, (void *)i);
	for (int i = 0; i < 3; i++) {
		void *good;
		pthread_join(threads[i], &good);
		line("  good %ld", (long)good);
	}
	peer_counts(there, 300);
	peer_close(there);
}

const probe_case thread_cases[] = {
	{ "two_receivers", two_receivers, false },
	{ "four_senders", four_senders, false },
	{ "woken", woken, true },            /* some of it within the host */
	{ "going_away", going_away, true },  /* shut down */
	{ "coming_and_going", coming_and_going, true },
	{ NULL, NULL, false },
};
