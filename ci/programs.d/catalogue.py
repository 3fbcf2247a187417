"""The programs: how each is started, loaded and judged.

`serve(bench)` starts the server on side A and returns when it listens. `load(bench, seconds)` makes clients on
side B work and returns rate (in `unit`) and, where the load generator says them, p50 and p99 in microseconds;
`seconds` too, if the run took another time than was asked for. Both raise `Failed` when the work is not done right.
"""

import json
import os
import pwd
import re
import shutil
import subprocess
import time
from pathlib import Path

from bench import IP_A, Failed

HERE = Path(__file__).resolve().parent
# What is worth keeping between runs: autocannon's package, compiled Java.
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "libvma-programs"
SCALE = {"us": 1, "ms": 1e3, "s": 1e6, "m": 6e7}


def number(pattern, text):
    """The first group of a pattern as a number."""
    match = re.search(pattern, text)
    if not match:
        raise Failed(f"its output has no {pattern!r}: {text.strip()[-200:]}")
    return float(match.group(1))


class Program:
    """Defaults of all programs."""

    name = title = packages = ""
    tools = []
    unit = "1/s"


class Http(Program):
    """A web server, and wrk with some connections."""

    connections = 50
    headers = []
    port = 8080
    path = "/"
    failures = ["Non-2xx or 3xx responses", "Socket errors"]

    def load(self, bench, seconds):
        headers = [word for header in self.headers for word in ("-H", header)]
        words = ["wrk", "-t1", f"-c{self.connections}", f"-d{seconds}s", "--latency", *headers, f"http://{IP_A}:{self.port}{self.path}"]
        text = bench.run("b", words, seconds)
        for kind in self.failures:
            if match := re.search(f"{kind}.*", text):
                raise Failed(match.group(0))

        def percentile(which):
            value, unit = re.search(rf"\b{which}%\s+([\d.]+)(us|ms|s|m)\b", text).groups()
            return float(value) * SCALE[unit]

        return {"rate": number(r"Requests/sec:\s+([\d.]+)", text), "p50": percentile(50), "p99": percentile(99)}


def page(bench, folder="htdocs"):
    """A folder with a page of 1 KiB for a web server."""
    target = bench.work / folder
    target.mkdir(exist_ok=True)
    (target / "index.html").write_bytes(b"x" * 1023 + b"\n")
    return target


class Nginx(Http):
    name, title, packages, tools = "nginx", "nginx, 1 worker", "nginx-light wrk", ["nginx", "wrk"]
    workers = 1

    def serve(self, bench):
        (bench.work / "nginx.conf").write_text(
            f"worker_processes {self.workers}; daemon off; pid nginx.pid; error_log stderr; user root;\n"
            "events { worker_connections 4096; }\n"
            "http { access_log off; keepalive_requests 1000000000;\n"
            f" server {{ listen {IP_A}:{self.port}; root {page(bench)}; }} }}\n"
        )
        self.process = bench.start("a", ["nginx", "-p", str(bench.work), "-c", "nginx.conf"])
        bench.wait_for_port(self.port)


class NginxClose(Nginx):
    name, title, headers = "nginx-close", "nginx, a connection for each request", ["Connection: close"]


class NginxWorkers(Nginx):
    name, title, workers = "nginx-4", "nginx, 4 workers", 4


class NginxReload(NginxWorkers):
    name, title = "nginx-4-reload", "nginx, 4 workers, reloaded while it serves"
    # The workers that leave close the connections that they have, which wrk calls an error of reading.
    failures = ["Non-2xx or 3xx responses", r"connect [1-9]", r"write [1-9]", r"timeout [1-9]"]

    def load(self, bench, seconds):
        reload = "sleep 0.5; " + " ".join(["nginx", "-p", str(bench.work), "-c", "nginx.conf", "-s", "reload"])
        bench.start("a", ["sh", "-c", reload])
        return super().load(bench, seconds)


class Lighttpd(Http):
    name, title, packages, tools = "lighttpd", "lighttpd", "lighttpd wrk", ["lighttpd", "wrk"]

    def serve(self, bench):
        (bench.work / "lighttpd.conf").write_text(
            f'server.document-root = "{page(bench)}"\nserver.port = {self.port}\nserver.bind = "{IP_A}"\n'
            'index-file.names = ("index.html")\nserver.max-keep-alive-requests = 0\n'
        )
        bench.start("a", ["lighttpd", "-D", "-f", "lighttpd.conf"])
        bench.wait_for_port(self.port)


class Apache(Http):
    packages, tools = "apache2-bin wrk", ["apache2", "wrk"]
    mpm = limits = ""

    def serve(self, bench):
        modules = "/usr/lib/apache2/modules"
        (bench.work / "apache.conf").write_text(
            f"ServerRoot {bench.work}\nServerName a\nListen {IP_A}:{self.port}\nPidFile {bench.work}/apache.pid\n"
            f"LoadModule mpm_{self.mpm}_module {modules}/mod_mpm_{self.mpm}.so\n"
            f"LoadModule authz_core_module {modules}/mod_authz_core.so\nLoadModule dir_module {modules}/mod_dir.so\n"
            f"DocumentRoot {page(bench)}\nErrorLog {bench.work}/apache.log\nMutex file:{bench.work}\nMaxKeepAliveRequests 0\n"
            f"{self.limits}"
            "User www-data\nGroup www-data\n"
        )
        bench.start("a", ["apache2", "-f", str(bench.work / "apache.conf"), "-DFOREGROUND"])
        bench.wait_for_port(self.port)


class ApachePrefork(Apache):
    name, title, mpm = "apache-prefork", "Apache, a process for each connection", "prefork"
    # All processes from the start. By default there are five, and as many more each second as wrk's connections
    # need, which wait longer than its two seconds meanwhile, with kernel sockets as well.
    limits = (
        "StartServers 64\nServerLimit 64\nMaxRequestWorkers 64\nMinSpareServers 1\nMaxSpareServers 64\n"
        "KeepAliveTimeout 60\n"
    )


class ApacheEvent(Apache):
    name, title, mpm = "apache-event", "Apache, threads", "event"
    # One process, with a thread for each connection and some more. Of several the parent ends those that are
    # spare for a moment, and with few threads a process ends connections that wait: wrk counts that as an error
    # of reading.
    limits = (
        "StartServers 1\nServerLimit 1\nThreadLimit 64\nThreadsPerChild 64\nMaxRequestWorkers 64\n"
        "MinSpareThreads 1\nMaxSpareThreads 64\nKeepAliveTimeout 60\n"
    )


class Haproxy(Nginx):
    name, title, packages = "haproxy", "haproxy, 2 threads, before nginx on its host", "haproxy nginx-light wrk"
    tools = ["haproxy", "nginx", "wrk"]

    def serve(self, bench):
        super().serve(bench)
        (bench.work / "haproxy.cfg").write_text(
            "global\n nbthread 2\n maxconn 2000\n"
            "defaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n"
            f"frontend f\n bind {IP_A}:8081\n default_backend b\n"
            f"backend b\n server s {IP_A}:{self.port}\n"
        )
        bench.start("a", ["haproxy", "-db", "-f", "haproxy.cfg"])
        bench.wait_for_port(8081)

    def load(self, bench, seconds):
        self.port, port = 8081, self.port
        try:
            return super().load(bench, seconds)
        finally:
            self.port = port


class Gunicorn(Http):
    name, title, packages = "gunicorn-4", "gunicorn, 4 workers", "gunicorn wrk"
    tools, connections = ["gunicorn", "wrk"], 8

    def serve(self, bench):
        (bench.work / "application.py").write_text(
            "def application(environ, start):\n"
            "    start('200 OK', [('Content-Type', 'text/plain'), ('Content-Length', '3')])\n"
            "    return [b'ok\\n']\n"
        )
        bench.start("a", ["gunicorn", "-w", "4", "-b", f"{IP_A}:{self.port}", "application:application"])
        bench.wait_for_port(self.port)


class Memcached(Program):
    name, title, packages = "memcached-4", "memcached, 4 threads, 8 client threads", "memcached libmemcached-tools"
    tools = ["memcached", "memcaslap"]

    def serve(self, bench):
        bench.start("a", ["memcached", "-u", "root", "-t", "4", "-l", IP_A])
        bench.wait_for_port(11211)

    def load(self, bench, seconds):
        text = bench.run("b", ["memcaslap", "-s", f"{IP_A}:11211", "-T", "8", "-c", "8", "-t", f"{seconds}s"], seconds)
        if number(r"get_misses: (\d+)", text) > number(r"cmd_get: (\d+)", text) / 2:
            raise Failed("most keys were missed")
        return {"rate": number(r"TPS: (\d+)", text)}


class Redis(Program):
    name, title, packages = "redis", "redis-server, 50 connections", "redis-server redis-tools"
    tools = ["redis-server", "redis-benchmark"]

    def serve(self, bench):
        bench.start("a", ["redis-server", "--bind", IP_A, "--save", "", "--protected-mode", "no"])
        bench.wait_for_port(6379)

    def load(self, bench, seconds):
        # It counts requests, not time: as many as the kernel's sockets make in about that time.
        began = time.monotonic()
        text = bench.run("b", ["redis-benchmark", "-h", IP_A, "-c", "50", "-n", str(60000 * seconds), "-t", "get", "--precision", "3"], seconds)
        row = re.search(r"latency summary \(msec\):\s+avg.*\n\s+(.*)", text).group(1).split()
        rate = number(r"throughput summary: ([\d.]+)", text)
        return {"rate": rate, "p50": float(row[2]) * 1e3, "p99": float(row[4]) * 1e3, "seconds": 60000 * seconds / rate}


def as_user(name, words):
    """The words that run a program as a user of the system."""
    return ["setpriv", "--reuid", name, "--regid", name, "--init-groups", *words]


def own(folder, name):
    folder.mkdir()
    user = pwd.getpwnam(name)
    os.chown(folder, user.pw_uid, user.pw_gid)
    return folder


class Postgres(Program):
    name, title, packages = "postgresql", "PostgreSQL with pgbench -S, 8 connections", "postgresql"
    tools = ["postgres", "initdb", "pgbench"]

    def serve(self, bench):
        data = own(bench.work / "data", "postgres")
        bench.run("a", as_user("postgres", ["initdb", "-D", str(data), "-A", "trust", "--no-sync"]), 30, library=False)
        (data / "pg_hba.conf").write_text("host all all 0.0.0.0/0 trust\n")
        options = ["-c", "fsync=off", "-c", f"listen_addresses={IP_A}", "-c", "unix_socket_directories="]
        bench.start("a", as_user("postgres", ["postgres", "-D", str(data), *options]))
        bench.wait_for_port(5432)
        self.pgbench = ["pgbench", "-h", IP_A, "-U", "postgres"]
        deadline = time.monotonic() + 10
        while True:
            try:
                bench.run("b", [*self.pgbench, "-i", "-q", "-s", "1", "postgres"], 30, library=False)
                return
            except Failed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def load(self, bench, seconds):
        text = bench.run("b", [*self.pgbench, "-n", "-S", "-c", "8", "-j", "2", "-T", str(seconds), "postgres"], seconds)
        return {"rate": number(r"tps = ([\d.]+)", text), "p50": number(r"latency average = ([\d.]+) ms", text) * 1e3}


class Mariadb(Program):
    name, title, packages = "mariadb", "MariaDB with sysbench, 8 threads", "mariadb-server sysbench"
    tools = ["mariadbd", "mariadb-install-db", "mariadb", "sysbench"]

    def serve(self, bench):
        data, socket = own(bench.work / "data", "mysql"), bench.work / "data/socket"
        words = ["mariadb-install-db", "--user=mysql", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
        bench.run("a", words, 60, library=False)
        options = [f"--datadir={data}", f"--socket={socket}", f"--bind-address={IP_A}", "--user=mysql", "--skip-name-resolve"]
        bench.start("a", ["mariadbd", "--no-defaults", *options])
        bench.wait_for_port(3306)
        words = "CREATE DATABASE sbtest; CREATE USER s@'%' IDENTIFIED BY 's'; GRANT ALL ON sbtest.* TO s@'%';"
        bench.run("a", ["mariadb", "--no-defaults", f"--socket={socket}", "-u", "root", "-e", words], 10, library=False)
        self.sysbench = ["sysbench", "oltp_point_select", f"--mysql-host={IP_A}", "--mysql-user=s", "--mysql-password=s", "--tables=1", "--table-size=10000", "--percentile=99"]
        bench.run("b", [*self.sysbench, "prepare"], 30, library=False)

    def load(self, bench, seconds):
        text = bench.run("b", [*self.sysbench, "--threads=8", f"--time={seconds}", "run"], seconds)
        latency = {key: number(rf"{key}:\s+([\d.]+)", text) * 1e3 for key in ("avg", "99th percentile")}
        return {"rate": number(r"transactions:.*\(([\d.]+) per sec", text), "p50": latency["avg"], "p99": latency["99th percentile"]}


class Unbound(Program):
    name, title, packages, tools = "unbound", "unbound with dnsperf: UDP", "unbound dnsperf", ["unbound", "dnsperf"]
    # Where unbound listens.
    port = 53

    def serve(self, bench):
        (bench.work / "unbound.conf").write_text(
            f"server:\n interface: {IP_A}@{self.port}\n access-control: 0.0.0.0/0 allow\n do-daemonize: no\n chroot: \"\"\n username: \"\"\n"
            f" directory: \"{bench.work}\"\n pidfile: \"{bench.work}/unbound.pid\"\n use-syslog: no\n num-threads: 1\n"
            " local-zone: \"x.\" static\n local-data: \"a.x. A 10.1.2.3\"\n"
            "remote-control:\n control-enable: no\n"
        )
        (bench.work / "queries").write_text("a.x A\n")
        bench.start("a", ["unbound", "-c", "unbound.conf"])
        bench.wait_for_port(self.port, "udp")

    def load(self, bench, seconds):
        text = bench.run("b", ["dnsperf", "-s", IP_A, "-d", "queries", "-l", str(seconds), "-c", "8"], seconds)
        if number(r"Queries lost:\s+(\d+)", text) > number(r"Queries sent:\s+(\d+)", text) / 100:
            raise Failed(re.search(r"Queries lost:.*", text).group(0))
        return {"rate": number(r"Queries per second:\s+([\d.]+)", text), "p50": number(r"Average Latency \(s\):\s+([\d.]+)", text) * 1e6}


class Dnsdist(Unbound):
    name, title = "dnsdist", "dnsdist, 2 threads, before unbound on its host: UDP"
    packages, tools = "dnsdist unbound dnsperf", ["dnsdist", "unbound", "dnsperf"]
    port = 5300

    def serve(self, bench):
        super().serve(bench)
        (bench.work / "dnsdist.conf").write_text(
            f"addLocal('{IP_A}:53', {{reusePort=true}})\naddLocal('{IP_A}:53', {{reusePort=true}})\n"
            f"newServer({{address='{IP_A}:{self.port}', checkName='a.x.'}})\n"
            "setSecurityPollSuffix('')\nsetACL({'0.0.0.0/0'})\n"
        )
        bench.start("a", ["dnsdist", "--supervised", "--disable-syslog", "-C", "dnsdist.conf"])
        bench.wait_for_port(53, "udp")


class Mosquitto(Program):
    name, title = "mosquitto", "mosquitto: one publisher, one subscriber"
    packages, tools = "mosquitto mosquitto-clients", ["mosquitto", "mosquitto_pub", "mosquitto_sub"]
    unit = "msg/s"
    # A run of mosquitto_pub: it takes the acknowledgment with the identifier of its last message for the end, and
    # identifiers have 16 bits, so with more than 65535 messages it leaves before it has sent all.
    portion = 40000

    def serve(self, bench):
        (bench.work / "mosquitto.conf").write_text(
            f"listener 1883 {IP_A}\nallow_anonymous true\nuser root\nmax_queued_messages 0\nmax_queued_bytes 0\n"
        )
        bench.start("a", ["mosquitto", "-c", "mosquitto.conf"])
        bench.wait_for_port(1883)

    def load(self, bench, seconds):
        count = self.portion * seconds
        subscriber = bench.start("b", ["mosquitto_sub", "-h", IP_A, "-t", "t", "-q", "1", "-C", str(count + 1)])
        # The first message comes through when the subscription stands.
        first = time.monotonic() + 5
        output = bench.work / f"out.{len(bench.running) - 1}"
        sent = 0
        while output.stat().st_size == 0 and time.monotonic() < first:
            bench.run("b", ["mosquitto_pub", "-h", IP_A, "-t", "t", "-q", "1", "-m", "first"], 5)
            sent += 1
        began = time.monotonic()
        for _ in range(seconds):
            text = "a line of text of some 32 bytes\n" * self.portion
            bench.run("b", ["mosquitto_pub", "-h", IP_A, "-t", "t", "-q", "1", "-l"], 60, stdin=text)
        try:
            subscriber.wait(30)
        except subprocess.TimeoutExpired:
            raise Failed("the subscriber did not get all messages") from None
        taken = time.monotonic() - began
        return {"rate": count / taken, "seconds": taken}


class Socat(Program):
    name, title, packages, tools = "socat", "socat: fork and exec for each connection", "socat", ["socat"]

    def serve(self, bench):
        bench.start("a", ["socat", f"TCP4-LISTEN:7000,bind={IP_A},fork,reuseaddr,backlog=64", "EXEC:cat"])
        bench.wait_for_port(7000)

    def load(self, bench, seconds):
        text = "".join(f"{number}\n" for number in range(2000))
        began, count = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            if bench.run("b", ["socat", "-t5", "-", f"TCP4:{IP_A}:7000"], 10, stdin=text) != text:
                raise Failed("the answer is not what was sent")
            count += 1
        taken = time.monotonic() - began
        return {"rate": count / taken, "seconds": taken}


class Rsync(Program):
    name, title, packages, tools, unit = "rsync", "rsync from a daemon", "rsync", ["rsync"], "MB/s"

    def serve(self, bench):
        (bench.work / "rsyncd.conf").write_text(f"use chroot = no\nuid = root\ngid = root\n[files]\npath = {bench.work}/files\n")
        files = bench.work / "files"
        files.mkdir()
        for index in range(64):
            (files / str(index)).write_bytes(os.urandom(1 << 20))
        bench.start("a", ["rsync", "--daemon", "--no-detach", "--config=rsyncd.conf", f"--address={IP_A}", "--port=8730"])
        bench.wait_for_port(8730)

    def load(self, bench, seconds):
        copy = bench.work / "copy"
        began, count = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            shutil.rmtree(copy, ignore_errors=True)
            bench.run("b", ["rsync", "-a", f"rsync://{IP_A}:8730/files/", str(copy)], 60)
            if sum(file.stat().st_size for file in copy.iterdir()) != 64 << 20:
                raise Failed("bytes are missing")
            count += 1
        taken = time.monotonic() - began
        return {"rate": 64 * count / taken, "seconds": taken}


class Netpipe(Program):
    name, title, packages, tools, unit = "netpipe", "NetPIPE, messages of 64 KiB", "netpipe-tcp", ["NPtcp"], "Mb/s"

    def serve(self, bench):
        # It serves one measurement and ends.
        self.bench = bench

    def load(self, bench, seconds):
        # Both ends have to be told the same.
        sizes = ["-l", "65536", "-u", "65536", "-p", "0", "-n", str(4000 * seconds)]
        bench.start("a", ["NPtcp", *sizes])
        bench.wait_for_port(5002)
        text = bench.run("b", ["NPtcp", "-h", IP_A, *sizes], 60)
        rate = number(r"65536 bytes\s+\d+ times -->\s+([\d.]+) Mbps", text)
        return {"rate": rate, "p50": number(r"Mbps in\s+([\d.]+) usec", text), "seconds": seconds}


class Openssl(Program):
    name, title, packages, tools = "openssl", "openssl s_server: a TLS handshake for each connection", "openssl", ["openssl"]

    def serve(self, bench):
        words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1", "-subj", "/CN=a", "-keyout", "key", "-out", "certificate"]
        bench.run("a", words, 10, library=False)
        bench.start("a", ["openssl", "s_server", "-accept", f"{IP_A}:4433", "-key", "key", "-cert", "certificate", "-www", "-quiet"])
        bench.wait_for_port(4433)

    def load(self, bench, seconds):
        text = bench.run("b", ["openssl", "s_time", "-connect", f"{IP_A}:4433", "-new", "-www", "/", "-time", str(seconds)], seconds)
        real = number(r"connections in ([\d.]+) real seconds", text)
        return {"rate": number(r"(\d+) connections in [\d.]+ real", text) / real, "seconds": real}


class Node(Http):
    name, title, packages = "node", "Node.js with autocannon, 50 connections", "nodejs npm"
    tools = ["node", "npm"]

    def serve(self, bench):
        folder = CACHE / "node"
        self.autocannon = folder / "node_modules/autocannon/autocannon.js"
        if not self.autocannon.exists():
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), "autocannon@8"], check=True)
        (bench.work / "server.js").write_text(
            "require('http').createServer((request, answer) => answer.end('ok\\n'))"
            f".listen({self.port}, '{IP_A}')\n"
        )
        bench.start("a", ["node", "server.js"])
        bench.wait_for_port(self.port)

    def load(self, bench, seconds):
        words = ["node", str(self.autocannon), "-j", "-c", str(self.connections), "-d", str(seconds), f"http://{IP_A}:{self.port}/"]
        result = json.loads(re.search(r"^\{.*", bench.run("b", words, seconds), re.M).group(0))
        if result["errors"] or result["timeouts"] or result["non2xx"]:
            raise Failed(f"{result['errors']} errors, {result['timeouts']} time-outs")
        latency = result["latency"]
        return {"rate": result["requests"]["average"], "p50": latency["p50"] * 1e3, "p99": latency["p99"] * 1e3}


class Java(Program):
    packages, tools = "default-jdk-headless", ["java", "javac"]
    client = ""

    def serve(self, bench):
        source = HERE / "Sockets.java"
        compiled = CACHE / "java"
        if not (compiled / "Sockets.class").exists() or (compiled / "Sockets.class").stat().st_mtime < source.stat().st_mtime:
            compiled.mkdir(parents=True, exist_ok=True)
            subprocess.run(["javac", "-d", str(compiled), str(source)], check=True)
        # Without the option it takes dual-stack sockets; that is another measurement.
        self.java = ["java", "-Djava.net.preferIPv4Stack=true", "-cp", str(compiled), "Sockets"]
        bench.start("a", [*self.java, f"{self.client}-server", IP_A])
        bench.wait_for_port(9000)

    def load(self, bench, seconds):
        text = bench.run("b", [*self.java, f"{self.client}-client", IP_A, str(seconds)], seconds)
        return {"rate": number(r"rate ([\d.]+)", text), "p50": number(r"p50 ([\d.]+)", text), "p99": number(r"p99 ([\d.]+)", text)}


class JavaNio(Java):
    name, title, client = "java-nio", "Java: NIO selector echo, 4 blocking client threads", "nio"


class JavaHttp(Java):
    name, title, client = "java-http", "Java: HttpServer and HttpClient, 4 threads", "http"


class Tokio(Program):
    name, title, packages, tools = "tokio", "Rust: tokio echo, 2 worker threads, 16 connections", "cargo", ["cargo"]

    def serve(self, bench):
        source, compiled = HERE / "tokio", CACHE / "tokio"
        command = ["cargo", "build", "--quiet", "--locked", "--release", "--target-dir", str(compiled)]
        subprocess.run(command, cwd=source, check=True)
        self.program = str(compiled / "release/tokio-echo")
        bench.start("a", [self.program, "server", f"{IP_A}:9000"])
        bench.wait_for_port(9000)

    def load(self, bench, seconds):
        text = bench.run("b", [self.program, "client", f"{IP_A}:9000", str(seconds)], seconds)
        return {"rate": number(r"rate ([\d.]+)", text), "p50": number(r"p50 ([\d.]+)", text), "p99": number(r"p99 ([\d.]+)", text)}


PROGRAMS = [
    program()
    for program in [
        Nginx, NginxClose, NginxWorkers, NginxReload, Lighttpd, ApachePrefork, ApacheEvent, Haproxy, Gunicorn,
        Memcached, Redis, Postgres, Mariadb, Unbound, Dnsdist, Mosquitto, Socat, Rsync, Netpipe, Openssl, Node, JavaNio, JavaHttp, Tokio,
    ]
]
