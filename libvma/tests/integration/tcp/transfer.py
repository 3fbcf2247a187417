"""Sends one file and receives another over one connection, both at once.

usage: transfer.py server|client <file to send> <file to write> [address]
"""
import fcntl
import socket
import struct
import sys
import termios
import threading
import time

AT = (sys.argv[4] if len(sys.argv) > 4 else "10.99.0.1", 7000)

if sys.argv[1] == "server":
    family = socket.AF_INET6 if ":" in AT[0] else socket.AF_INET
    connection, _ = socket.create_server(AT, family=family).accept()
else:
    connection = socket.create_connection(AT)


def send():
    with open(sys.argv[2], "rb") as file:
        while part := file.read(50_000):
            connection.sendall(part)
    connection.shutdown(socket.SHUT_WR)


sender = threading.Thread(target=send)
sender.start()
with open(sys.argv[3], "wb") as file:
    while part := connection.recv(65536):
        file.write(part)
sender.join()
# What a process leaves unacknowledged is the kernel's to finish.
while struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"four"))[0] > 0:
    time.sleep(0.01)
