#!/usr/bin/env python3
"""Turns the demo's results (tab separated: kind, contestant, size, metric, value) into tables
of medians and ratios."""

import statistics
import sys
from collections import defaultdict
from operator import truediv

LATENCY = {
    "kernel": "kernel sockets, blocking",
    "kernel-spin": "kernel sockets, spinning",
    "libvma": "libvma",
    "floor": "raw AF_XDP (floor)",
}

# Each with what it is compared with: the floor and the kernel at the same number of messages
# for each call.
RATE = {
    "kernel": ("kernel sockets", "floor", "kernel"),
    "libvma": ("libvma", "floor", "kernel"),
    "floor": ("raw AF_XDP (floor)", "floor", "kernel"),
    "kernel-mmsg": ("kernel sockets, 32 per call", "floor-mmsg", "kernel-mmsg"),
    "libvma-mmsg": ("libvma, 32 per call", "floor-mmsg", "kernel-mmsg"),
    "floor-mmsg": ("raw AF_XDP (floor), 32 per call", "floor-mmsg", "kernel-mmsg"),
    "untouched": ("the same, payload never touched", "floor-mmsg", "kernel-mmsg"),
}

# Kinds of results of which a round has several.
SEVERAL = {"latency", "tcp-latency", "memory", "startup"}

# Within one host.
LOCAL_LATENCY = {
    "kernel": "kernel loopback, blocking",
    "kernel-spin": "kernel loopback, spinning",
    "libvma": "libvma",
    "floor": "a cache line back and forth (floor)",
}
# What libvma is to reach there: microseconds at most, times the kernel at least.
LOCAL_LATENCY_GOAL = {"local-latency": 0.4, "local-tcp-latency": 0.6}
LOCAL_BULK_GOAL = 2
LOCAL_REDIS_GOAL = {"1": 5}

BULK = {
    "kernel": "kernel sockets",
    "libvma": "libvma",
    "sender": "libvma sends, kernel receives",
    "receiver": "kernel sends, libvma receives",
}


def main():
    values = defaultdict(list)
    for line in sys.stdin:
        kind, contestant, size, metric, value = line.rstrip("\n").split("\t")
        values[kind, contestant, size, metric].append(float(value))
    medians = {key: statistics.median(several) for key, several in values.items()}
    # Some ping-pongs have several runs in a round.
    once = [several for key, several in values.items() if key[0] not in SEVERAL]
    if once:
        print(f"Medians over {max(map(len, once))} round(s).")

    local_latency_table(medians, "local-latency", "UDP")
    local_latency_table(medians, "local-tcp-latency", "TCP")
    local_bulk_table(medians)
    redis_table(medians, "local-redis", LOCAL_REDIS_GOAL)
    for size in sizes(medians, "latency"):
        latency_table(values, "latency", "UDP ping-pong", size)
    for size in sizes(medians, "tcp-latency"):
        latency_table(values, "tcp-latency", "TCP ping-pong", size)
    for size in sizes(medians, "rate"):
        rate_table(medians, size)
    bulk_table(medians)
    redis_table(medians, "redis", {})
    ipv6_table(medians)
    loss_table(medians)
    footprint(medians)


def sizes(medians, kind):
    return sorted({key[2] for key in medians if key[0] == kind}, key=int)


def latency_table(values, kind, title, size):
    def of(contestant, metric="p50"):
        # One floor for both protocols: the echo of raw datagrams.
        kind_of_it = "latency" if contestant == "floor" else kind
        return values.get((kind_of_it, contestant, size, metric), [])

    def ratios(several, others):
        """The median over pairs of runs, one soon after the other: the machine drifts."""
        if not several or not others:
            return "-"
        return f"{statistics.median(map(truediv, several, others)):.2f} x"

    runs = len(of("kernel"))
    print(f"\n{title}, {size} bytes: half the round trip in microseconds")
    print(f"(medians over runs of a second: {runs}; ratios are those of neighbouring runs)\n")
    print(f"{'':34}{'p50':>9}{'p99':>9}{'p99.9':>9}{'p50 / floor':>14}{'spinning kernel / p50':>24}")
    for contestant, label in LATENCY.items():
        p50 = of(contestant)
        if not p50:
            continue
        metrics = [statistics.median(of(contestant, metric)) for metric in ("p50", "p99", "p99.9")]
        row = "".join(f"{metric:9.2f}" for metric in metrics)
        to_floor, from_kernel = ratios(p50, of("floor")), ratios(of("kernel-spin"), p50)
        print(f"{label:34}{row}{to_floor:>14}{from_kernel:>24}")


def rate_table(medians, size):
    def mpps(contestant):
        return medians["rate", contestant, size, "mpps"]

    print(f"\nUDP one way, {size} bytes: million messages received in a second\n")
    print(f"{'':34}{'rate':>9}{'lost':>9}{'/ floor':>11}{'/ kernel':>11}")
    for contestant, (label, floor, kernel) in RATE.items():
        if ("rate", contestant, size, "mpps") not in medians:
            continue
        rate, lost = mpps(contestant), medians["rate", contestant, size, "loss"]
        to_floor, to_kernel = ratio(rate, mpps(floor)), ratio(rate, mpps(kernel))
        print(f"{label:34}{rate:9.3f}{lost:7.1f} %{to_floor:>11}{to_kernel:>11}")


def ipv6_table(medians):
    columns = [("redis", "1", "rps"), ("redis", "50", "rps"), ("bulk", "1500", "mbps"), ("udp", "64", "us")]

    def row(scope, contestant):
        keys = [(scope + kind, contestant, size, metric) for kind, size, metric in columns]
        return [medians[key] for key in keys] if all(key in medians for key in keys) else None

    kernel = row("ipv6-", "kernel")
    if not kernel:
        return
    print("\nTCP and UDP over IPv6, and over IPv4 in the same run (x: compared with the kernel over IPv6)\n")
    print(f"{'':16}{'GET/s, 1 client':>22}{'GET/s, 50 clients':>22}{'bulk, Gb/s':>22}{'UDP, 64 bytes, us':>22}")
    for scope, contestant, label in [
        ("ipv6-", "kernel", "kernel, IPv6"), ("ipv4-", "kernel", "kernel, IPv4"),
        ("ipv6-", "libvma", "libvma, IPv6"), ("ipv4-", "libvma", "libvma, IPv4"),
    ]:
        values = row(scope, contestant)
        if values:
            shown = [f"{values[0]:,.0f}", f"{values[1]:,.0f}", f"{values[2] / 1000:.2f}", f"{values[3]:.2f}"]
            cells = (f"{text} {value / base:5.2f} x" for text, value, base in zip(shown, values, kernel))
            print(f"{label:16}" + "".join(f"{cell:>22}" for cell in cells))


def bulk_table(medians):
    mtus = sizes(medians, "bulk")
    if not mtus:
        return
    print("\nTCP bulk over one connection (iperf3): Gb/s, and compared with the kernel\n")
    print(f"{'':34}" + "".join(f"{'MTU ' + mtu:>20}" for mtu in mtus))
    for contestant, label in BULK.items():
        if ("bulk", contestant, mtus[0], "mbps") not in medians:
            continue
        print(f"{label:34}" + "".join(bulk_cell(medians, contestant, mtu) for mtu in mtus))


def bulk_cell(medians, contestant, mtu):
    mbps, kernel = medians["bulk", contestant, mtu, "mbps"], medians["bulk", "kernel", mtu, "mbps"]
    return f"{mbps / 1000:11.1f}{ratio(mbps, kernel):>9}"


def redis_table(medians, kind, goals):
    for connections in sizes(medians, kind):
        plural = "s" if connections != "1" else ""
        print(f"\nredis-benchmark GET, {connections} connection{plural}\n")
        print(f"{'':36}{'requests/s':>12}{'/ kernel':>11}{'p50 in us':>12}")
        kernel = medians[kind, "kernel", connections, "rps"]
        for contestant in ("kernel", "libvma"):
            rps = medians.get((kind, contestant, connections, "rps"))
            if rps is None:
                continue
            p50 = 1000 * medians[kind, contestant, connections, "p50"]
            row = f"{BULK[contestant]:36}{rps:12.0f}{ratio(rps, kernel):>11}{p50:12.0f}"
            print(row + goal_of_ratio(contestant, rps / kernel, goals.get(connections)))


def local_latency_table(medians, kind, protocol):
    def of(contestant, metric):
        # One floor for both protocols.
        kind_of_it = "local-latency" if contestant == "floor" else kind
        return medians.get((kind_of_it, contestant, "64", metric))

    if of("kernel", "p50") is None:
        return
    print(f"\n{protocol} ping-pong on 127.0.0.1, 64 bytes: half the round trip in microseconds\n")
    print(f"{'':36}{'p50':>9}{'p99':>9}{'p99.9':>9}{'p50 / floor':>13}{'blocking kernel / p50':>23}")
    for contestant, label in LOCAL_LATENCY.items():
        p50 = of(contestant, "p50")
        if p50 is None:
            continue
        row = "".join(f"{of(contestant, metric):9.2f}" for metric in ("p50", "p99", "p99.9"))
        to_floor, from_kernel = ratio(p50, of("floor", "p50")), ratio(of("kernel", "p50"), p50)
        goal = ""
        if contestant == "libvma":
            most = LOCAL_LATENCY_GOAL[kind]
            goal = f"  p50 <= {most:.1f}: {'yes' if p50 <= most else 'NO'}"
        print(f"{label:36}{row}{to_floor:>13}{from_kernel:>23}{goal}")


def local_bulk_table(medians):
    kernel = medians.get(("local-bulk", "kernel", "65536", "mbps"))
    if kernel is None:
        return
    print("\nTCP bulk over one connection (iperf3) on 127.0.0.1: Gb/s\n")
    print(f"{'':36}{'rate':>9}{'/ kernel':>11}")
    for contestant in ("kernel", "libvma"):
        mbps = medians.get(("local-bulk", contestant, "65536", "mbps"))
        if mbps is None:
            continue
        row = f"{BULK[contestant]:36}{mbps / 1000:9.1f}{ratio(mbps, kernel):>11}"
        print(row + goal_of_ratio(contestant, mbps / kernel, LOCAL_BULK_GOAL))


def goal_of_ratio(contestant, reached, goal):
    if contestant != "libvma" or goal is None:
        return ""
    return f"  >= {goal} x: {'yes' if reached >= goal else 'NO'}"


def loss_table(medians):
    kernel = medians.get(("loss", "kernel", "1500", "mbps"))
    if kernel is None:
        return
    print("\nTCP bulk over a cable that loses 1 %, CUBIC: Mb/s\n")
    print(f"{'':34}{'rate':>9}{'/ kernel':>11}{'cable overrun':>16}")
    for contestant, label in BULK.items():
        mbps = medians.get(("loss", contestant, "1500", "mbps"))
        if mbps is None:
            continue
        overrun = medians["loss", contestant, "1500", "overrun"]
        print(f"{label:34}{mbps:9.0f}{ratio(mbps, kernel):>11}{overrun:16.0f}")


def ratio(value, base):
    return f"{value / base:.2f} x" if base else "-"


def footprint(medians):
    if ("startup", "libvma", "-", "us") not in medians:
        return
    print()
    with_library = medians.get(("memory", "libvma", "-", "rss"))
    if with_library is not None:
        without = medians["memory", "kernel", "-", "rss"]
        print(
            f"resident memory, one UDP socket (the sockperf server): {with_library:.1f} MiB under libvma,"
            f" {without:.1f} MiB without"
        )
    with_library = medians["startup", "libvma", "-", "us"] / 1000
    without = medians["startup", "", "-", "us"] / 1000
    print(
        f"start-up of a program without sockets: {with_library:.2f} ms under libvma, {without:.2f} ms without"
        f" ({with_library - without:+.2f} ms)"
    )


main()
