# Echoes every connection, waiting in the way that the first argument says.
import selectors, socket, sys, threading

l = socket.create_server(('10.99.0.1', 7000), backlog=64)

def serve(c):
    while data := c.recv(65536):
        c.sendall(data)
    c.close()

def threads():
    while True:
        c, _ = l.accept()
        threading.Thread(target=serve, args=(c,), daemon=True).start()

def select(selector):
    # What could not be written yet.
    rest = {}
    l.setblocking(False)
    selector.register(l, selectors.EVENT_READ)
    while True:
        for key, events in selector.select():
            c = key.fileobj
            if c is l:
                c, _ = l.accept()
                c.setblocking(False)
                selector.register(c, selectors.EVENT_READ)
                continue
            if events & selectors.EVENT_READ and len(rest.get(c, b'')) < 1 << 20:
                data = c.recv(65536)
                if not data:
                    selector.unregister(c)
                    c.close()
                    continue
                rest[c] = rest.get(c, b'') + data
            if rest.get(c):
                try:
                    rest[c] = rest[c][c.send(rest[c]):]
                except BlockingIOError:
                    pass
            want = selectors.EVENT_READ | (selectors.EVENT_WRITE if rest.get(c) else 0)
            selector.modify(c, want)

ways = {
    'threads': threads,
    'epoll': lambda: select(selectors.EpollSelector()),
    'poll': lambda: select(selectors.PollSelector()),
    'select': lambda: select(selectors.SelectSelector()),
}
ways[sys.argv[1]]()
