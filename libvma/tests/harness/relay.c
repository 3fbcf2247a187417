// A cable with faults: forwards Ethernet frames between two interfaces and, with given
// probabilities, loses, duplicates, holds back (so that later ones overtake) or corrupts one.
//
// usage: relay <interface> <interface> [name=value ...]
//     seed=N                     the same seed makes the same decisions, frame by frame
//     loss=P duplicate=P reorder=P corrupt=P                   percent of the frames, decimals allowed
//     delay=US jitter=US         every frame takes that long; the jitter keeps the order
//
// Prints `ready`, and on SIGTERM or SIGINT a line of counters for each direction. Frames must not be
// longer than an MTU and must have their checksums: segmentation and checksum offload of both ends
// have to be off. `overrun` counts what got lost without having been told to.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BATCH 64
#define SLOTS 16384
// MTU 9000, an Ethernet header, a VLAN tag, and a bit.
#define FRAME_MAX 9216
// How long a frame is held back for others to overtake it, at most.
#define HOLD_NS 1000000

static struct {
	uint64_t seed, delay_ns, jitter_ns;
	// Of 2^32.
	uint64_t loss, duplicate, reorder, corrupt;
} faults = {.seed = 1};

struct direction {
	const char *name;
	int in, out;
	uint64_t random, last_due;
	uint64_t frames, bytes, lost, duplicated, reordered, corrupted, overrun;
};

// A frame on its way. The heap is ordered by `due`, then by `order`.
struct waiting {
	uint64_t due, order;
	struct direction *direction;
	uint32_t slot, len;
};

static struct direction directions[2];
static uint8_t received[BATCH][FRAME_MAX], slots[SLOTS][FRAME_MAX];
static uint32_t free_slots[SLOTS], free_count;
static struct waiting heap[SLOTS];
static uint32_t heap_len;
static uint64_t order;
static volatile sig_atomic_t stopped;

// Frames that leave now.
static struct mmsghdr leaving[2 * BATCH];
static struct iovec leaving_parts[2 * BATCH];
static unsigned leaving_len;

static void die(const char *what)
{
	fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void stop(int signal)
{
	(void)signal;
	stopped = 1;
}

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

// splitmix64
static uint64_t next_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static int happens(struct direction *direction, uint64_t chance)
{
	return chance && (next_random(&direction->random) >> 32) < chance;
}

static int earlier(const struct waiting *a, const struct waiting *b)
{
	return a->due != b->due ? a->due < b->due : a->order < b->order;
}

static void heap_push(struct waiting one)
{
	uint32_t at = heap_len++;
	while (at > 0 && earlier(&one, &heap[(at - 1) / 2])) {
		heap[at] = heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	heap[at] = one;
}

static struct waiting heap_pop(void)
{
	struct waiting first = heap[0], last = heap[--heap_len];
	uint32_t at = 0, child;
	while ((child = 2 * at + 1) < heap_len) {
		if (child + 1 < heap_len && earlier(&heap[child + 1], &heap[child]))
			child++;
		if (!earlier(&heap[child], &last))
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = last;
	return first;
}

static void flush(struct direction *direction)
{
	unsigned done = 0;
	while (done < leaving_len) {
		int sent = sendmmsg(direction->out, leaving + done, leaving_len - done, 0);
		if (sent > 0) {
			done += sent;
		} else if (errno == ENOBUFS) {
			// The other end's receive queue is full.
			direction->overrun++;
			done++;
		} else if (errno == ENETDOWN) {
			done = leaving_len;
		} else if (errno != EINTR) {
			if (errno == EMSGSIZE)
				fprintf(stderr, "relay: a frame of %zu bytes: is segmentation offload off?\n",
					leaving_parts[done].iov_len);
			die("sendmmsg");
		}
	}
	leaving_len = 0;
}

static void leave(struct direction *direction, uint8_t *frame, uint32_t len)
{
	if (leaving_len == 2 * BATCH)
		flush(direction);
	leaving_parts[leaving_len] = (struct iovec){.iov_base = frame, .iov_len = len};
	leaving[leaving_len].msg_hdr =
		(struct msghdr){.msg_iov = &leaving_parts[leaving_len], .msg_iovlen = 1};
	leaving_len++;
}

static void keep(struct direction *direction, const uint8_t *frame, uint32_t len, uint64_t due)
{
	if (!free_count) {
		direction->overrun++;
		return;
	}
	uint32_t slot = free_slots[--free_count];
	memcpy(slots[slot], frame, len);
	heap_push((struct waiting){
		.due = due, .order = order++, .direction = direction, .slot = slot, .len = len});
}

// Sends what is due, or keeps it until it is.
static void pass(struct direction *direction, uint8_t *frame, uint32_t len, uint64_t now)
{
	uint64_t due = now + faults.delay_ns;

	direction->frames++;
	direction->bytes += len;
	if (happens(direction, faults.loss)) {
		direction->lost++;
		return;
	}
	if (happens(direction, faults.corrupt) && len > ETH_HLEN) {
		uint64_t bit = next_random(&direction->random) % ((len - ETH_HLEN) * 8);
		frame[ETH_HLEN + bit / 8] ^= 1 << bit % 8;
		direction->corrupted++;
	}
	if (faults.jitter_ns)
		due += next_random(&direction->random) % faults.jitter_ns;
	if (happens(direction, faults.reorder)) {
		due += 1 + next_random(&direction->random) % HOLD_NS;
		direction->reordered++;
	} else if (due < direction->last_due) {
		due = direction->last_due;
	} else {
		direction->last_due = due;
	}
	int twice = happens(direction, faults.duplicate);
	direction->duplicated += twice;
	do {
		if (due <= now)
			leave(direction, frame, len);
		else
			keep(direction, frame, len, due);
	} while (twice--);
}

static void receive(struct direction *direction)
{
	static struct iovec parts[BATCH];
	static struct mmsghdr messages[BATCH];
	for (int i = 0; i < BATCH; i++) {
		parts[i] = (struct iovec){.iov_base = received[i], .iov_len = FRAME_MAX};
		messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
	}
	int count = recvmmsg(direction->in, messages, BATCH, MSG_DONTWAIT, NULL);
	if (count < 0 && errno != EAGAIN && errno != EINTR && errno != ENETDOWN)
		die("recvmmsg");
	uint64_t now = now_ns();
	for (int i = 0; i < count; i++) {
		if (messages[i].msg_hdr.msg_flags & MSG_TRUNC) {
			fprintf(stderr, "relay: a frame above %d bytes: is segmentation offload off?\n", FRAME_MAX);
			exit(1);
		}
		pass(direction, received[i], messages[i].msg_len, now);
	}
	flush(direction);
}

static void send_due(void)
{
	uint64_t now = now_ns();
	uint32_t taken[BATCH], count;
	do {
		struct direction *direction = NULL;
		for (count = 0; count < BATCH && heap_len && heap[0].due <= now; count++) {
			struct waiting one = heap_pop();
			if (direction && direction != one.direction)
				flush(direction);
			direction = one.direction;
			leave(direction, slots[one.slot], one.len);
			taken[count] = one.slot;
		}
		if (direction)
			flush(direction);
		for (uint32_t i = 0; i < count; i++)
			free_slots[free_count++] = taken[i];
	} while (count == BATCH);
}

static int open_interface(const char *name)
{
	struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
	int on = 1, memory = 32 << 20;
	at.sll_ifindex = if_nametoindex(name);
	if (!at.sll_ifindex)
		die(name);
	int fd = socket(AF_PACKET, SOCK_RAW, 0);
	if (fd < 0)
		die("socket");
	if (setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on))
		die("PACKET_IGNORE_OUTGOING");
	if (setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on))
		die("PACKET_QDISC_BYPASS");
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &memory, sizeof memory))
		die("SO_RCVBUFFORCE");
	if (bind(fd, (void *)&at, sizeof at))
		die("bind");
	return fd;
}

static void set(const char *word)
{
	const char *value = strchr(word, '=');
	size_t len = value ? (size_t)(value - word) : 0;
	struct {
		const char *name;
		uint64_t *to;
		double factor;
	} all[] = {
		{"seed", &faults.seed, 1},
		{"loss", &faults.loss, 4294967296.0 / 100},
		{"duplicate", &faults.duplicate, 4294967296.0 / 100},
		{"reorder", &faults.reorder, 4294967296.0 / 100},
		{"corrupt", &faults.corrupt, 4294967296.0 / 100},
		{"delay", &faults.delay_ns, 1000},
		{"jitter", &faults.jitter_ns, 1000},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (len == strlen(all[i].name) && !strncmp(word, all[i].name, len)) {
			*all[i].to = strtod(value + 1, NULL) * all[i].factor;
			return;
		}
	fprintf(stderr, "relay: what is %s?\n", word);
	exit(2);
}

static void report(struct direction *direction)
{
	struct tpacket_stats stats;
	socklen_t len = sizeof stats;
	if (!getsockopt(direction->in, SOL_PACKET, PACKET_STATISTICS, &stats, &len))
		direction->overrun += stats.tp_drops;
	printf("%s frames %lu bytes %lu lost %lu duplicated %lu reordered %lu corrupted %lu overrun %lu\n",
	       direction->name, direction->frames, direction->bytes, direction->lost,
	       direction->duplicated, direction->reordered, direction->corrupted, direction->overrun);
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = stop};
	struct pollfd ready[2];

	if (argc < 3) {
		fprintf(stderr, "usage: relay <interface> <interface> [name=value ...]\n");
		return 2;
	}
	for (int i = 3; i < argc; i++)
		set(argv[i]);
	for (int i = 0; i < 2; i++)
		ready[i] = (struct pollfd){.fd = open_interface(argv[1 + i]), .events = POLLIN};
	for (int i = 0; i < 2; i++)
		directions[i] = (struct direction){
			.name = i ? "B>A" : "A>B",
			.in = ready[i].fd,
			.out = ready[!i].fd,
			.random = faults.seed * 2 + i,
		};
	while (free_count < SLOTS) {
		free_slots[free_count] = free_count;
		free_count++;
	}
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	prctl(PR_SET_TIMERSLACK, 1);
	puts("ready");
	fflush(stdout);

	while (!stopped) {
		// The cap is for a signal that comes just before the wait.
		struct timespec wait = {.tv_nsec = 100000000};
		if (heap_len) {
			uint64_t now = now_ns(), due = heap[0].due;
			uint64_t left = due > now ? due - now : 0;
			if (left < 100000000)
				wait.tv_nsec = left;
		}
		if (ppoll(ready, 2, &wait, NULL) < 0) {
			if (errno == EINTR)
				continue;
			die("ppoll");
		}
		send_due();
		for (int i = 0; i < 2; i++)
			if (ready[i].revents)
				receive(&directions[i]);
	}
	report(&directions[0]);
	report(&directions[1]);
	return 0;
}
