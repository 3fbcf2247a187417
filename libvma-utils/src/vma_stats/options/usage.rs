//! What `--help` prints, and every refusal of a command line.

/// One line per option, in the order of the manual, then those that the original has not.
const OPTIONS: [(&str, &str); 20] = [
    ("-p, --pid=<pid>", "Show statistics of the process with this id"),
    ("-k, --directory=<dir>", "Directory of the statistics files (VMA_STATS_SHMEM_DIR)"),
    ("-n, --name=<application>", "Show statistics of the process that runs this program"),
    ("-f, --find_pid", "Find a process that runs over VMA (default)"),
    ("-F, --forbid_clean", "Keep the files that ended processes left behind"),
    ("-i, --interval=<n>", "Print a report every <n> seconds"),
    ("-c, --cycles=<n>", "Print <n> reports and exit, 0 is endless (default)"),
    ("-v, --view=<1|2|3|4|5>", "1 basic, 2 extra, 3 full, 4 multicast groups, 5 like netstat"),
    ("-d, --details=<1|2>", "1 totals, 2 deltas"),
    ("-z, --zero", "Set the counters to zero"),
    ("-l, --log_level=<level>", "Set the log level of VMA: a name, or 1 to 7"),
    ("-S, --fd_dump=<fd> [<level>]", "Dump <fd> (0 is all) to the log of VMA, at this level"),
    ("-D, --details_level=<level>", "Set the log details of VMA: 0 to 3"),
    ("-s, --sockets=<list|range>", "Only these descriptors: 4-16 or 1,9 or a combination"),
    ("-V, --version", "Print the version"),
    ("-h, --help", "Print this help"),
    ("    --json", "One JSON document per report and process"),
    ("    --openmetrics", "Reports in the format of OpenMetrics, of all processes"),
    ("    --listen=<address:port>", "Serve the same over HTTP, such as at 127.0.0.1:9464"),
    ("    --top", "Live view of all processes over the whole terminal"),
];

pub fn usage(program: &str) -> String {
    let mut text = format!(
        "\nVMA Statistics\nUsage:\n\t{program} [-p pid] [-k directory] [-v view] [-d details] \
         [-i interval]\n\nDefaults:\n\tfind_pid=enabled, directory=\"/tmp/\", view=1, details=1, \
         interval=1, \n\nOptions:\n"
    );
    for (option, meaning) in OPTIONS {
        text.push_str(&format!("\t{option:<30}{meaning}\n"));
    }
    text
}
