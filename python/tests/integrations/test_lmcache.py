"""The transfer channel in a released LMCache: caches of two processes, and LMCache's own benchmark and server."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import tap
from support import Program, wait_until

import tcpx
import tcpx.integrations.lmcache as integration

SECONDS = 100  # until a process is there, which loads torch
READ_SECONDS = 3.0  # that a read may take at most
COUNT, SIZE = 64, 65536

# A cache with objects: the i-th is full of 3 i + SALT.
OWNER = """
import sys
from test_lmcache import Cache
cache = Cache("{url}", salt={salt})
print("cache", *(object.shm_offset for object in cache.objects), flush=True)
sys.stdin.read()
cache.close()
"""


class Cache:
    """Memory of a released LMCache, and a transfer channel for it."""

    def __init__(self, url, salt=None):
        import torch
        from lmcache.v1.distributed.api import MemoryLayoutDesc
        from lmcache.v1.distributed.config import L1MemoryManagerConfig
        from lmcache.v1.distributed.memory_manager import L1MemoryManager
        from lmcache.v1.distributed.transfer_channel import initialize_transfer_channel_context

        with contextlib.suppress(ValueError):  # it is known already
            integration.register(timeout=READ_SECONDS)
        self.manager = L1MemoryManager(
            L1MemoryManagerConfig(size_in_bytes=2 * COUNT * SIZE, use_lazy=False, init_size_in_bytes=0, align_bytes=4096)
        )
        layout = MemoryLayoutDesc(shapes=[torch.Size([SIZE])], dtypes=[torch.uint8])
        _, self.objects = self.manager.allocate(layout, COUNT)
        for i, one in enumerate(self.objects):
            one.tensor.fill_(0 if salt is None else (3 * i + salt) % 256)
        self.context = initialize_transfer_channel_context(
            "tcpx", l1_memory_desc=self.manager.get_l1_memory_desc(), listen_url=url, advertise_url=url
        )

    def addresses(self, objects):
        return self.context.get_transfer_channel_address([(one.shm_offset, one.shm_byte_length) for one in objects])

    def close(self):
        from lmcache.v1.distributed.transfer_channel import delete_transfer_channel_context

        delete_transfer_channel_context()
        self.manager.free(self.objects)
        self.manager.close()


def free_url():
    with tcpx.listen("127.0.0.1", 0) as listener:
        return f"127.0.0.1:{listener.port}"


class Caches(unittest.TestCase):
    def setUp(self):
        self.url = free_url()
        self.owner = self.start_owner(salt=1)
        self.cache = Cache("127.0.0.1:0")
        self.addCleanup(self.cache.close)
        self.client = self.cache.context.get_transfer_channel_client(self.url)

    def start_owner(self, salt):
        owner = Program(self, OWNER.format(url=self.url, salt=salt))
        line = owner.line()
        while line and not line.startswith("cache "):
            line = owner.line()
        self.assertTrue(line, "the other process has ended")
        self.offsets = [int(word) for word in line.split()[1:]]
        return owner

    def remote(self, numbers):
        from lmcache.v1.distributed.transfer_channel.api import TransferChannelAddress

        return [TransferChannelAddress(self.offsets[i], SIZE) for i in numbers]

    def read(self, numbers):
        """As LMCache does it: asks again and again. What became of each, and in how many seconds."""
        here = self.cache.addresses(self.cache.objects[: len(numbers)])
        begun = time.monotonic()
        task = self.client.submit_read(here, self.remote(numbers))
        results = []
        self.assertTrue(wait_until(lambda: results.append(self.client.query_read_status(task)) or results[-1].is_finished()))
        self.assertEqual(len(results[-1].succeeded_mask), len(numbers))
        return all(results[-1].succeeded_mask), time.monotonic() - begun

    def check(self, numbers, salt=1):
        for one, i in zip(self.cache.objects, numbers, strict=False):
            self.assertTrue(bool((one.tensor == (3 * i + salt) % 256).all()), i)

    def test_reads(self):
        """objects of another cache, in any order; several reads; none"""
        for numbers in (range(COUNT), [5, 63, 0], range(COUNT - 1, -1, -2)):
            self.assertTrue(self.read(numbers)[0])
            self.check(numbers)
        self.assertTrue(self.read([])[0])
        self.assertIs(self.cache.context.get_transfer_channel_client(self.url), self.client)
        self.assertEqual(self.cache.context.get_num_connected_clients(), 1)

    def test_killed(self):
        """the objects of a cache that was killed are missed at once, and found again when it is there again"""
        self.assertTrue(self.read([1, 2])[0])
        self.owner.process.kill()
        self.owner.process.wait()
        for _ in range(3):
            succeeded, seconds = self.read([1, 2])
            self.assertFalse(succeeded)
            self.assertLess(seconds, SECONDS / 2)
        self.start_owner(salt=2)
        self.assertTrue(wait_until(lambda: self.read([1, 2])[0]))
        self.check([1, 2], salt=2)

    def test_stopped(self):
        """those of a cache that does not run are missed when the time is over, and no byte is written afterwards"""
        self.assertTrue(self.read([1])[0])
        self.owner.stop()
        try:
            succeeded, seconds = self.read(range(COUNT))
            self.assertFalse(succeeded)
            self.assertGreaterEqual(seconds, READ_SECONDS)
            for one in self.cache.objects:
                one.tensor.fill_(255)
        finally:
            self.owner.go_on()
        self.assertTrue(wait_until(lambda: self.read([7])[0]))
        time.sleep(0.5)
        self.check([7])
        for one in self.cache.objects[1:]:
            self.assertTrue(bool((one.tensor == 255).all()))

    def test_refused(self):
        """what is outside of a cache, and sizes that differ, are refused in words; a read is told once"""
        from lmcache.v1.distributed.transfer_channel.api import TransferChannelAddress

        with self.assertRaisesRegex(ValueError, "outside of the cache"):
            self.cache.context.get_transfer_channel_address([(2 * COUNT * SIZE, 1)])
        here = self.cache.addresses(self.cache.objects[:1])
        with self.assertRaisesRegex(ValueError, "outside of the cache of 127"):
            self.client.submit_read(here, [TransferChannelAddress(1 << 40, SIZE)])
        with self.assertRaisesRegex(ValueError, "room for"):
            self.client.submit_read(here, [TransferChannelAddress(0, 1)])
        with self.assertRaises(KeyError):
            self.client.query_read_status(12345)
        self.cache.context.remove_transfer_channel_client(self.url)
        self.assertEqual(self.cache.context.get_num_connected_clients(), 0)
        with tcpx.listen("127.0.0.1", 0) as other:
            other.serve(on_session=lambda session: session.note(b"something else"))
            with self.assertRaisesRegex(tcpx.Error, "no LMCache server"):
                self.cache.context.get_transfer_channel_client(f"127.0.0.1:{other.port}")


def start(*arguments):
    output = tempfile.NamedTemporaryFile("w+")
    process = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    return process, output


def said(output):
    with open(output.name) as file:
        return file.read()


def stop(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Programs(unittest.TestCase):
    def test_benchmark(self):
        """the example: LMCache's benchmark, whose client verifies every byte"""
        url = free_url()
        sizes = ["--object-size", "256KB", "--num-objects", "20", "--page-size", "4096"]
        example = "examples/python/lmcache_bench.py"
        server, output = start(example, "server", url, *sizes, "--buffer-size", "64MB", "--server-timeout", str(SECONDS))
        self.addCleanup(stop, server)
        self.assertTrue(wait_until(lambda: "ready" in said(output) or server.poll() is not None))
        client = subprocess.run(
            [sys.executable, example, "client", url, *sizes, "--verify"],
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )
        self.assertIn("verify OK: 20 objects", client.stdout, client.stderr + said(output))

    def test_server(self):
        """`python -m tcpx.integrations.lmcache server` has the channel: another cache connects to it"""
        url, coordinator, port, http = free_url(), free_url(), free_url(), free_url()
        server, output = start(
            "-m", "tcpx.integrations.lmcache", "server", "--p2p-transfer-engine", "tcpx", "--p2p-advertise-url", url,
            "--coordinator-url", f"http://{coordinator}", "--l1-size-gb", "0.1", "--no-l1-use-lazy",
            "--eviction-policy", "LRU", "--host", "127.0.0.1", "--port", port.split(":")[1],
            "--http-port", http.split(":")[1],
        )  # fmt: skip
        self.addCleanup(stop, server)
        cache = Cache("127.0.0.1:0")
        self.addCleanup(cache.close)
        clients = []

        def connect():
            with contextlib.suppress(tcpx.Error):
                clients.append(cache.context.get_transfer_channel_client(url))
            return clients or server.poll() is not None

        wait_until(connect)
        self.assertTrue(clients, said(output))
        self.assertGreater(clients[0].remote_bytes, 1 << 20)


if __name__ == "__main__":
    tap.main()
