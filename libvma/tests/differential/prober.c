/* prober run <namespace of the peer> <group> [case]: writes the transcript of a group of cases. */
#include "prober.h"

const char *case_name = "-";
char device_name[IF_NAMESIZE];

static const struct {
	const char *name;
	const probe_case *cases;
} groups[] = {
	{ "names", names_cases },
	{ "bad_descriptors", bad_descriptor_cases },
	{ "bad_pointers", bad_pointer_cases },
	{ "options", option_cases },
	{ "send", send_cases },
	{ "receive", receive_cases },
	{ "ancillary", ancillary_cases },
	{ "limits", limit_cases },
	{ "multicast", multicast_cases },
	{ "wait", wait_cases },
	{ "epoll", epoll_cases },
	{ "signals", signal_cases },
	{ "longjmp", longjmp_cases },
	{ "descriptors", descriptor_cases },
	{ "processes", process_cases },
	{ "threads", thread_cases },
};

struct counters {
	long in, out;
};

/* What the kernel's UDP received and sent in this namespace. */
static struct counters kernel_counters(void)
{
	struct counters counters = { -1, -1 };
	char text[512];
	FILE *file = fopen("/proc/self/net/snmp", "r");
	while (file && fgets(text, sizeof text, file))
		sscanf(text, "Udp: %ld %*d %*d %ld", &counters.in, &counters.out);
	if (file)
		fclose(file);
	return counters;
}

static void run(const probe_case *chosen)
{
	case_name = chosen->name;
	struct counters before = kernel_counters();
	chosen->run();
	struct counters after = kernel_counters();
	/* Not part of the transcript: what went through the kernel's UDP. */
	printf("# %s %ld %ld %s\n", chosen->name, after.in - before.in, after.out - before.out,
	       chosen->kernel_too ? "kernel_too" : "offloaded");
	fflush(stdout);
	for (int fd = first_descriptor; fd < first_descriptor + 80; fd++)
		close(fd);
}

int main(int count, char **words)
{
	signal(SIGPIPE, SIG_IGN);
	if (count == 3 && strcmp(words[1], "peer") == 0)
		return peer_main(atoi(words[2]));
	if (count < 4 || strcmp(words[1], "run") != 0) {
		fprintf(stderr, "usage: prober run <namespace of the peer> <group> [case]\n");
		return 2;
	}
	struct if_nameindex *all = if_nameindex();
	for (int i = 0; all && all[i].if_index; i++)
		if (strcmp(all[i].if_name, "lo") != 0)
			strcpy(device_name, all[i].if_name);
	peer_start(words[2]);
	int found = 0;
	for (size_t group = 0; group < sizeof groups / sizeof *groups; group++) {
		if (strcmp(groups[group].name, words[3]) != 0)
			continue;
		for (const probe_case *at = groups[group].cases; at->name; at++) {
			if (count > 4 && strcmp(at->name, words[4]) != 0)
				continue;
			run(at);
			found++;
		}
	}
	case_name = "end";
	line("%d cases", found);
	return found ? 0 : 2;
}
