"""Echo servers and clients, each kind by another part of Python's library.

usage: echo.py server|client makefile|fork|selectors|select|asyncio|ssl

The server runs on 10.99.0.1:7000, or on that port of $ADDRESS, until it is killed. The client compares every byte, then prints
`connections <number>` and `all echoed`.
"""
import asyncio
import hashlib
import os
import select
import selectors
import socket
import socketserver
import ssl
import sys
import threading

AT = (os.environ.get("ADDRESS", "10.99.0.1"), 7000)


def pattern(size, seed):
    return hashlib.shake_128(seed.to_bytes(4, "big")).digest(size)


class Lines(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)


class Threads(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 128


class Processes(socketserver.ForkingTCPServer):
    allow_reuse_address = True
    request_queue_size = 128


def serve_by_selectors():
    """A server whose sends block when the client does not read: it waits for room, and keeps data."""
    listener = socket.create_server(AT, backlog=512)
    listener.setblocking(False)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, events in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ, bytearray())
                continue
            connection, pending = key.fileobj, key.data
            if events & selectors.EVENT_READ:
                data = connection.recv(65536)
                pending += data
                if not data:
                    selector.unregister(connection)
                    connection.setblocking(True)
                    connection.sendall(pending)
                    connection.close()
                    continue
            if pending:
                try:
                    del pending[: connection.send(pending)]
                except BlockingIOError:
                    pass
            # More than this is not accepted before some of it has left.
            wanted = selectors.EVENT_READ if len(pending) < 1 << 20 else 0
            selector.modify(connection, wanted | (selectors.EVENT_WRITE if pending else 0), pending)


def serve_by_select():
    listener = socket.create_server(AT, backlog=512)
    connections = set()
    while True:
        for ready in select.select([listener, *connections], [], [])[0]:
            if ready is listener:
                connections.add(listener.accept()[0])
                continue
            data = ready.recv(65536)
            if data:
                ready.sendall(data)
            else:
                connections.remove(ready)
                ready.close()


async def serve_by_asyncio():
    async def echo(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, *AT, backlog=512)
    await server.serve_forever()


def serve_by_ssl():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("certificate.pem", "key.pem")

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            with context.wrap_socket(self.request, server_side=True) as connection:
                while data := connection.recv(65536):
                    connection.sendall(data)

    Threads(AT, Handler).serve_forever()


def lines_over(connection, count):
    """Lines of 1 to 100 000 bytes through makefile, each awaited before the next."""
    with connection, connection.makefile("rwb") as file:
        for n in range(count):
            line = b"%d " % n + b"x" * (n * n * 997 % 100_000) + b"\n"
            file.write(line)
            file.flush()
            answer = file.readline()
            assert answer == line, f"line {n}: {len(answer)} bytes instead of {len(line)}"


def stream_over(connection, size, seed):
    """Sends and receives at once."""
    data = pattern(size, seed)
    sender = threading.Thread(target=connection.sendall, args=(data,))
    sender.start()
    got = bytearray()
    while len(got) < size:
        part = connection.recv(65536)
        assert part, f"the end after {len(got)} bytes of {size}"
        got += part
    sender.join()
    assert got == data, "other bytes came back"


def connect():
    return socket.create_connection(AT, 15)


def by_makefile(clients):
    threads = [threading.Thread(target=lines_over, args=(connect(), 200)) for _ in range(clients)]
    failed = []
    threading.excepthook = lambda problem: failed.append(problem.exc_value)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    return clients


def by_selectors():
    """Two hundred connections at once, each with a message on its way, some large."""
    selector = selectors.DefaultSelector()
    for n in range(200):
        connection = connect()
        data = pattern(10 if n % 10 else 300_000, n)
        connection.setblocking(False)
        state = {"n": n, "data": data, "sent": 0, "got": bytearray()}
        selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, state)
    while selector.get_map():
        ready = selector.select(15)
        assert ready, "nothing is ready"
        for key, events in ready:
            connection, state = key.fileobj, key.data
            if events & selectors.EVENT_WRITE:
                state["sent"] += connection.send(state["data"][state["sent"] :][:65536])
                if state["sent"] == len(state["data"]):
                    connection.shutdown(socket.SHUT_WR)
                    selector.modify(connection, selectors.EVENT_READ, state)
            if events & selectors.EVENT_READ:
                part = connection.recv(65536)
                state["got"] += part
                if not part:
                    assert state["got"] == state["data"], f"connection {state['n']}"
                    selector.unregister(connection)
                    connection.close()
    return 200


def by_select():
    connections = [connect() for _ in range(300)]
    for turn in range(5):
        for n, connection in enumerate(connections):
            connection.sendall(b"%d %d" % (turn, n))
        waiting = {connection: b"%d %d" % (turn, n) for n, connection in enumerate(connections)}
        while waiting:
            ready = select.select(list(waiting), [], [], 15)[0]
            assert ready, f"{len(waiting)} answers are missing"
            for connection in ready:
                assert connection.recv(100) == waiting.pop(connection)
    for connection in connections:
        connection.close()
    return 300


async def by_asyncio():
    async def client(n):
        reader, writer = await asyncio.open_connection(*AT)
        data = pattern(200_000, n)
        writer.write(data)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(-1), 15) == data, f"connection {n}"
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(client(n) for n in range(100)))
    return 100


def by_ssl():
    context = ssl.create_default_context(cafile="certificate.pem")
    for n in range(10):
        with context.wrap_socket(connect(), server_hostname=AT[0]) as connection:
            data = pattern(2_000_000 if n == 0 else 1000, n)
            for start in range(0, len(data), 50_000):
                part = data[start : start + 50_000]
                connection.sendall(part)
                got = b""
                while len(got) < len(part):
                    more = connection.recv(65536)
                    assert more, "the end"
                    got += more
                assert got == part
    return 10


def serve(kind):
    match kind:
        case "makefile":
            Threads(AT, Lines).serve_forever()
        case "fork":
            Processes(AT, Lines).serve_forever()
        case "selectors":
            serve_by_selectors()
        case "select":
            serve_by_select()
        case "asyncio":
            asyncio.run(serve_by_asyncio())
        case "ssl":
            serve_by_ssl()


def use(kind):
    match kind:
        case "makefile":
            return by_makefile(8)
        case "fork":
            return by_makefile(4)
        case "selectors":
            with connect() as connection:
                stream_over(connection, 8 << 20, 1)
            return 1 + by_selectors()
        case "select":
            return by_select()
        case "asyncio":
            return asyncio.run(by_asyncio())
        case "ssl":
            return by_ssl()


if sys.argv[1] == "server":
    serve(sys.argv[2])
else:
    print("connections", use(sys.argv[2]))
    print("all echoed")
