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
	{ "faults", fault_cases },
	{ "fault_handlers", fault_handler_cases },
	{ "options", option_cases },
	{ "send", send_cases },
	{ "receive", receive_cases },
	{ "ancillary", ancillary_cases },
	{ "trains", train_cases },
	{ "limits", limit_cases },
	{ "multicast", multicast_cases },
	{ "wait", wait_cases },
	{ "epoll", epoll_cases },
	{ "signals", signal_cases },
	{ "longjmp", longjmp_cases },
	{ "descriptors", descriptor_cases },
	{ "processes", process_cases },
	{ "threads", thread_cases },
	{ "tcp_connect", tcp_connect_cases },
	{ "tcp_accept", tcp_accept_cases },
	{ "tcp_send", tcp_send_cases },
	{ "tcp_receive", tcp_receive_cases },
	{ "tcp_urgent", tcp_urgent_cases },
	{ "tcp_close", tcp_close_cases },
	{ "tcp_processes", tcp_process_cases },
	{ "tcp_ready", tcp_ready_cases },
	{ "tcp_epoll", tcp_epoll_cases },
	{ "tcp_options", tcp_option_cases },
	{ "tcp_options_live", tcp_live_option_cases },
	{ "option_table", option_table_cases },
	{ "tcp_local", tcp_local_cases },
	{ "tcp_dual", tcp_dual_cases },
	{ "udp_dual", udp_dual_cases },
	{ "udp_dual_options", udp_dual_option_cases },
	{ "calls", call_cases },
	{ "cancel", cancel_cases },
	{ "local", local_cases },
	{ "local_death", local_death_cases },
	{ "local_ends", local_end_cases },
};

struct counters {
	long datagrams_in, datagrams_out, segments_in, segments_out;
};

/* What the kernel's UDP and TCP received and sent in this namespace. */
static struct counters kernel_counters(void)
{
	struct counters now = { -1, -1, -1, -1 };
	char text[512];
	FILE *file = fopen("/proc/self/net/snmp", "r");
	while (file && fgets(text, sizeof text, file)) {
		sscanf(text, "Udp: %ld %*d %*d %ld", &now.datagrams_in, &now.datagrams_out);
		sscanf(text, "Tcp: %*d %*d %*d %*d %*d %*d %*d %*d %*d %ld %ld", &now.segments_in,
		       &now.segments_out);
	}
	if (file)
		fclose(file);
	/* Of TCP that is both families. */
	file = fopen("/proc/self/net/snmp6", "r");
	while (file && fgets(text, sizeof text, file)) {
		long count;
		if (sscanf(text, "Udp6InDatagrams %ld", &count) == 1)
			now.datagrams_in += count;
		if (sscanf(text, "Udp6OutDatagrams %ld", &count) == 1)
			now.datagrams_out += count;
	}
	if (file)
		fclose(file);
	return now;
}

long kernel_datagrams(void)
{
	struct counters now = kernel_counters();
	return now.datagrams_in + now.datagrams_out;
}

long kernel_segments(void)
{
	struct counters now = kernel_counters();
	return now.segments_in + now.segments_out;
}

/* Connections of the case before may still be closing, through the kernel if they were its. With
 * another test on the same processors the last segment of one may come some milliseconds late. */
void until_quiet(void)
{
	struct counters before, now = kernel_counters();
	for (int i = 0, quiet = 0; i < 50 && quiet < 4; i++) {
		before = now;
		usleep(5000);
		now = kernel_counters();
		quiet++;
		if (now.segments_in != before.segments_in || now.segments_out != before.segments_out)
			quiet = 0;
	}
}

static void run(const probe_case *chosen)
{
	static const char *const streams[] = { "none", "offloaded", "kernel_too" };
	case_name = chosen->name;
	if (chosen->streams != NO_STREAMS)
		until_quiet();
	struct counters before = kernel_counters();
	chosen->run();
	struct counters after = kernel_counters();
	/* Not part of the transcript: what went through the kernel's UDP and TCP. */
	printf("# %s %ld %ld %s %ld %ld %s\n", chosen->name,
	       after.datagrams_in - before.datagrams_in, after.datagrams_out - before.datagrams_out,
	       chosen->kernel_too ? "kernel_too" : "offloaded",
	       after.segments_in - before.segments_in, after.segments_out - before.segments_out,
	       streams[chosen->streams]);
	fflush(stdout);
	if (chosen->streams != NO_STREAMS)
		peer_forget();
	for (int fd = first_descriptor; fd < first_descriptor + 80; fd++)
		close(fd);
}

int main(int count, char **words)
{
	signal(SIGPIPE, SIG_IGN);
	if (count == 3 && strcmp(words[1], "peer") == 0)
		return peer_main(atoi(words[2]));
	if (count == 4 && strcmp(words[1], "other") == 0)
		return other_main(words[2], atoi(words[3]));
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
