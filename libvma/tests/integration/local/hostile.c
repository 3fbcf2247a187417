/* A peer that means harm. It speaks the rendezvous of processes of one host and user (control/rendezvous:
 * wire.rs; device/shm: segment.rs, lane.rs, record.rs), or is under the library itself and writes over
 * the memory that it shares with others.
 *
 * usage: hostile <port> <mode> <seed> <seconds>
 *
 * Prints how many links it got. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096l
#define SLOTS 1024l
#define SLOT 128l
#define CHUNKS 1024l
#define CHUNK 4096l
#define RETURNS (PAGE + SLOTS * SLOT)
#define FIRST_CHUNK (RETURNS + CHUNKS * 8)
#define NOTE_PAGES 32l
#define READER_PAGES 32l
#define LANE (FIRST_CHUNK + CHUNKS * CHUNK + (NOTE_PAGES + READER_PAGES) * PAGE)
#define SIZE (PAGE + 2 * LANE)

static uint64_t state;

/* splitmix64 */
static uint64_t random_word(void)
{
	uint64_t word = state += 0x9e3779b97f4a7c15u;
	word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
	word = (word ^ word >> 27) * 0x94d049bb133111ebu;
	return word ^ word >> 31;
}

static uint64_t below(uint64_t limit)
{
	return random_word() % limit;
}

static void must(const char *what, long result)
{
	if (result < 0) {
		perror(what);
		_exit(8);
	}
}

/* The inode of the socket that is bound to the port. */
static uint64_t inode_of(const char *table, int port)
{
	char text[512];
	unsigned long inode = 0;
	unsigned found = 0;
	FILE *file = fopen(table, "r");
	while (file && fgets(text, sizeof text, file) && (int)found != port)
		if (sscanf(text, " %*d: %*x:%x %*s %*s %*s %*s %*s %*d %*d %lu", &found, &inode) != 2)
			found = 0;
	if (file)
		fclose(file);
	return (int)found == port ? inode : 0;
}

/* Of control/rendezvous/wire.rs. */
#define VERSION 7
#define VERSION_TEXT "7"

static int call(uint64_t inode)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	int length = snprintf(name.sun_path + 1, 100, "libvma-" VERSION_TEXT "/socket/%llu",
			      (unsigned long long)inode);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct timeval patience = { 1, 0 };
	must("socket", fd);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
	if (connect(fd, (struct sockaddr *)&name, offsetof(struct sockaddr_un, sun_path) + 1 + length)) {
		close(fd);
		return -1;
	}
	return fd;
}

static void hello(uint8_t bytes[48], uint64_t inode)
{
	memset(bytes, 0, 48);
	memcpy(bytes, "libvma", 6);
	bytes[6] = VERSION;
	bytes[7] = 1;
	for (int i = 8; i < 24; i++)
		bytes[i] = random_word();
	bytes[24] = 1;
	memcpy(bytes + 32, &inode, 8);
}

static int say(int fd, const void *bytes, size_t length, const int *fds, int count)
{
	char control[CMSG_SPACE(sizeof(int) * 16)] = { 0 };
	struct iovec part = { (void *)bytes, length };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	if (count) {
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
		struct cmsghdr *head = CMSG_FIRSTHDR(&message);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof(int) * count);
		memcpy(CMSG_DATA(head), fds, sizeof(int) * count);
	}
	return sendmsg(fd, &message, MSG_NOSIGNAL);
}

/* The status of the answer, and the bell that came with it; -1 without an answer. */
static int answer(int fd, int *bell)
{
	uint8_t bytes[64];
	char control[CMSG_SPACE(sizeof(int) * 4)];
	struct iovec part = { bytes, sizeof bytes };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
		.msg_controllen = sizeof control };
	*bell = -1;
	if (recvmsg(fd, &message, MSG_CMSG_CLOEXEC) != 48 || bytes[7] != 2)
		return -1;
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	if (head && head->cmsg_type == SCM_RIGHTS)
		memcpy(bell, CMSG_DATA(head), sizeof *bell);
	return bytes[40];
}

static int memory(long size, int seals)
{
	int fd = memfd_create("libvma", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	must("memfd_create", fd);
	must("ftruncate", ftruncate(fd, size));
	uint64_t header[3] = { 0, 4, SIZE };
	memcpy(header, "libvmaSM", 8);
	must("pwrite", pwrite(fd, header, sizeof header, 0));
	if (seals)
		must("F_ADD_SEALS", fcntl(fd, F_ADD_SEALS, seals));
	return fd;
}

struct link {
	int connection, bell, own_bell;
	uint8_t *memory;
	uint64_t next; /* slot that we write */
};

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static void bell(int type, int *hears, int *rings)
{
	int ends[2];
	must("socketpair", socketpair(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends));
	*hears = ends[0];
	*rings = ends[1];
}

static int make_link(struct link *link, uint64_t inode)
{
	uint8_t bytes[48];
	int fds[2] = { memory(SIZE, SEALS) };
	bell(SOCK_DGRAM, &link->own_bell, &fds[1]);
	link->next = 0;
	link->memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	must("mmap", link->memory == MAP_FAILED ? -1 : 0);
	link->connection = call(inode);
	int status = -1;
	link->bell = -1;
	if (link->connection >= 0) {
		hello(bytes, inode);
		if (say(link->connection, bytes, sizeof bytes, fds, 2) == sizeof bytes)
			status = answer(link->connection, &link->bell);
	}
	close(fds[0]);
	close(fds[1]);
	return status == 0 && link->bell >= 0;
}

static void drop_link(struct link *link)
{
	munmap(link->memory, SIZE);
	if (link->connection >= 0)
		close(link->connection);
	if (link->bell >= 0)
		close(link->bell);
	close(link->own_bell);
}

static int is_cut_off(struct link *link)
{
	struct pollfd wait = { link->connection, POLLRDHUP, 0 };
	return poll(&wait, 1, 0) != 0;
}

static void ring(struct link *link)
{
	/* Sometimes with more than a ring. */
	static uint8_t bytes[2000];
	int fd = memory(PAGE, 0);
	if (below(100))
		send(link->bell, bytes, below(50) ? 1 : sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
	else
		say(link->bell, bytes, 1, &fd, 1);
	close(fd);
}

/* A record with a control word that is expected. The maker's lane is the first one. */
static void publish(struct link *link, uint32_t kind, uint32_t length, const uint8_t bytes[120])
{
	uint8_t *slot = link->memory + PAGE + PAGE + link->next % SLOTS * SLOT;
	uint64_t lap = link->next / SLOTS + 1;
	memcpy(slot + 8, bytes, 120);
	atomic_store((_Atomic uint64_t *)slot, lap << 32 | kind << 24 | (length & 0xffffff));
	link->next++;
	/* Not faster than they are read: the position is theirs to write. */
	_Atomic uint64_t *position = (void *)(link->memory + PAGE);
	for (int i = 0; i < 1000 && link->next - atomic_load(position) >= SLOTS - 64; i++) {
		ring(link);
		usleep(100);
		if (is_cut_off(link))
			return;
	}
}

static void random_bytes(uint8_t *bytes, size_t length)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = random_word();
}

/* Numbers around the limits of everything. */
static uint32_t random_length(void)
{
	static const uint32_t edges[] = { 0, 1, 13, 14, 33, 41, 42, 56, 57, 96, 97, 120, 121, 4096, 4152,
		4153, 65535, 65536, 131072, 131073, 131128, 131129, 0xffffff };
	return below(3) ? edges[below(sizeof edges / sizeof *edges)] : below(1 << below(24));
}

static void records(struct link *link)
{
	uint8_t bytes[120];
	for (int n = 0; n < 200 && !is_cut_off(link); n++) {
		random_bytes(bytes, sizeof bytes);
		if (below(2)) /* chunks that exist */
			for (int i = 56; i < 120; i += 2)
				bytes[i + 1] &= 3;
		publish(link, below(4) ? below(16) : below(256), random_length(), bytes);
		if (below(4) == 0)
			ring(link);
	}
	ring(link);
}

/* Headers of the messages of streams: the words are numbers of connections, addresses, counts. */
/* A half of a connection that is none, or of one that the peer may have. */
static void leave_half(struct link *link)
{
	uint8_t bytes[48];
	uint64_t connection = (uint64_t)(1 + below(3)) << 32 | below(4);
	int fd = below(2) ? memory(PAGE, 0) : socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must("half", fd);
	hello(bytes, connection);
	bytes[7] = 5;
	bytes[24] = 2;
	say(link->connection, bytes, sizeof bytes, &fd, below(4) != 0);
	close(fd);
}

/* A bell of a thread, which may be none, of any number; and the words that say whose bell is to be rung. */
static void confuse_bells(struct link *link)
{
	uint8_t bytes[48], *readers = link->memory + PAGE + below(2) * LANE + LANE - READER_PAGES * PAGE;
	int ends[2], is_bell = below(4) != 0;
	must("bell", socketpair(AF_UNIX, (is_bell ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC, 0, ends));
	hello(bytes, below(2) ? below(20) : random_word());
	bytes[7] = 6;
	bytes[24] = 3;
	say(link->connection, bytes, sizeof bytes, &ends[0], below(8) != 0);
	close(ends[0]);
	close(ends[1]);
	for (int i = 0; i < 8; i++) {
		uint64_t word = below(2) ? below(20) | below(2) << 63 : random_word();
		memcpy(readers + 8 * below(4), &word, 8);
		/* Armed and attending, and what the peer can ring. */
		word = below(2) ? below(1 << 16) | (uint64_t)below(1 << 16) << 32 : random_word();
		memcpy(link->memory + PAGE + below(2) * LANE + (below(2) ? 128 : 512), &word, 8);
	}
}

static void messages(struct link *link)
{
	uint8_t bytes[120];
	for (int n = 0; n < 400 && !is_cut_off(link); n++) {
		random_bytes(bytes, sizeof bytes);
		for (int word = 0; word < 3; word++) {
			uint64_t value = below(3) ? below(1ull << below(34)) : random_word();
			memcpy(bytes + 8 * word, &value, 8);
		}
		publish(link, 1 + below(13), below(97), bytes);
		if (below(4) == 0)
			ring(link);
		if (below(64) == 0)
			leave_half(link);
		if (below(16) == 0)
			confuse_bells(link);
	}
	ring(link);
}

/* Frames that are nearly right. */
static void frames(struct link *link, int port)
{
	for (int n = 0; n < 300 && !is_cut_off(link); n++) {
		uint8_t bytes[120] = { 0 };
		uint32_t payload = below(2) ? below(79) : below(3000), length = 42 + payload;
		random_bytes(bytes + 42, 78);
		bytes[12] = 8;
		bytes[14] = 0x45;
		bytes[16] = (length - 14) >> 8;
		bytes[17] = length - 14;
		bytes[22] = 64;
		bytes[23] = below(8) ? 17 : below(256);
		bytes[26] = bytes[30] = 127;
		bytes[29] = bytes[33] = 1;
		/* From somebody who is not there. */
		bytes[34] = 20000 >> 8;
		bytes[35] = below(256);
		bytes[36] = port >> 8;
		bytes[37] = port;
		bytes[38] = (payload + 8) >> 8;
		bytes[39] = payload + 8;
		/* Or a train of datagrams, of any size. */
		if (below(2)) {
			bytes[0] = 8;
			bytes[2] = below(12);
			bytes[3] = random_word();
		}
		/* One lie, or none. */
		if (below(3))
			bytes[12 + below(30)] = random_word();
		for (uint32_t i = 0; length > 120 && i < 32; i++) {
			uint16_t chunk = (n * 32 + i) % CHUNKS;
			memcpy(bytes + 56 + 2 * i, &chunk, 2);
		}
		publish(link, 0, below(20) ? length : random_length(), bytes);
		if (below(4) == 0)
			ring(link);
	}
	ring(link);
}

static void scribble_words(volatile uint64_t *words, size_t count, uint64_t rounds)
{
	for (uint64_t i = 0; i < rounds; i++) {
		/* The words that both sides poll lie in the first pages. */
		uint64_t at = below(2) ? below(1024 + SLOTS * SLOT / 8) : below(count);
		uint64_t value = words[at % count];
		switch (below(5)) {
		case 0: value = random_word(); break;
		case 1: value ^= 1ull << below(64); break;
		case 2: value += below(3) - 1; break;
		case 3: value += 1ull << 32; break;
		default: value = below(CHUNKS + 1);
		}
		words[at % count] = value;
	}
}

static void scribble(struct link *link)
{
	for (int i = 0; i < 100 && !is_cut_off(link); i++) {
		scribble_words((void *)link->memory, SIZE / 8, 2000);
		ring(link);
	}
}

/* What is no offer of a link. */
static void offers(uint64_t inode)
{
	uint8_t bytes[256];
	int fds[16], count = 2, answered = -1, pipes[2], hears;
	long length = 48;
	int connection = call(inode);
	if (connection < 0)
		return;
	hello(bytes, inode);
	must("pipe", pipe(pipes));
	fds[0] = memory(SIZE, SEALS);
	bell(SOCK_DGRAM, &hears, &fds[1]);
	switch (below(17)) {
	case 0: count = 0; break;
	case 1: count = 1; break;
	case 2: /* more than two */
		for (count = 2; count < 16; count++)
			fds[count] = dup(pipes[0]);
		break;
	case 3: close(fds[0]); fds[0] = memory(SIZE, 0); break;
	case 4: close(fds[0]); fds[0] = memory(PAGE, SEALS); break;
	case 5: close(fds[0]); fds[0] = memory(SIZE + PAGE, SEALS); break;
	case 6: close(fds[0]); fds[0] = dup(pipes[1]); break;
	case 7: close(fds[0]); fds[0] = open("/dev/zero", O_RDWR); break;
	case 8: close(fds[0]); fds[0] = open("/proc/self/exe", O_RDONLY); break;
	case 9: close(fds[1]); fds[1] = dup(pipes[1]); break;
	case 10: length = below(sizeof bytes); random_bytes(bytes + 8, length > 8 ? length - 8 : 0); break;
	case 11: bytes[below(48)] = random_word(); break;
	case 12: /* the right size, but not for long */
		close(fds[0]);
		fds[0] = memory(SIZE, F_SEAL_GROW);
		break;
	case 13: close(fds[1]); fds[1] = eventfd(0, EFD_CLOEXEC); break;
	case 14: close(fds[1]); close(hears); bell(SOCK_STREAM, &hears, &fds[1]); break;
	case 15: /* one that has no room */
		while (send(fds[1], bytes, 1, MSG_DONTWAIT) > 0)
			;
		break;
	default: /* says nothing at all, and keeps the line */
		if (below(8) == 0)
			usleep(1200000);
		length = 0;
	}
	if (length && say(connection, bytes, length, fds, count) < 0 && errno != EPIPE && errno != EAGAIN)
		must("sendmsg", -1);
	if (below(2) && count == 2)
		must("ftruncate", ftruncate(fds[0], PAGE) && 0);
	if (below(2))
		answer(connection, &answered);
	if (answered >= 0)
		close(answered);
	close(hears);
	for (int i = 0; i < (count > 2 ? count : 2); i++)
		close(fds[i]);
	close(pipes[0]);
	close(pipes[1]);
	close(connection);
}

/* Under the library: an ordinary client, in whose memory another thread writes. */

static _Atomic int found;

static void *scribbler(void *nothing)
{
	for (;;) {
		char text[512];
		FILE *maps = fopen("/proc/self/maps", "r");
		while (maps && fgets(text, sizeof text, maps)) {
			unsigned long start, end;
			if (!strstr(text, "memfd:libvma") || sscanf(text, "%lx-%lx", &start, &end) != 2)
				continue;
			found++;
			/* The client may drop it meanwhile: ask the kernel to copy. */
			int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
			for (int i = 0; i < 300; i++) {
				uint64_t at = below(2) ? below(8192 + SLOTS * SLOT) : below(end - start);
				uint64_t value = random_word() >> below(64);
				pwrite(memory, &value, 1 + below(8), start + at);
			}
			close(memory);
		}
		if (maps)
			fclose(maps);
		usleep(2000);
	}
	return nothing;
}

static void client(int port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	struct timeval patience = { 0, 20000 };
	static char bytes[30000];
	int stream = below(2);
	int fd = socket(AF_INET, stream ? SOCK_STREAM : SOCK_DGRAM, 0);
	must("socket", fd);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
	if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
		for (int i = 0; i < 100; i++) {
			memset(bytes, '\n', sizeof bytes);
			if (send(fd, bytes, 1 + below(sizeof bytes), MSG_NOSIGNAL) < 0)
				break;
			if (recv(fd, bytes, sizeof bytes, 0) == 0)
				break;
		}
	close(fd);
}

int main(int count, char **words)
{
	if (count != 5)
		return 2;
	int port = atoi(words[1]), links = 0;
	const char *mode = words[2];
	state = strtoull(words[3], NULL, 10);
	time_t until = time(NULL) + atoi(words[4]);
	pthread_t thread;
	if (strcmp(mode, "inside") == 0)
		must("pthread_create", -pthread_create(&thread, NULL, scribbler, NULL));
	while (time(NULL) < until) {
		if (strcmp(mode, "inside") == 0) {
			client(port);
			links = found;
			continue;
		}
		const char *table = below(2) ? "/proc/net/udp" : "/proc/net/tcp";
		uint64_t inode = inode_of(table, port);
		if (!inode) {
			fprintf(stderr, "nobody at port %d in %s\n", port, table);
			return 7;
		}
		if (strcmp(mode, "offers") == 0) {
			offers(inode);
			continue;
		}
		struct link link;
		if (make_link(&link, inode)) {
			links++;
			if (strcmp(mode, "records") == 0)
				records(&link);
			else if (strcmp(mode, "messages") == 0)
				messages(&link);
			else if (strcmp(mode, "frames") == 0)
				frames(&link, port);
			else
				scribble(&link);
			usleep(below(3000));
		}
		drop_link(&link);
	}
	printf("links %d\n", links);
	return 0;
}
