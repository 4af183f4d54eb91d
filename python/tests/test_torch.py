"""Tensors of torch, on the host: all types, views, gradients, and what is refused. gpu.py has the same on a GPU."""

import gc
import weakref

import support
import tap
import tcpx
from support import SECONDS, Ends, library, move

TYPES = (
    "bool", "uint8", "int8", "uint16", "int16", "int32", "uint64", "int64", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
)  # fmt: skip


class Tensors(Ends):
    device = "cpu"

    def setUp(self):
        self.torch = library("torch")
        super().setUp()

    def bytes_of(self, tensor):
        """As numbers, since not all types can be compared."""
        return tensor.detach().contiguous().reshape(-1).view(self.torch.uint8)

    def random(self, *shape, dtype="float32"):
        """Of any bytes: what they mean is nobody's business here."""
        torch = self.torch
        dtype = getattr(torch, dtype)
        size = torch.empty(0, dtype=dtype).element_size()
        last = shape[-1] * size
        made = torch.randint(0, 2 if dtype == torch.bool else 256, (*shape[:-1], last), dtype=torch.uint8)
        return made.view(dtype).to(self.device)

    def check(self, into, data):
        what = f"{data.dtype}, {tuple(data.shape)}"
        self.assertTrue(self.torch.equal(self.bytes_of(into), self.bytes_of(data)), what)

    def move(self, data, into=None):
        """By a send, a read and a write; the same bytes arrive by each."""
        torch = self.torch
        into = torch.empty_like(data) if into is None else into
        self.finish()
        move(self.here, self.there, data, into)
        self.check(into, data)
        self.bytes_of(into.detach()).zero_()
        self.finish()
        with tcpx.Window(data, read=True) as window:
            self.here.read(into, self.here.remote(window.key)).wait(SECONDS)
        self.check(into, data)
        self.bytes_of(into.detach()).zero_()
        self.finish()
        with tcpx.Window(into, write=True) as window:
            self.here.write(data, self.here.remote(window.key)).wait(SECONDS)
        self.check(into, data)

    def finish(self):
        """What was put on the GPU."""

    def test_types(self):
        """tensors of each type arrive with every byte as it was"""
        tried = [name for name in TYPES if hasattr(self.torch, name)]
        self.assertGreater(len(tried), 12)
        for name in tried:
            self.move(self.random(10, 100, dtype=name))

    def test_gradients(self):
        """weights and other tensors that need gradients, and gradients themselves"""
        torch = self.torch
        weight = torch.nn.Parameter(self.random(32, 16))
        self.move(weight)
        self.move(weight, torch.nn.Parameter(torch.empty_like(weight)))
        result = torch.ones(16, device=self.device) @ weight.T
        self.move(result)
        result.sum().backward()
        self.move(weight.grad)
        with torch.inference_mode():
            self.move(torch.ones(100, device=self.device) * 2)

    def test_views(self):
        """parts of a tensor without gaps are moved, and nothing beside them"""
        data = self.random(8, 4, 16)
        for view in (data[3], data[2:5], data[7, 1:3], data.view(-1)[5:77], data.view(32, 16), data.unsqueeze(0)):
            self.move(view)
        into = self.torch.zeros_like(data)
        self.move(data[3:5], into[3:5])
        self.assertEqual(int(into[:3].abs().sum() + into[5:].abs().sum()), 0)
        self.move(self.random(1)[0])

    def test_gaps(self):
        """tensors with gaps, in another order or repeated are refused, and nothing is copied silently"""
        data = self.random(4, 6, 8, 2)
        wrong = [data[:, 1], data[:, :, ::2], data.transpose(0, 1), data[0, 0, 0].expand(3, 2)]
        wrong.append(data.contiguous(memory_format=self.torch.channels_last))
        for view in wrong:
            for use in (self.here.send, self.here.receive, tcpx.Window):
                with self.assertRaisesRegex(TypeError, "not contiguous"):
                    use(view)
        self.move(data.transpose(0, 1).contiguous())

    def test_marked(self):
        """tensors whose bytes are not their numbers are refused, with what to do"""
        data = self.random(10, dtype="complex64")
        with self.assertRaisesRegex(TypeError, r"is_conj\(\).*resolve_conj\(\)"):
            self.here.send(data.conj())
        with self.assertRaisesRegex(TypeError, r"is_neg\(\).*resolve_neg\(\)"):
            self.here.send(data.conj().imag)
        self.move(data.conj().resolve_conj())

    def test_no_memory(self):
        """tensors without memory of their own, and sparse ones, are refused; empty ones are moved"""
        torch = self.torch
        with self.assertRaisesRegex(TypeError, "meta"):
            self.here.send(torch.empty(3, device="meta"))
        with self.assertRaises((RuntimeError, NotImplementedError, TypeError)):
            self.here.send(torch.eye(3, device=self.device).to_sparse())
        empty = torch.empty((0, 5), device=self.device)
        move(self.here, self.there, empty, torch.empty_like(empty))

    def test_cache(self):
        """blocks of a KV cache, by numbers in tensors"""
        torch = self.torch
        cache, own = self.random(64, 2, 16, 8, dtype="bfloat16"), torch.zeros((64, 2, 16, 8), dtype=torch.bfloat16)
        own = own.to(self.device)
        self.finish()
        block = cache[0].nbytes
        window, mine = tcpx.Window(cache, read=True, block=block), tcpx.Window(own, block=block)
        remote = self.here.remote(window.key, block=block)
        wanted = torch.tensor([9, 63, 0])
        for places in (torch.tensor([1, 2, 3], dtype=torch.int32), torch.tensor([40, 30, 20], device=self.device)):
            self.here.read(mine.blocks(places), remote.blocks(wanted)).wait(SECONDS)
            self.check(own[places.long()], cache[wanted.to(self.device)])
        with self.assertRaises(TypeError):
            mine.blocks(torch.tensor(3))
        with self.assertRaises(TypeError):
            mine.blocks(torch.tensor([1.5]))

    def test_state_dict(self):
        """a state_dict of 100 tensors in one read"""
        torch = self.torch
        model = torch.nn.Sequential(*(torch.nn.Linear(20 + i, 21 + i) for i in range(50))).to(self.device)
        other = torch.nn.Sequential(*(torch.nn.Linear(20 + i, 21 + i) for i in range(50))).to(self.device)
        theirs, ours = model.state_dict(), other.state_dict()
        self.finish()
        windows = {name: tcpx.Window(tensor, read=True) for name, tensor in theirs.items()}
        here = there = None
        for name, tensor in ours.items():
            part = self.here.remote(windows[name].key)[0 : tensor.nbytes]
            mine = tcpx.Window(tensor)[:]
            here, there = (mine, part) if here is None else (here + mine, there + part)
        self.here.read(here, there).wait(SECONDS)
        for name, tensor in theirs.items():
            self.check(ours[name], tensor)

    def test_kept(self):
        """a tensor is kept until its transfer is done, or its window closed, and no longer"""
        data = self.random(1000)
        expected, seen = data.clone(), weakref.ref(data)
        send = self.here.send(data)
        del data
        gc.collect()
        into = self.torch.zeros(1000, device=self.device)
        self.there.receive(into).wait(SECONDS)
        send.wait(SECONDS)
        self.check(into, expected)
        self.assertTrue(support.wait_until(lambda: seen() is None))
        window = tcpx.Window(into, read=True)
        seen = weakref.ref(into)
        del into
        gc.collect()
        self.assertIsNotNone(seen())
        window.close()
        self.assertIsNone(seen())


if __name__ == "__main__":
    tap.main()
