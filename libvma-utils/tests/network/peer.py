"""A peer: accepts connections, then says what becomes of each while it only receives.

arguments: address port number-of-connections
says: "listening", "accepted", and for each connection that ends "reset PORT WHEN" or "eof PORT WHEN";
PORT is that of the other end, WHEN in nanoseconds of CLOCK_MONOTONIC
input line "send": sends a byte on each connection that is left -> "sent"
"""
import resource
import select
import socket
import sys
import time

address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
family = socket.AF_INET6 if ":" in address else socket.AF_INET
listener = socket.create_server((address, port), family=family, backlog=4096)
print("listening", flush=True)
poll = select.epoll()
poll.register(sys.stdin.fileno(), select.EPOLLIN)
ends = {}
for _ in range(count):
    end, (_, far_port, *_) = listener.accept()
    ends[end.fileno()] = (end, far_port)
    poll.register(end.fileno(), select.EPOLLIN)
listener.close()
print("accepted", flush=True)
while True:
    events, when, lines = poll.poll(), time.monotonic_ns(), []
    for fd, _ in events:
        if fd == sys.stdin.fileno():
            if not sys.stdin.readline():
                sys.exit()
            for end, _ in ends.values():
                end.send(b"x")
            lines.append("sent")
            continue
        end, far_port = ends[fd]
        try:
            if end.recv(100):
                continue
            word = "eof"
        except ConnectionResetError:
            word = "reset"
        poll.unregister(fd)
        end.close()
        del ends[fd]
        lines.append(f"{word} {far_port} {when}")
    if lines:
        print(*lines, sep="\n", flush=True)
