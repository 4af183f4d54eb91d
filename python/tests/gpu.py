"""The Python package with a real GPU: tensors of torch and arrays of cupy, streams, and how fast a model is copied.

    make check-python-gpu            # PYTHON=..., GPU_MODEL_GIB=10

Needs no network. What is not there is skipped in words. Prints TAP, and figures on lines that begin with "# ".
"""

import json
import os
import subprocess
import sys
import time
import unittest

import support
import tap
import tcpx
import test_torch
from support import SECONDS, Ends, library, move
from tcpx import _program

MODEL_GIB = float(os.environ.get("GPU_MODEL_GIB", "10"))
LAYERS = 64
MIB = 1 << 20


def torch_with_gpu():
    torch = library("torch")
    if not torch.cuda.is_available():
        raise unittest.SkipTest("torch sees no GPU")
    return torch


def setUpModule():
    if not [gpu for gpu in tcpx.gpus() if not gpu.get("emulated", False)]:
        raise unittest.SkipTest("there is no GPU")


class Gpu(Ends):
    gpu = 0

    def setUp(self):
        self.torch = torch_with_gpu()
        super().setUp()


class Tensors(test_torch.Tensors):
    """All that test_torch.py has, in GPU memory."""

    gpu = 0
    device = "cuda:0"

    def setUp(self):
        self.torch = torch_with_gpu()
        super().setUp()

    def finish(self):
        self.torch.cuda.synchronize()

    def test_host_and_gpu(self):
        """from the memory of the host to that of the GPU, and back, pinned or not"""
        torch = self.torch
        data = self.random(1000, 1000)
        for place in (torch.empty(data.shape), torch.empty(data.shape, pin_memory=True)):
            self.finish()
            move(self.here, self.there, data, place)
            self.assertTrue(torch.equal(place, data.cpu()))
            back = torch.zeros_like(data)
            self.finish()
            move(self.there, self.here, place, back)
            self.assertTrue(torch.equal(back, data))

    def test_sizes(self):
        """tensors of all sizes, as torch's allocator cuts them from its memory"""
        pieces = [self.random(size) for size in (1, 512, 100_000, 30 * MIB)]
        self.finish()
        for piece in pieces:
            self.move(piece)


class Streams(Gpu):
    def late(self, value, size=4 * MIB):
        """A tensor that gets its value when the current stream has spun for about a tenth of a second."""
        tensor = self.torch.zeros(size, device="cuda:0")
        self.torch.cuda.synchronize()
        self.torch.cuda._sleep(200_000_000)
        tensor.fill_(value)
        return tensor

    def test_current(self):
        """after="current" waits for what torch has put on its stream, and the call does not"""
        torch = self.torch
        move(self.here, self.there, torch.ones(1000, device="cuda:0"), torch.ones(1000, device="cuda:0"))
        for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                data, into = self.late(7), torch.zeros(4 * MIB, device="cuda:0")
                stream.wait_stream(torch.cuda.default_stream())
                begun = time.monotonic()
                send = self.here.send(data, after="current")
                called = time.monotonic() - begun
                receive = self.there.receive(into, after="current")
                send.wait(SECONDS)
                receive.wait(SECONDS)
                took = time.monotonic() - begun
            self.assertTrue(bool((into == 7).all()))
            self.assertLess(called, took / 2)

    def test_stream_and_event(self):
        """a stream as an object and as a number, and an event"""
        torch = self.torch
        stream = torch.cuda.Stream()
        for value, after in enumerate((lambda: stream, lambda: stream.cuda_stream, lambda: self.recorded(stream)), 1):
            with torch.cuda.stream(stream):
                data = self.late(value)
            into = torch.zeros_like(data)
            torch.cuda.default_stream().synchronize()
            receive = self.there.receive(into)
            self.here.send(data, after=after()).wait(SECONDS)
            receive.wait(SECONDS)
            self.assertTrue(bool((into == value).all()))

    def recorded(self, stream):
        event = self.torch.cuda.Event()
        event.record(stream)
        return event

    def test_read(self):
        """a read does not write into memory that the stream still reads"""
        torch = self.torch
        theirs = torch.full((4 * MIB,), 5.0, device="cuda:0")
        own, kept = torch.full_like(theirs, 1), torch.empty_like(theirs)
        torch.cuda.synchronize()
        with tcpx.Window(theirs, read=True) as window:
            torch.cuda._sleep(200_000_000)
            kept.copy_(own)
            self.here.read(own, self.here.remote(window.key), after="current").wait(SECONDS)
        self.assertTrue(bool((kept == 1).all()))
        self.assertTrue(bool((own == 5).all()))

    def test_done_on_stream(self):
        """what is put on a stream after done(stream) sees what was received"""
        torch = self.torch
        data, into = torch.full((16 * MIB,), 3.0, device="cuda:0"), torch.zeros(16 * MIB, device="cuda:0")
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        receive = self.there.receive(into)
        send = self.here.send(data)
        self.assertTrue(support.wait_until(lambda: receive.done(stream)))
        with torch.cuda.stream(stream):
            found = into.sum()
        send.wait(SECONDS)
        stream.synchronize()
        self.assertEqual(int(found), 3 * 16 * MIB)


class ExpandableSegments(unittest.TestCase):
    TEXT = """
import torch, tcpx, support
mib = 1 << 20
here, there = support.pair(gpu=0)
small = [torch.zeros(30 * mib, dtype=torch.uint8, device="cuda:0") for _ in range(4)]
del small[1]
data = torch.randint(0, 256, (200 * mib,), dtype=torch.uint8, device="cuda:0")
into = torch.zeros_like(data)
torch.cuda.synchronize()
support.move(here, there, data, into)
assert torch.equal(data, into)
into.zero_()
torch.cuda.synchronize()
with tcpx.Window(data[mib:-mib], read=True) as window:
    here.read(into[mib:-mib], here.remote(window.key)).wait(support.SECONDS)
assert torch.equal(data[mib:-mib], into[mib:-mib])
print("moved", torch.cuda.memory_stats()["allocated_bytes.all.current"] // mib, "MiB")
"""

    def test_moved(self):
        """tensors that lie in several pieces of memory, as torch's expandable segments have them"""
        torch_with_gpu()
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            environment = {**os.environ, name: "expandable_segments:True", "PYTHONPATH": os.pathsep.join(sys.path)}
            said = subprocess.run(
                [sys.executable, "-c", self.TEXT],
                capture_output=True, text=True, timeout=4 * SECONDS, env=environment, check=False,
            )  # fmt: skip
            self.assertIn("moved", said.stdout, said.stderr)


class Cupy(Ends):
    gpu = 0

    def setUp(self):
        self.cupy = library("cupy")
        super().setUp()

    def test_arrays(self):
        """arrays of cupy of several types, and what is refused of them"""
        cupy = self.cupy
        for name in ("bool", "uint8", "float16", "float32", "complex128", "int64"):
            data = cupy.random.randint(0, 2, (100, 33)).astype(name)
            into = cupy.zeros_like(data)
            cupy.cuda.Device().synchronize()
            move(self.here, self.there, data, into)
            self.assertTrue(bool((data == into).all()), name)
        for wrong in (data.T, data[:, 1], data[::2]):
            with self.assertRaisesRegex(TypeError, "not contiguous"):
                self.here.send(wrong)

    def test_stream(self):
        """a stream of cupy"""
        cupy = self.cupy
        stream = cupy.cuda.Stream(non_blocking=True)
        large = cupy.ones((4096, 4096), dtype="float32")
        into = cupy.zeros_like(large)
        cupy.cuda.Device().synchronize()
        with stream:
            data = large
            for _ in range(20):
                data = data @ large / 4096
        receive = self.there.receive(into)
        self.here.send(data, after=stream).wait(SECONDS)
        receive.wait(SECONDS)
        self.assertTrue(bool((abs(into - 1) < 0.01).all()))


# --- how fast ---------------------------------------------------------------------------------------------------

# Holds a model until its input ends: says a port, and the keys of its layers.
MODEL = """
import sys, torch, tcpx
layers, elements, device, gpu = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], None if sys.argv[3] == "cpu" else 0
state = {f"layer {i}": torch.full((elements,), float(i), dtype=torch.bfloat16, device=device) for i in range(layers)}
if gpu is not None:
    torch.cuda.synchronize()
windows = [tcpx.Window(tensor, read=True) for tensor in state.values()]
listener = tcpx.listen("127.0.0.1", 0, gpu=gpu, windows=True)
listener.serve()
print(listener.port, *(window.key.hex() for window in windows), flush=True)
sys.stdin.read()
"""


class Model:
    """A state_dict of `gib` in this process, and one like it in another that it is read from."""

    def __init__(self, test, torch, gib, device):
        elements = int(gib * (1 << 30)) // 2 // LAYERS
        arguments = [sys.executable, "-c", MODEL, str(LAYERS), str(elements), device]
        self.owner = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        test.addCleanup(self.end)
        port, *keys = self.owner.stdout.readline().split()
        self.state = [torch.zeros(elements, dtype=torch.bfloat16, device=device) for _ in range(LAYERS)]
        if device != "cpu":
            torch.cuda.synchronize()
        self.session = tcpx.connect("127.0.0.1", int(port), gpu=None if device == "cpu" else 0)
        self.remotes = [self.session.remote(bytes.fromhex(key)) for key in keys]
        self.windows = [tcpx.Window(tensor) for tensor in self.state]
        self.nbytes = sum(tensor.nbytes for tensor in self.state)

    def read(self):
        """GB/s of all layers, each one read, all at once."""
        begun = time.perf_counter()
        transfers = [
            self.session.read(window, remote, timeout=20 * SECONDS)
            for window, remote in zip(self.windows, self.remotes, strict=True)
        ]
        for transfer in transfers:
            transfer.wait()
        return self.nbytes / (time.perf_counter() - begun) / 1e9

    def is_right(self):
        return all(bool((tensor == i).all()) for i, tensor in enumerate(self.state))

    def end(self):
        self.owner.kill()
        self.owner.communicate()


def perf(*arguments):
    """GB/s by the program."""
    said = subprocess.run(
        [_program.path(), "perf", "--loopback", "--json", *arguments],
        stdout=subprocess.PIPE, text=True, check=True, timeout=20 * SECONDS,
    ).stdout  # fmt: skip
    return json.loads(said)["rows"][0]["gigabytes_per_second"]


def figure(text):
    print("#", text, flush=True)


class Rates(unittest.TestCase):
    device = "cuda:0"
    perf_memory = ()
    rounds = 5

    def setUp(self):
        self.torch = torch_with_gpu()
        free = self.torch.cuda.mem_get_info()[0]
        if free < 2.5 * MODEL_GIB * (1 << 30):
            self.skipTest(f"{free >> 30} GiB of the GPU are free, and two models of {MODEL_GIB:g} GiB and tcpx perf need more")

    def test_model(self):
        """a state_dict of GPU_MODEL_GIB is read from another process, beside the same bytes by tcpx perf"""
        model = Model(self, self.torch, MODEL_GIB, self.device)
        size = model.nbytes // LAYERS
        model.read()
        pairs = []
        for _ in range(self.rounds):
            for tensor in model.state:
                tensor.zero_()
            if self.device != "cpu":
                self.torch.cuda.synchronize()
            rate = model.read()
            self.assertTrue(model.is_right(), "numbers arrived wrong")
            beside = perf("--read", "--size", str(size * 8), "--accesses", "8", "--iters", "10", *self.perf_memory)
            pairs.append((rate, beside))
        figure(f"a state_dict of {model.nbytes / (1 << 30):g} GiB in {LAYERS} tensors on {self.device}, GB/s")
        for name, values in (
            ("Python", [rate for rate, _ in pairs]),
            ("tcpx perf --read, 8 of a tensor's size at once", [beside for _, beside in pairs]),
            ("ratio within a round", [rate / beside for rate, beside in pairs]),
        ):
            values.sort()
            figure(f"  {name}: {values[len(values) // 2]:.2f} ({values[0]:.2f} to {values[-1]:.2f})")


if __name__ == "__main__":
    tap.main()
