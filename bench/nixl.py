"""The backend TCPX beside UCX over TCP, in NIXL, host memory, two processes on this machine, by turns.

    make check-nixl NIXL_VERSIONS=1.5.1 NIXL_CASES=short       # fetches the wheel, puts the backend there
    PYTHONPATH=build/nixl/1.5.1:build/nixl/numpy python3 bench/nixl.py [--rounds 10] [--backends TCPX,UCX]

Every list is verified once by its bytes. Numbers are medians of the rounds, and the ratio to the last backend is
the median of the rounds' ratios, so that other load on the machine concerns both.
"""
import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "nixl"))
from side import Inside, Side, meet  # noqa: E402

MIB = 1 << 20
NAP = 20e-6  # between two questions: a program that spins takes a core from the threads that move the bytes
LISTS = [("1 MiB", MIB, 1), ("64 MiB", 64 * MIB, 1), ("64 MiB in 1,024", 64 * MIB, 1024)]


class Measured(Inside):
    def __init__(self, backend, spins):
        self.backend = backend
        self.nap = 0 if spins else NAP
        self.settings = {"enable_prog_thread": not spins}

    def rest(self):
        if self.nap:
            time.sleep(self.nap)

    def finish(self, handle):
        state = self.agent.transfer(self.handles[handle])
        while state == "PROC":
            self.rest()
            state = self.agent.check_xfer_state(self.handles[handle])
        assert state == "DONE", state

    def seconds_of(self, handle, seconds):
        """The median of as many runs as fit, after two that do not count."""
        times = []
        end = time.monotonic() + seconds
        while len(times) < 7 or time.monotonic() < end:
            begun = time.perf_counter()
            self.finish(handle)
            times.append(time.perf_counter() - begun)
        return statistics.median(times[2:])

    def await_notice(self):
        while not self.agent.get_new_notifs():
            self.rest()

    def pings(self, handle, count):
        """Half of the time there and back."""
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            self.finish(handle)
            self.await_notice()
            times.append((time.perf_counter() - begun) / 2)
        return statistics.median(times[count // 10 :])

    def pongs(self, handle, count):
        for _ in range(count):
            self.await_notice()
            self.finish(handle)


def measure(backend, seconds, pings, spins):
    """GB/s, and microseconds."""
    found = {}
    size = max(size for _, size, _ in LISTS)
    inside = Measured(backend, spins)
    with Side("a", size, inside=inside) as a, Side("b", size, inside=inside) as b:
        meet(a, b)
        there = b.address()
        for operation in ("WRITE", "READ"):
            for name, bytes, blocks in LISTS if not spins else []:
                block = bytes // blocks
                turned = list(range(size // block - 1, size // block - 1 - blocks, -1))
                handle = a.prepare(operation, "b", there, block, range(blocks), turned)
                (a if operation == "WRITE" else b).fill(blocks)
                found[f"{operation.lower()} {name}"] = bytes / a.seconds_of(handle, seconds) / 1e9
                a.release(handle)
                if bytes == size:
                    assert a.checksum(block) == b.checksum(), f"{backend}: wrong bytes"
        ping = a.prepare("WRITE", "b", there, 4096, [0], [0], b"ping")
        pong = b.prepare("WRITE", "a", a.address(), 4096, [0], [0], b"pong")
        b.begin("pongs", pong, pings)
        found["us: 4 KiB and notification, one way"] = 1e6 * a.pings(ping, pings)
        b.finish()
        a.release(ping)
        b.release(pong)
    return found


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--pings", type=int, default=1000)
    parser.add_argument("--backends", default="TCPX,UCX")
    parser.add_argument("--spin", action="store_true", help="only the way of a notification, by programs that do "
                        "nothing but ask, without a progress thread of NIXL")
    options = parser.parse_args()
    os.environ["UCX_TLS"] = "tcp,self"
    os.environ.setdefault("NIXL_LOG_LEVEL", "error")
    multiprocessing.set_start_method("spawn")
    backends = options.backends.split(",")
    rounds = []
    for number in range(options.rounds):
        order = backends if number % 2 == 0 else backends[::-1]
        rounds.append({backend: measure(backend, options.seconds, options.pings, options.spin) for backend in order})
        print(json.dumps(rounds[-1]), file=sys.stderr, flush=True)
    for name in rounds[0][backends[0]]:
        line = f"{name:40}"
        for backend in backends:
            line += f" {statistics.median(round[backend][name] for round in rounds):9.2f}"
        ratios = sorted(round[backends[0]][name] / round[backends[-1]][name] for round in rounds)
        print(f"{line}   ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
