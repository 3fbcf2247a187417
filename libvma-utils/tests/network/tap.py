"""A TAP and the process that has it. Gone when this ends.

argument: the name of the TAP
says: "tap INDEX", then for each IPv4 frame that comes out "PROTOCOL SOURCE:PORT DESTINATION:PORT"
input lines:
  send MAC SOURCE DESTINATION PORT     send a UDP datagram into it
  register DIR SOCKET                  introduce itself to vmad                       -> "registered"
  flow KIND ACTION INTERFACE LOCAL PORT PEER PORT   ask vmad for a flow to the TAP    -> "answer STATUS"
  exit                                 say EXIT to vmad                               -> "exited"
"""
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
name = sys.argv[1]
tap = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
subprocess.run(["ip", "link", "set", name, "addrgenmode", "none", "up"], check=True)
print("tap", socket.if_nametoindex(name), flush=True)


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def datagram(mac, source, destination, port):
    udp = struct.pack("!HHHH", 7, port, 12, 0) + b"tap!"
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0)
    ip += socket.inet_aton(source) + socket.inet_aton(destination)
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    return bytes.fromhex(mac.replace(":", "")) + bytes.fromhex("020000000001") + b"\x08\x00" + ip + udp


def register(directory, daemon):
    pid = os.getpid()
    os.makedirs(directory, exist_ok=True)
    alive = open(f"{directory}/vma_agent.{pid}.pid", "w")
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    agent.bind(f"{directory}/vma_agent.{pid}.sock")
    agent.settimeout(10)
    agent.connect(daemon)
    agent.send(struct.pack("=BBBBiI", 1, 3, 0, 0, pid, 0x9990))
    answer = agent.recv(100)
    assert len(answer) == 12 and answer[0] == 0x81, answer
    return alive, agent


def flow(kind, action, interface, local, local_port, peer, peer_port):
    header = struct.pack("=BBBBi", 4, 3, 1, 0, os.getpid())
    what = struct.pack("=BBII", int(kind), int(action), int(interface), socket.if_nametoindex(name))
    ends = socket.inet_aton(local), int(local_port), socket.inet_aton(peer), int(peer_port)
    return header + what + struct.pack("!4sH4sH", *ends)


while True:
    for fd in select.select([tap, sys.stdin], [], [])[0]:
        if fd == tap:
            frame = os.read(tap, 2000)
            if frame[12:14] != b"\x08\x00":
                continue
            packet = frame[14:]
            source_port, port = struct.unpack("!HH", packet[20:24])
            source, destination = (socket.inet_ntoa(packet[at:at + 4]) for at in (12, 16))
            protocol = {6: "tcp", 17: "udp"}.get(packet[9], packet[9])
            print(protocol, f"{source}:{source_port}", f"{destination}:{port}", flush=True)
        else:
            words = sys.stdin.readline().split()
            if not words:
                sys.exit()
            if words[0] == "send":
                os.write(tap, datagram(words[1], words[2], words[3], int(words[4])))
            elif words[0] == "register":
                alive, agent = register(words[1], words[2])
                print("registered", flush=True)
            elif words[0] == "flow":
                agent.send(flow(*words[1:]))
                answer = agent.recv(100)
                assert len(answer) == 8 and answer[0] == 0x84, answer
                print("answer", answer[2], flush=True)
            elif words[0] == "exit":
                agent.send(struct.pack("=BBBBi", 3, 3, 0, 0, os.getpid()))
                print("exited", flush=True)
