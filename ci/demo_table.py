#!/usr/bin/env python3
"""Turns the demo's results (tab separated: kind, contestant, size, metric, value) into tables
of medians and ratios."""

import statistics
import sys
from collections import defaultdict

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


def main():
    values = defaultdict(list)
    for line in sys.stdin:
        kind, contestant, size, metric, value = line.rstrip("\n").split("\t")
        values[kind, contestant, size, metric].append(float(value))
    medians = {key: statistics.median(several) for key, several in values.items()}
    rounds = max(len(several) for key, several in values.items() if key[0] == "latency")
    print(f"Medians over {rounds} round(s).")

    for size in sizes(medians, "latency"):
        latency_table(medians, size)
    for size in sizes(medians, "rate"):
        rate_table(medians, size)
    footprint(medians)


def sizes(medians, kind):
    return sorted({key[2] for key in medians if key[0] == kind}, key=int)


def latency_table(medians, size):
    def of(contestant, metric):
        return medians["latency", contestant, size, metric]

    print(f"\nUDP ping-pong, {size} bytes: half the round trip in microseconds\n")
    print(f"{'':34}{'p50':>9}{'p99':>9}{'p99.9':>9}{'p50 / floor':>14}{'spinning kernel / p50':>24}")
    for contestant, label in LATENCY.items():
        if ("latency", contestant, size, "p50") not in medians:
            continue
        row = "".join(f"{of(contestant, metric):9.2f}" for metric in ("p50", "p99", "p99.9"))
        p50 = of(contestant, "p50")
        to_floor, from_kernel = ratio(p50, of("floor", "p50")), ratio(of("kernel-spin", "p50"), p50)
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


def ratio(value, base):
    return f"{value / base:.2f} x" if base else "-"


def footprint(medians):
    with_library = medians.get(("memory", "libvma", "-", "rss"))
    if with_library is None:
        return
    without = medians["memory", "kernel", "-", "rss"]
    print(
        f"\nresident memory, one UDP socket (the sockperf server): {with_library:.1f} MiB under libvma,"
        f" {without:.1f} MiB without"
    )
    with_library = medians["startup", "libvma", "-", "us"] / 1000
    without = medians["startup", "", "-", "us"] / 1000
    print(
        f"start-up of a program without sockets: {with_library:.2f} ms under libvma, {without:.2f} ms without"
        f" ({with_library - without:+.2f} ms)"
    )


main()
