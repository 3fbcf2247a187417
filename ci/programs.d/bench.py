"""A pair of namespaces for one run of one program: starting, waiting, counting, clean-up."""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

PATIENCE = 15.0
IP_A, IP_B = "10.99.0.1", "10.99.0.2"


class Failed(Exception):
    """A program did not do its work; the text says what it printed."""


def build_library(root):
    """The library to measure."""
    if "LIBVMA" in os.environ:
        library = Path(os.environ["LIBVMA"]).resolve()
    else:
        subprocess.run(["cargo", "build", "--quiet", "--locked", "--release", "-p", "libvma", "--lib"], cwd=root, check=True)
        library = Path(os.environ.get("CARGO_TARGET_DIR", root / "target")) / "release/libvma.so"
    if not library.exists():
        sys.exit(f"no library at {library}")
    return library


class Bench:
    """Side A has the server, side B the clients. Everything ends with the `with` block."""

    def __init__(self, root, work, preload, ends, path, explain=False):
        self.root, self.work, self.preload, self.ends, self.path = root, work, preload, ends, path
        self.explain = explain
        self.running = []

    def __enter__(self):
        # The shell's exit trap removes the namespaces, however this process ends.
        script = f'. "{self.root}/ci/netns.sh"; netns_make; echo "$ns_a $ns_b"; read -r _'
        self.shell = subprocess.Popen(
            ["bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        names = self.shell.stdout.readline().split()
        if len(names) != 2:
            raise Failed("no network namespaces")
        self.names = dict(zip("ab", names))
        return self

    def __exit__(self, *_):
        for process in reversed(self.running):
            process.kill()
            process.wait()
        self.shell.stdin.close()
        self.shell.wait()

    def command(self, side, words, library=True, role=None):
        """The words that run a program on a side, under the library if that end has it."""
        role = role or {"a": "server", "b": "client"}[side]
        ours = self.preload and library and self.ends in ("both", role)
        environment = {"PATH": self.path, "HOME": str(self.work), "LC_ALL": "C.UTF-8"}
        if ours:
            # A server may write its log as another user.
            logs = self.work / "logs"
            logs.mkdir(exist_ok=True)
            logs.chmod(0o1777)
            environment |= {"LD_PRELOAD": str(self.preload), "VMA_LOG_FILE": str(logs / f"{side}.%d")}
            if self.explain:
                environment["VMA_TRACELEVEL"] = "debug"
        pairs = [f"{name}={value}" for name, value in environment.items()]
        return ["ip", "netns", "exec", self.names[side], "env", "-i", *pairs, *words]

    def start(self, side, words, library=True):
        """A program that goes on beside the measurement."""
        log = open(self.work / f"out.{len(self.running)}", "wb")
        process = subprocess.Popen(
            self.command(side, words, library),
            cwd=self.work, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )
        self.running.append(process)
        return process

    def run(self, side, words, seconds, library=True, stdin=None, role=None):
        """A program to its end; what it printed."""
        try:
            result = subprocess.run(
                self.command(side, words, library, role),
                cwd=self.work, capture_output=True, text=True, errors="replace", input=stdin,
                stdin=None if stdin is not None else subprocess.DEVNULL, timeout=seconds + 20,
            )
        except subprocess.TimeoutExpired as late:
            raise Failed(f"{words[0]} did not end within {late.timeout:.0f} s") from None
        if result.returncode != 0:
            tail = (result.stdout + result.stderr).strip().splitlines()[-3:]
            raise Failed(f"{words[0]} ended with {result.returncode}: {' / '.join(tail)}")
        return result.stdout + result.stderr

    def wait_for_port(self, port, protocol="tcp"):
        """Until the server listens on side A."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            listing = subprocess.run(
                ["ip", "netns", "exec", self.names["a"], "ss", "-Hln", f"--{protocol}", f"sport = :{port}"],
                capture_output=True, text=True,
            )
            if listing.stdout.strip():
                return
            for process in self.running:
                if process.poll() not in (None, 0):
                    raise Failed(f"the server ended: {self.said()}")
            time.sleep(0.02)
        raise Failed(f"nobody listens on port {port}: {self.said()}")

    def said(self):
        """The last words of the programs in the background."""
        words = []
        for file in sorted(self.work.glob("out.*")):
            words += file.read_text(errors="replace").strip().splitlines()[-2:]
        return " / ".join(words) or "nothing printed"

    def packets(self):
        """What the kernels of both ends received and sent: TCP segments and UDP datagrams."""
        total = 0
        for name in self.names.values():
            text = subprocess.run(
                ["ip", "netns", "exec", name, "cat", "/proc/net/snmp"], capture_output=True, text=True, check=True
            ).stdout
            tables = {}
            for line in text.splitlines():
                head, _, values = line.partition(": ")
                tables.setdefault(head, []).append(values.split())
            tcp, udp = (dict(zip(*tables[head])) for head in ("Tcp", "Udp"))
            total += int(tcp["InSegs"]) + int(tcp["OutSegs"]) + int(udp["InDatagrams"]) + int(udp["OutDatagrams"])
        return total

    def reasons(self):
        """Why the library left sockets to the kernel, as it said, the most frequent reason first."""
        found = Counter()
        for file in self.work.glob("logs/*"):
            for line in file.read_text(errors="replace").splitlines():
                if match := re.search(r"served by the kernel(?: for now)?: (.*)|the kernel serves it: (.*)", line):
                    found[match.group(1) or match.group(2)] += 1
        # Said of whatever is still open then.
        del found["the process ends"]
        return [f"{reason} ({count} x)" for reason, count in found.most_common(3)]

    def measure(self, program, seconds):
        """One run: rate, latency, and packets of the kernel for each unit of work."""
        program.serve(self)
        # The first use is not what is measured here.
        program.load(self, 1)
        before = self.packets()
        result = program.load(self, seconds)
        if not result.get("rate"):
            raise Failed("no work was done")
        work = result["rate"] * result.get("seconds", seconds)
        result["packets"] = (self.packets() - before) / work
        return result
