"""A library as vmad sees it, written from the description of the protocol alone.

usage: client.py SOCKET NOTIFY_DIR [--user UID] [--no-address]

Reads one command per line and answers each with one line:

    pid                        its process id
    init [ver=N] [pid=N]       INIT; prints the answer in hex, or "silence"
    state [fd=N] [local=A:P] [peer=A:P] [state=N] [type=N] [pid=N]     STATE
    exit [pid=N]               EXIT
    flow [kind=N] [action=N] [status=N] [pid=N]       FLOW; prints as init does if status is 1
    raw HEX                    any bytes
    flood N                    that many unknown messages
    linger                     a message with a TCP connection whose last close() waits: "sent", or "refused" by the kernel
    hear                       what comes within two seconds, in hex, or "silence"
    listen A:P                 a TCP socket that listens
    connect A:P A:P            a TCP connection of the kernel: from, to
    accept                     the listener's next connection
    vanish                     lets the kernel forget its connection without a word: so a library's looks
    reset                      waits for two seconds for the accepted connection to be reset

With wait=SECONDS a command waits so long for its answer instead of two seconds.
"""
import os
import socket
import struct
import sys

HEADER = "=BBBBi"
WAIT = 2
TCP_REPAIR = 19


def header(code, pid, ver=3, status=0):
    return struct.pack(HEADER, code, ver, status, 0, pid)


def address(text):
    host, port = text.rsplit(":", 1)
    port = struct.pack("!H", int(port))
    if host.startswith("["):
        return socket.inet_pton(socket.AF_INET6, host[1:-1]), port
    return socket.inet_aton(host), port


class Client:
    def __init__(self, daemon, directory, bind):
        self.daemon = daemon
        self.pid = os.getpid()
        self.kept = []
        name = os.path.join(directory, f"vma_agent.{self.pid}")
        if bind:
            self.kept.append(os.open(name + ".pid", os.O_CREAT | os.O_RDWR, 0o640))
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        if bind:
            self.socket.bind(name + ".sock")

    def send(self, datagram):
        self.socket.sendto(datagram, self.daemon)
        return "sent"

    def hear(self):
        try:
            return self.socket.recv(4096).hex()
        except TimeoutError:
            return "silence"

    def do_pid(self):
        return str(self.pid)

    def do_init(self, ver=3, pid=None, library=0x9854):
        self.send(header(1, int(pid or self.pid), int(ver)) + struct.pack("=I", library))
        return self.hear()

    def do_state(self, fd=5, local="10.9.9.1:80", peer="10.9.9.2:4000", state=4, type=1, pid=None):
        src_ip, src_port = address(local)
        dst_ip, dst_port = address(peer)
        body = struct.pack("=I", int(fd)) + src_ip + dst_ip + src_port + dst_port
        code = 2 if len(src_ip) == 4 else 0x12
        return self.send(header(code, int(pid or self.pid)) + body + bytes([int(type), int(state)]))

    def do_exit(self, pid=None):
        return self.send(header(3, int(pid or self.pid)))

    def do_flow(self, kind=4, action=1, status=0, pid=None, interface=9999, tap=9999):
        dst_ip, dst_port = address("10.9.9.1:80")
        body = struct.pack("=BBII", int(kind), int(action), int(interface), int(tap))
        self.send(
            header(4, int(pid or self.pid), status=int(status)) + body + dst_ip + dst_port + bytes(6)
        )
        return self.hear() if int(status) else "sent"

    def do_raw(self, text):
        return self.send(bytes.fromhex(text))

    def do_flood(self, count):
        for _ in range(int(count)):
            self.send(header(0x3F, self.pid))
        return "sent"

    def do_linger(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.kept.append(listener)
        with socket.create_connection(listener.getsockname()) as connection:
            self.kept.append(listener.accept()[0])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 600))
            connection.setblocking(False)
            try:
                while True:
                    connection.send(bytes(65536))
            except BlockingIOError:
                pass
            try:
                self.socket.connect(self.daemon)
                socket.send_fds(self.socket, [header(0x3F, self.pid)], [connection.fileno()])
            except PermissionError:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(8))
                return "refused"
            # The daemon's is the last one.
            os.close(connection.detach())
        return "sent"

    def do_hear(self):
        return self.hear()

    def do_listen(self, at):
        host, port = at.split(":")
        self.kept.append(socket.create_server((host, int(port))))
        return "listens"

    def do_connect(self, local, peer):
        ends = [(host, int(port)) for host, port in (local.split(":"), peer.split(":"))]
        self.kept.append(socket.create_connection(ends[1], source_address=ends[0]))
        return "connected"

    def do_accept(self):
        self.kept.append(self.kept[-1].accept()[0])
        return "accepted"

    def do_vanish(self):
        connection = self.kept.pop()
        # A socket that is closed in repair mode sends nothing.
        connection.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        connection.close()
        return "vanished"

    def do_reset(self):
        self.kept[-1].settimeout(WAIT)
        try:
            return f"received {self.kept[-1].recv(1)}"
        except ConnectionResetError:
            return "reset"
        except TimeoutError:
            return "silence"


def main():
    arguments = sys.argv[1:]
    bind = "--no-address" not in arguments
    if "--user" in arguments:
        user = int(arguments[arguments.index("--user") + 1])
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    client = Client(arguments[0], arguments[1], bind)
    print("ready", flush=True)
    for line in sys.stdin:
        name, *words = line.split()
        named = dict(word.split("=", 1) for word in words if "=" in word)
        client.socket.settimeout(float(named.pop("wait", WAIT)))
        plain = [word for word in words if "=" not in word]
        print(getattr(client, "do_" + name)(*plain, **named), flush=True)


main()
