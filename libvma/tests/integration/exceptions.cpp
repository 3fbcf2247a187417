// A handler of SIGSEGV that throws, as programs with -fnon-call-exceptions have it.
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>

struct Fault {};

static char *nowhere;
static sigjmp_buf back;
static int destroyed;

struct Counted {
	~Counted() { destroyed++; }
};

static void throws(int) { throw Fault(); }
static void jumps(int) { siglongjmp(back, 1); }
static void exits(int) { pthread_exit(nullptr); }

static void install(void (*handler)(int))
{
	struct sigaction action = {};
	action.sa_handler = handler;
	action.sa_flags = SA_NODEFER;
	sigaction(SIGSEGV, &action, nullptr);
}

__attribute__((noinline)) static void fault()
{
	Counted local;
	*(volatile char *)nowhere;
}

static void *thread(void *)
{
	fault();
	return (void *)1;
}

// Does the kernel have a handler of this signal?
static bool is_caught(int signal)
{
	FILE *status = fopen("/proc/self/status", "r");
	char text[256];
	unsigned long long caught = 0;
	while (fgets(text, sizeof text, status))
		sscanf(text, "SigCgt: %llx", &caught);
	fclose(status);
	return caught >> (signal - 1) & 1;
}

int main()
{
	nowhere = (char *)mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	printf("library's handler %d\n", is_caught(SIGSEGV));
	int caught = 0;
	install(throws);
	for (int i = 0; i < 3; i++) {
		try {
			fault();
		} catch (const Fault &) {
			caught++;
		}
	}
	printf("caught %d, destroyed %d\n", caught, destroyed);
	install(jumps);
	volatile int jumped = 0;
	for (volatile int i = 0; i < 3; i++) {
		if (sigsetjmp(back, 1) == 0)
			*(volatile char *)nowhere;
		else
			jumped++;
	}
	printf("jumped %d\n", jumped);
	install(exits);
	destroyed = 0;
	pthread_t other;
	void *result = (void *)2;
	pthread_create(&other, nullptr, thread, nullptr);
	pthread_join(other, &result);
	printf("ended %d, destroyed %d\n", result == nullptr, destroyed);
	sockaddr_in to = {};
	to.sin_family = AF_INET;
	to.sin_port = htons(5000);
	to.sin_addr.s_addr = inet_addr("10.99.0.2");
	printf("sent %d\n", (int)sendto(fd, nowhere, 10, 0, (sockaddr *)&to, sizeof to));
	return 0;
}
