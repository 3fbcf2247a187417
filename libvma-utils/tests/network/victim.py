"""A process whose connections vanish as those of a killed offloaded program do: the kernel here
forgets them (TCP_REPAIR), no segment leaves.

arguments: address port number-of-connections
says: "connected PORT ..."
input lines:
  vanish               forget the connections                     -> "vanished"
  register DIR SOCKET  introduce itself to vmad and tell it of them -> "registered"
  exit                 say EXIT to vmad                           -> "exited"
"""
import os
import resource
import socket
import struct
import sys

TCP_REPAIR = 19
address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
ends = [socket.create_connection((address, port)) for _ in range(count)]
names = [(end.fileno(), *end.getsockname()[:2], *end.getpeername()[:2]) for end in ends]
print("connected", *(name[2] for name in names), flush=True)
agent = None
for line in sys.stdin:
    words = line.split()
    if words[0] == "vanish":
        for end in ends:
            end.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
            end.close()
        print("vanished", flush=True)
    elif words[0] == "register":
        directory, daemon, pid = words[1], words[2], os.getpid()
        os.makedirs(directory, exist_ok=True)
        alive = open(f"{directory}/vma_agent.{pid}.pid", "w")
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        agent.bind(f"{directory}/vma_agent.{pid}.sock")
        agent.settimeout(10)
        agent.connect(daemon)
        agent.send(struct.pack("=BBBBiI", 1, 3, 0, 0, pid, 0x9990))
        answer = agent.recv(100)
        assert len(answer) == 12 and answer[0] == 0x81, answer
        for fd, near, near_port, far, far_port in names:
            number, family = (0x12, socket.AF_INET6) if ":" in near else (2, socket.AF_INET)
            header = struct.pack("=BBBBiI", number, 3, 0, 0, pid, fd)
            addresses = socket.inet_pton(family, near) + socket.inet_pton(family, far)
            ports = struct.pack("!HH", near_port, far_port)
            agent.send(header + addresses + ports + bytes([socket.SOCK_STREAM, 4]))
        print("registered", flush=True)
    elif words[0] == "exit":
        agent.send(struct.pack("=BBBBi", 3, 3, 0, 0, os.getpid()))
        print("exited", flush=True)
