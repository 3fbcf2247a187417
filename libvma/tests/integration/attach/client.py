# For a puppet: connections to the echo server, by which numbered bytes go there and back.
COUNT = 12

def part(seed, size):
    return bytes((seed + i * 7 + (i >> 8) * 31) & 255 for i in range(size))

class Talk:
    def __init__(self, number):
        self.number, self.error, self.rounds = number, None, 0
        self.c = create_connection(('10.99.0.1', 7000))
        self.c.settimeout(10)
    def talk(self, seconds):
        end = time.monotonic() + seconds
        # Small questions, and some that are longer than a segment, or than the buffers of the start.
        sizes = [1, 64, 1400, 5000, 64, 3, 300000 if self.number % 4 == 0 else 20000]
        while time.monotonic() < end:
            data = part(self.rounds, sizes[self.rounds % len(sizes)])
            sender = threading.Thread(target=self.c.sendall, args=(data,))
            if len(data) > 100000: sender.start()
            else: self.c.sendall(data)
            got = b''
            while len(got) < len(data):
                more = self.c.recv(65536)
                if not more: raise EOFError(f'{len(got)} of {len(data)} in round {self.rounds}')
                got += more
            if len(data) > 100000: sender.join()
            if got != data: raise ValueError(f'other bytes in round {self.rounds}')
            self.rounds += 1
    def try_to_talk(self, seconds):
        try: self.talk(seconds)
        except BaseException as error: self.error = error

talks = []
def talk(seconds):
    if not talks: talks.extend(Talk(n) for n in range(COUNT))
    threads = [threading.Thread(target=t.try_to_talk, args=(seconds,)) for t in talks]
    for t in threads: t.start()
    for t in threads: t.join()
    errors = [f'{t.number}: {t.error!r}' for t in talks if t.error]
    return errors or min(t.rounds for t in talks)

