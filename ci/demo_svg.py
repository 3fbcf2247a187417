#!/usr/bin/env python3
"""Draws the tables that ci/demo prints as an SVG picture: the kernel's sockets against libvma.

usage: ci/demo_svg.py [TEXT] >PICTURE      TEXT: what ci/demo printed, or a document that has it; else standard input
       ci/demo_svg.py --self-test

A measurement that the text lacks is left out. Exit status: 0 drawn, 1 nothing to draw or a failed self-test.
"""

import re
import sys
from html import escape

# What is drawn: (which half of the text, title of the table, label, unit, row of the kernel, is less better).
LOCAL, NETWORK = "Within this host", "Between two network namespaces"
SPINNING = "kernel sockets, spinning"
CHART = [
    ("Half a round trip, 64 bytes, median (less is better)", True, [
        (LOCAL, "UDP ping-pong on 127.0.0.1, 64 bytes", "UDP, within the host", "us", "kernel loopback, spinning"),
        (LOCAL, "TCP ping-pong on 127.0.0.1, 64 bytes", "TCP, within the host", "us", "kernel loopback, spinning"),
        (NETWORK, "UDP ping-pong, 64 bytes", "UDP, over a veth pair", "us", SPINNING),
        (NETWORK, "TCP ping-pong, 64 bytes", "TCP, over a veth pair", "us", SPINNING),
    ]),
    ("Rates (more is better)", False, [
        (NETWORK, "UDP one way, 64 bytes", "UDP messages, over a veth pair", "M/s", "kernel sockets"),
        (LOCAL, "TCP bulk over one connection", "TCP bulk, within the host", "Gb/s", "kernel sockets"),
        (NETWORK, "TCP bulk over one connection (iperf3)", "TCP bulk, over a veth pair", "Gb/s", "kernel sockets"),
        (LOCAL, "redis-benchmark GET, 1 connection", "redis GET, within the host", "1000/s", "kernel sockets"),
        (NETWORK, "redis-benchmark GET, 1 connection", "redis GET, over a veth pair", "1000/s", "kernel sockets"),
    ]),
]

WIDTH, LABEL, BARS = 760, 220, 380
ROW, BAR, HEADING = 40, 13, 34

# Both colours of text and bars are legible on white and on black; the second set is for readers in the dark.
STYLE = """
text { font: 13px sans-serif; fill: #24292f }
.heading { font-weight: bold }
.kernel { fill: #8c959f }
.libvma { fill: #0969da }
.ratio { font-weight: bold; text-anchor: end }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .kernel { fill: #6e7681 }
  .libvma { fill: #58a6ff }
}
"""


def read(text):
    """{(half, title): {row: first number}} of all tables; a title is a line above an empty one or a remark."""
    tables, half, rows = {}, None, None
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if line.startswith((LOCAL, NETWORK)):
            half = LOCAL if line.startswith(LOCAL) else NETWORK
            continue
        if half and re.match(r"(UDP|TCP) (ping-pong|one way|bulk)|redis-benchmark", line) and not re.search(r" {2}", line):
            rows = tables.setdefault((half, line), {})
            continue
        row = re.match(r"(\S.*?) {2,}([0-9.]+)\b", line)
        if row and rows is not None:
            rows.setdefault(row.group(1), float(row.group(2)))
    return tables


def find(tables, half, title, row):
    for (its_half, its_title), rows in tables.items():
        # What follows a title is a colon, a place or nothing, but no other number.
        if its_half == half and its_title.startswith(title) and not its_title[len(title):][:1].isalnum():
            if row in rows:
                return rows[row]
    return None


def draw(tables):
    """The picture, or None if there is nothing to draw."""
    out, y = [], 52
    for heading, less, rows in CHART:
        drawn = []
        for half, title, label, unit, rival in rows:
            kernel, libvma = find(tables, half, title, rival), find(tables, half, title, "libvma")
            if kernel and libvma:
                scale = 1000 if unit == "1000/s" else 1
                drawn.append((label, unit, kernel / scale, libvma / scale))
        if not drawn:
            continue
        out.append(f'<text class="heading" x="10" y="{y}">{escape(heading)}</text>')
        y += 14
        for label, unit, kernel, libvma in drawn:
            ratio = kernel / libvma if less else libvma / kernel
            out.append(f'<text x="10" y="{y + BAR + 5}">{escape(label)}</text>')
            for at, (name, value) in enumerate((("kernel", kernel), ("libvma", libvma))):
                length = max(2, BARS * value / max(kernel, libvma))
                top = y + at * (BAR + 2)
                out.append(f'<rect class="{name}" x="{LABEL}" y="{top}" width="{length:.0f}" height="{BAR}"/>')
                out.append(f'<text x="{LABEL + length + 5:.0f}" y="{top + BAR - 2}">{number(value)} {unit}</text>')
            out.append(f'<text class="ratio" x="{WIDTH - 10}" y="{y + BAR + 5}">{number(ratio)} x</text>')
            y += ROW
        y += HEADING - 14
    if not out:
        return None
    legend = [
        f'<rect class="kernel" x="{LABEL}" y="14" width="{BAR}" height="{BAR}"/>',
        f'<text x="{LABEL + 18}" y="25">kernel sockets (spinning, for latency)</text>',
        f'<rect class="libvma" x="{LABEL + 280}" y="14" width="{BAR}" height="{BAR}"/>',
        f'<text x="{LABEL + 298}" y="25">libvma</text>',
    ]
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" '
            f'role="img" aria-label="libvma compared with kernel sockets">')
    return "\n".join([head, f"<style>{STYLE}</style>", *legend, *out, "</svg>"]) + "\n"


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


SAMPLE = """Within this host, between two processes, on 127.0.0.1.
UDP ping-pong on 127.0.0.1, 64 bytes: half the round trip in microseconds

                                          p50      p99
kernel loopback, blocking               28.73    40.38
kernel loopback, spinning                2.62     3.19
libvma                                   0.25     0.32  p50 <= 0.4: yes

redis-benchmark GET, 1 connection

                                      requests/s   / kernel   p50 in us
kernel sockets                             19048     1.00 x          55
libvma                                    454545    23.86 x           7

Between two network namespaces, over a veth pair.

UDP one way, 64 bytes: million messages received in a second

kernel sockets                        0.269    0.2 %     0.50 x     1.00 x
libvma                                0.623    0.3 %     1.15 x     2.32 x

redis-benchmark GET, 50 connections

kernel sockets                             90799     1.00 x         279
libvma                                    295276     3.25 x         127
"""


def self_test():
    tables = read(SAMPLE)
    picture = draw(tables)
    failed = []
    for name, right in {
        "the spinning kernel is the rival": find(tables, LOCAL, "UDP ping-pong on 127.0.0.1, 64 bytes",
                                                 "kernel loopback, spinning") == 2.62,
        "a row's first number": find(tables, NETWORK, "UDP one way, 64 bytes", "libvma") == 0.623,
        "both halves have tables of one name": find(tables, LOCAL, "redis-benchmark GET, 1 connection", "libvma") == 454545,
        "1 connection is not 50": find(tables, NETWORK, "redis-benchmark GET, 1 connection", "libvma") is None,
        "less is better": ">10.5 x<" in picture,
        "more is better": ">2.32 x<" in picture and ">23.9 x<" in picture,
        "nothing to draw": draw(read("no tables")) is None,
    }.items():
        if not right:
            failed.append(name)
            print(f"demo_svg: self-test: {name}")
    print(f"demo_svg: self-test: {7 - len(failed)} of 7 as expected")
    return 1 if failed else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:] and sys.argv[1].startswith("-"):
        print(__doc__)
        return 1
    text = open(sys.argv[1], encoding="utf-8").read() if sys.argv[1:] else sys.stdin.read()
    picture = draw(read(text))
    if picture is None:
        print("demo_svg: no table that could be drawn", file=sys.stderr)
        return 1
    sys.stdout.write(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
