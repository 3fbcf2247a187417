//! Profile, logging, statistics, libvma.conf, signals.

use super::Spec::LowLatency7750;
use super::{Kind, Param, Show, param};
use crate::config::value::{COUNT, Choice, choice, number, size};

const DETAILS: &[Choice] = &[
    choice(0, &["none"], ""),
    choice(1, &[], "thread"),
    choice(2, &[], "process and thread"),
    choice(3, &[], "time, process and thread"),
];

#[rustfmt::skip] // a table reads as rows
pub(super) const PARAMS: &[Param] = &[
    param("VMA_SPEC", Kind::Spec, "none", "VMA Spec", "A bundle of values; parameters that are set by themselves outweigh it")
        .show(Show::IfSet),
    param("VMA_SPEC_PARAM1", COUNT, "1", "", "Microseconds between two writes to a pipe in the profiles 29west and wombat_fh")
        .spec(&[(super::Spec::West29, "5000"), (super::Spec::WombatFh, "5000")])
        .no_meaning("pipe() is the kernel's in every profile"),
    param("VMA_SPEC_PARAM2", COUNT, "1", "", "Writes to a pipe that may be left out in the profiles 29west and wombat_fh")
        .spec(&[(super::Spec::West29, "50"), (super::Spec::WombatFh, "50")])
        .no_meaning("pipe() is the kernel's in every profile"),
    param("VMA_TRACELEVEL", Kind::Level, "info", "Log Level", "Verbosity; none or 0 is silent; fine and beyond need the debug library")
        .spec(&[(LowLatency7750, "warning")]),
    param("VMA_LOG_DETAILS", Kind::Choice(DETAILS), "0", "Log Details", "What every line begins with: 1 thread, 2 process and thread, 3 milliseconds since the process began, process and thread; 2 unless set if the level is debug or finer")
        .show(Show::Digit),
    param("VMA_LOG_COLORS", Kind::Flag, "1", "Log Colors", "Colours on a terminal: errors red, warnings magenta, fine lines dim")
        .formerly(&["LOG_COLORS"]),
    param("VMA_LOG_FILE", Kind::Text, "", "Log File", "Log to this file instead of stderr; %d is the process id"),
    param("VMA_PCAP", Kind::Text, "", "Capture File", "What is served is captured in this file or fifo, as pcapng: see the user manual; %d is the process id")
        .show(Show::IfSet),
    param("VMA_PCAP_SNAPLEN", Kind::Clamped { least: 64, most: 262_144 }, "262144", "Capture Snap Length", "Bytes of each packet that are captured")
        .show(Show::IfSet),
    param("VMA_PCAP_FILE_SIZE", size(0, i64::MAX), "0", "Capture File Size", "Bytes after which another capture file begins; 0 is no limit")
        .show(Show::IfSet),
    param("VMA_PCAP_FILES", Kind::Clamped { least: 1, most: 1000 }, "10", "Capture Files", "Capture files that are kept if VMA_PCAP_FILE_SIZE is set: the newest has the plain name, older ones end in .1, .2 and so on")
        .show(Show::IfSet),
    param("VMA_STATS_FILE", Kind::Text, "", "Stats File", "Each socket's counters are appended here when it is closed; %d is the process id"),
    param("VMA_STATS_SHMEM_DIR", Kind::Text, "/tmp/", "Stats shared memory directory", "Where vma_stats finds the counters, in the file vmastat.PID; empty for none"),
    param("VMA_VMAD_NOTIFY_DIR", Kind::Text, "/tmp/vma", "VMAD output directory", "Where vmad finds this process, so that it resets its peers should it be killed; as vmad's notify_dir. Empty: vmad is told nothing"),
    param("VMA_STATS_FD_NUM", Kind::Clamped { least: 0, most: 1024 }, "100", "Stats FD Num (max)", "Sockets whose counters vma_stats shows; others count in the totals only")
        .spec(&[(LowLatency7750, "1024")]),
    param("VMA_CONFIG_FILE", Kind::Text, "/etc/libvma.conf", "Conf File", "Which sockets are offloaded, see libvma.conf; without the file all but the resolver's; %d is the process id"),
    param("VMA_APPLICATION_ID", Kind::Text, "VMA_DEFAULT_APPLICATION_ID", "Application ID", "The second word of the application-id lines meant; %d is the process id"),
    param("VMA_CPU_USAGE_STATS", Kind::Flag, "0", "Polling CPU idle usage", "1: the share of time that select, poll and epoll_wait spend polling is measured, for vma_stats"),
    param("VMA_HANDLE_SIGINTR", Kind::Flag, "0", "SigIntr Ctrl-C Handle", "1: SIGINT is logged before the program's own handler, or the end"),
    param("VMA_HANDLE_SIGSEGV", Kind::Flag, "0", "SegFault Backtrace", "1: a crash (SIGSEGV) logs a backtrace first"),
    param("VMA_NETLINK_TIMER", number(1, 3_600_000), "10000", "", "Milliseconds after which routes, path MTUs and neighbours are asked for again, lest the kernel changed one without a message"),
];
