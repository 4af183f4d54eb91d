"""The tensor transport in a released Ray: two actors and more on this machine, arrays of numpy, tensors of torch."""

import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import numpy
import ray
import tap
from ray.exceptions import RayError
from support import wait_until

import tcpx.integrations.ray
from tcpx.integrations import joined

HAS_TORCH = importlib.util.find_spec("torch") is not None
SECONDS = 100  # that a call may take: actors are processes that load much
READ_SECONDS = 4.0  # that a read may take at most


def arrays(seed):
    """Many, of all kinds, some of them empty."""
    numbers = numpy.random.default_rng(seed)
    types = ("uint8", "int16", "int64", "float16", "float32", "complex128", "bool")
    made = [numbers.integers(0, 100, 1 + 37 * i).astype(types[i % len(types)]) for i in range(300)]
    made.append(numbers.random((1 << 18, 3)))
    made.append(numpy.empty((0, 7)))
    return made


def tensors(seed):
    import torch

    types = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.bool)
    made = [torch.from_numpy(array) for array in arrays(seed)]
    made += [torch.arange(seed, seed + 1000).to(dtype) for dtype in types]
    made.append(torch.nn.Parameter(torch.ones(33, 5) * seed))
    made.append(torch.tensor(seed))
    return made


MAKERS = {"arrays": arrays, "tensors": tensors}


def digest(objects):
    """Of the bytes and shapes, in their order."""
    sums = hashlib.sha256()
    for one in objects:
        sums.update(f"{tuple(one.shape)} {one.dtype}".encode())
        if not isinstance(one, numpy.ndarray):
            import torch

            one = one.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        sums.update(one.tobytes())
    return sums.hexdigest()


def transport(name):
    from ray.experimental.rdt.util import get_tensor_transport_manager

    return get_tensor_transport_manager(name)


class Actor:
    def make(self, kind, seed):
        return {"kind": kind, "data": MAKERS[kind](seed)}

    def wrong(self, kind):
        if kind == "columns":
            return numpy.ones((8, 8))[:, 1]
        import torch

        return torch.ones(3, 4).T if kind == "transposed" else torch.ones(4, dtype=torch.complex64).conj()

    def digest(self, made):
        return digest(made["data"])

    def published(self, name):
        return len(transport(name)._objects)

    def sessions(self, name):
        return len(transport(name)._sessions)

    def metadata(self, name):
        """Of the only object."""
        ((metadata, _),) = transport(name)._objects.values()
        return metadata

    def read(self, name, metadata):
        return transport(name).recv_multiple_tensors("late", metadata, None)

    def pid(self):
        return os.getpid()


def setUpModule():
    tcpx.integrations.ray.register("ARRAYS", data_type=numpy.ndarray, timeout=READ_SECONDS)
    if HAS_TORCH:
        tcpx.integrations.ray.register("TENSORS", timeout=READ_SECONDS)
    folder = tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True)  # its sockets have short names
    unittest.addModuleCleanup(folder.cleanup)
    unittest.addModuleCleanup(ray.shutdown)
    ray.init(
        _node_ip_address="127.0.0.1", _temp_dir=folder.name, num_cpus=2,
        object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
    )


def get(reference, seconds=SECONDS):
    return ray.get(reference, timeout=seconds)


class Parts(unittest.TestCase):
    def test_joined(self):
        """parts of a list, in its order, for lists of all lengths"""
        for count in (1, 2, 3, 7, 8, 1000):
            self.assertEqual(joined((i,) for i in range(count)), tuple(range(count)))


class Actors(unittest.TestCase):
    """There are two actors, the owner of objects and a reader."""

    name, kind = "ARRAYS", "arrays"

    @classmethod
    def setUpClass(cls):
        cls.owner, cls.reader = cls.actor(), cls.actor()
        get(cls.reader.digest.remote(cls.make(0)))  # by then Ray has made the transport known to both

    @classmethod
    def actor(cls):
        actor = ray.remote(enable_tensor_transport=True, num_cpus=0)(Actor).remote()
        cls.addClassCleanup(ray.kill, actor)
        return actor

    @classmethod
    def make(cls, seed, owner=None):
        return (owner or cls.owner).make.options(tensor_transport=cls.name).remote(cls.kind, seed)

    def expected(self, seed):
        return digest(MAKERS[self.kind](seed))

    def test_many(self):
        """an object of 300 and more, of all types and some empty, arrives as it was, at an actor and at the program"""
        made = self.make(1)
        for _ in range(2):
            self.assertEqual(get(self.reader.digest.remote(made)), self.expected(1))
        self.assertEqual(digest(get(made)["data"]), self.expected(1))

    def test_both_ways(self):
        """each owns objects that the other reads, several at the same time, over one session for each direction"""
        mine = [self.make(seed) for seed in range(4)]
        theirs = [self.make(seed, self.reader) for seed in range(4, 8)]
        found = get([self.reader.digest.remote(made) for made in mine] + [self.owner.digest.remote(made) for made in theirs])
        self.assertEqual(found, [self.expected(seed) for seed in range(8)])
        self.assertEqual(get(self.owner.sessions.remote(self.name)), 1)

    def test_freed(self):
        """windows are closed when Ray frees an object, and a reader that comes later is refused"""
        self.assertTrue(wait_until(lambda: get(self.owner.published.remote(self.name)) == 0))  # of other tests
        made = self.make(2)
        self.assertEqual(get(self.reader.digest.remote(made)), self.expected(2))
        metadata = get(self.owner.metadata.remote(self.name))
        del made
        self.assertTrue(wait_until(lambda: get(self.owner.published.remote(self.name)) == 0))
        with self.assertRaisesRegex(RayError, "not read by tcpx: .*(no window|refused)"):
            get(self.reader.read.remote(self.name, metadata))
        self.assertEqual(get(self.reader.digest.remote(self.make(3))), self.expected(3))

    def test_killed(self):
        """an owner that was killed is an error in words, at once; objects of others go on"""
        owner = self.actor()
        made, other = self.make(4, owner), self.make(5)
        self.assertEqual(get(self.reader.digest.remote(made)), self.expected(4))
        os.kill(get(owner.pid.remote()), signal.SIGKILL)
        begun = time.monotonic()
        with self.assertRaises(RayError):
            get(self.reader.digest.remote(made))
        self.assertLess(time.monotonic() - begun, SECONDS / 2)
        self.assertEqual(get(self.reader.digest.remote(other)), self.expected(5))

    def test_stopped(self):
        """an owner that does not run is an error when the time is over; when it goes on, it is read again"""
        owner = self.actor()
        made, other = self.make(6, owner), self.make(7)
        self.assertEqual(get(self.reader.digest.remote(made)), self.expected(6))
        metadata, pid = get([owner.metadata.remote(self.name), owner.pid.remote()])
        os.kill(pid, signal.SIGSTOP)
        try:
            with self.assertRaisesRegex(RayError, "not read by tcpx: .*time"):
                get(self.reader.read.remote(self.name, metadata))
            self.assertEqual(get(self.reader.digest.remote(other)), self.expected(7))
        finally:
            os.kill(pid, signal.SIGCONT)
        self.assertEqual(get(self.reader.digest.remote(made)), self.expected(6))

    def test_wrong(self):
        """an array with gaps is refused in words where it is made"""
        with self.assertRaisesRegex(RayError, "not contiguous"):
            get(self.reader.digest.remote(self.owner.wrong.options(tensor_transport=self.name).remote("columns")))


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Tensors(Actors):
    name, kind = "TENSORS", "tensors"

    def test_wrong(self):
        """a tensor with gaps, and one that is conjugated later, are refused in words where they are made"""
        for kind, why in (("transposed", "not contiguous"), ("conjugated", "resolve_conj")):
            with self.assertRaisesRegex(RayError, why):
                get(self.owner.wrong.options(tensor_transport=self.name).remote(kind))

    def test_into(self):
        """the program reads into tensors of its own"""
        made = self.make(8)
        into = [t.detach().clone().zero_() for t in tensors(8)]
        ray.experimental.set_target_for_ref(made, into)
        get(made)
        self.assertEqual(digest(into), self.expected(8))


class Example(unittest.TestCase):
    def test_weights(self):
        """weights go from a trainer to generators"""
        said = subprocess.run(
            [sys.executable, "examples/python/ray_weights.py", "--mebibytes", "4", "--address", ray.get_runtime_context().gcs_address],
            capture_output=True, text=True, timeout=2 * SECONDS, check=False,
        )
        self.assertEqual(said.stdout.count("every number is right"), 3, said.stderr)


if __name__ == "__main__":
    tap.main()
