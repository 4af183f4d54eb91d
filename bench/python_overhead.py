"""What Python costs: transfers of 4 KiB by the package tcpx beside the same by `tcpx perf`, a C program.

    make && make python
    PYTHONPATH=build/python python3 bench/python_overhead.py [--rounds 7] [--iterations 1000]

Host memory, two processes on this machine, over loopback. Each round measures C and then Python, so that other load on
the machine concerns both. A number is the median of the rounds' medians, with the least and the most; the last column
is the same of the rounds' differences. Both sides verify the bytes of every iteration, outside of the time.
"""

import argparse
import array
import asyncio
import csv
import io
import os
import statistics
import subprocess
import sys
import time

import tcpx

BYTES = 4096
BLOCKS = 1000
WARM_UP = 50
SECONDS = 60

# --- the other side -------------------------------------------------------------------------------------------------


def pattern(number, blocks=1):
    """Neighbours in time differ in every byte, so that each check sees what this iteration has moved."""
    return bytes((number + i * 31 + i // 256) % 256 for i in range(BYTES)) * blocks


def serve(turns):
    """Holds windows, and answers `turns` messages with their own bytes."""
    memory = bytearray(pattern(0) + pattern(1) + pattern(0, BLOCKS) + pattern(1, BLOCKS))
    written = bytearray(BYTES)
    windows = [tcpx.Window(memory, read=True), tcpx.Window(written, write=True, read=True)]
    with tcpx.listen("127.0.0.1", 0, windows=True) as listener:
        print(listener.port, *(window.key.hex() for window in windows), flush=True)
        session = listener.accept(SECONDS)
    message = bytearray(BYTES)
    for _ in range(turns):
        session.receive(message).wait(SECONDS)
        session.send(message).wait(SECONDS)
    sys.stdin.read()
    session.close()


# --- Python ---------------------------------------------------------------------------------------------------------


class Client:
    """What is measured is a method that gives a time in us. `turn` is 0 or 1: which of two patterns moves."""

    def __init__(self, iterations, rounds):
        self.iterations = iterations
        turns = rounds * (iterations + WARM_UP)
        self.server = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(turns)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        port, *keys = self.server.stdout.readline().split()
        self.session = tcpx.connect("127.0.0.1", int(port), windows=True)
        self.remote, written = (self.session.remote(bytes.fromhex(key), block=BYTES) for key in keys)
        self.written = written[0:BYTES]
        self.patterns = [pattern(0), pattern(1)]
        self.many_patterns = [pattern(0, BLOCKS), pattern(1, BLOCKS)]
        self.memory = [self.remote[0:BYTES], self.remote[BYTES : 2 * BYTES]]
        self.own = bytearray(BYTES)
        self.window = tcpx.Window(self.own)
        self.here = self.window[:]
        self.numbers = array.array("i", range(BLOCKS))
        self.block_numbers = [array.array("i", range(first, first + BLOCKS)) for first in (2, 2 + BLOCKS)]

    def close(self):
        self.server.stdin.close()
        self.session.close()
        if self.server.wait(SECONDS) != 0:
            raise SystemExit("the serving process has failed")

    def median(self, begin, bytes_there=None, iterations=None, rest=0):
        """Of begin(turn), after which bytes_there() has to be the pattern of the turn."""
        times = []
        for i in range(WARM_UP + (iterations or self.iterations)):
            if rest > 0:
                time.sleep(rest)
            begun = time.perf_counter_ns()
            begin(i % 2)
            times.append(time.perf_counter_ns() - begun)
            if bytes_there is not None:
                self.check(i % 2, bytes_there())
        return statistics.median(times[WARM_UP:]) / 1e3

    def check(self, turn, found):
        if found != (self.patterns if len(found) == BYTES else self.many_patterns)[turn]:
            raise SystemExit("bytes arrived wrong")

    def read(self):
        return self.median(lambda turn: self.session.read(self.here, self.memory[turn]).wait(), lambda: self.own)

    def read_object(self):
        return self.median(lambda turn: self.session.read(self.own, self.memory[turn]).wait(), lambda: self.own)

    def read_async(self):
        async def all_of_them():
            times = []
            for i in range(WARM_UP + self.iterations):
                begun = time.perf_counter_ns()
                await self.session.read(self.here, self.memory[i % 2])
                times.append(time.perf_counter_ns() - begun)
                self.check(i % 2, self.own)
            return statistics.median(times[WARM_UP:]) / 1e3

        return asyncio.run(all_of_them())

    def write(self):
        back = bytearray(BYTES)
        with tcpx.Window(back) as window, tcpx.Window(b"".join(self.patterns)) as source:
            here = [source[0:BYTES], source[BYTES:]]

            def written():
                self.session.read(window[:], self.written).wait()
                return back

            return self.median(lambda turn: self.session.write(here[turn], self.written).wait(), written)

    def one_way(self):
        back = bytearray(BYTES)

        def there_and_back(turn):
            receive = self.session.receive(back)
            self.session.send(self.patterns[turn])
            receive.wait()

        return self.median(there_and_back, lambda: back) / 2

    def read_blocks(self):
        blocks = bytearray(BYTES * BLOCKS)
        with tcpx.Window(blocks, block=BYTES) as window:

            def begin(turn):
                there = self.remote.blocks(self.block_numbers[turn])
                self.session.read(window.blocks(self.numbers), there).wait()

            # As `tcpx perf` rests while its server fills the memory: who has just computed loses a busy core.
            return self.median(begin, lambda: blocks, self.iterations // 10, rest=0.002)

    def blocks_of_list(self):
        numbers = list(self.numbers)
        return self.median(lambda turn: self.remote.blocks(numbers))

    def blocks_of_array(self):
        return self.median(lambda turn: self.remote.blocks(self.numbers))


# --- C --------------------------------------------------------------------------------------------------------------


def program():
    return os.path.join(os.path.dirname(tcpx.__file__), "bin", "tcpx")


def perf(iterations, *arguments):
    said = subprocess.run(
        [program(), "perf", "--loopback", "--host", "--csv", "--warm-up", str(WARM_UP), "--iters", str(iterations), *arguments],
        stdout=subprocess.PIPE, text=True, check=True, timeout=10 * SECONDS,
    ).stdout
    return float(next(csv.DictReader(io.StringIO(said)))["median_us"])


# --- the table ------------------------------------------------------------------------------------------------------

SMALL = ["--size", str(BYTES)]
READ = ["--read", *SMALL]
ROWS = [
    ("read 4 KiB", READ, Client.read),
    ("read 4 KiB into an object without a window", READ, Client.read_object),
    ("await a read of 4 KiB", READ, Client.read_async),
    ("write 4 KiB", ["--write", *SMALL], Client.write),
    ("send 4 KiB, one way", ["--ping-pong", *SMALL], Client.one_way),
    ("read 1,000 blocks of 4 KiB", ["--read", "--size", str(BYTES * BLOCKS), "--pieces", str(BLOCKS)], Client.read_blocks),
    ("1,000 numbers of a list into parts", None, Client.blocks_of_list),
    ("1,000 numbers of an array into parts", None, Client.blocks_of_array),
]


def spread(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        return serve(options.serve)
    if options.rounds < 1 or options.iterations < 10:
        parser.error("--rounds takes 1 and more, --iterations 10 and more")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    client = Client(options.iterations, options.rounds)
    found = {name: ([], []) for name, _, _ in ROWS}
    for _ in range(options.rounds):
        for name, arguments, measure in ROWS:
            iterations = options.iterations // 10 if measure is Client.read_blocks else options.iterations
            if arguments is not None:
                found[name][0].append(perf(iterations, *arguments))
            found[name][1].append(measure(client))
    client.close()
    print("| us | C | Python | Python - C |\n| --- | --- | --- | --- |")
    for name, (c, python) in found.items():
        differences = [there - here for here, there in zip(c, python, strict=False)]
        print(f"| {name} | {spread(c) if c else ''} | {spread(python)} | {spread(differences) if c else ''} |")


if __name__ == "__main__":
    main()
