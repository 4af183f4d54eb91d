"""numpy, and jax where it is: what README and examples promise of them."""

import tap
import tcpx
from support import SECONDS, Ends, library, move


class Numpy(Ends):
    def setUp(self):
        self.numpy = library("numpy")
        super().setUp()

    def test_arrays(self):
        """arrays of all types of numbers"""
        for name in ("bool", "int8", "uint16", "int64", "float16", "float64", "complex128"):
            data = self.numpy.arange(1000).astype(name).reshape(10, 100)
            into = self.numpy.empty_like(data)
            move(self.here, self.there, data, into)
            self.assertTrue((data == into).all(), name)

    def test_odd_types(self):
        """times have no letter in a buffer, and go by the array interface"""
        data = self.numpy.arange(100).astype("datetime64[s]")
        into = self.numpy.empty_like(data)
        move(self.here, self.there, data, into)
        self.assertTrue((data == into).all())

    def test_refused(self):
        """columns, transposed and read-only arrays are refused where they would be wrong"""
        data = self.numpy.zeros((10, 10))
        for wrong in (data[:, 1], data.T, data[::2]):
            with self.assertRaisesRegex(TypeError, "not contiguous"):
                self.here.send(wrong)
        data.flags.writeable = False
        with self.assertRaisesRegex(TypeError, "read-only"):
            self.here.receive(data)

    def test_blocks(self):
        """blocks of a cache by arrays of numbers"""
        cache = self.numpy.arange(64 * 128, dtype="int32").reshape(64, 128)
        own = self.numpy.zeros_like(cache)
        window = tcpx.Window(cache, read=True, block=cache[0].nbytes)
        mine = tcpx.Window(own, block=own[0].nbytes)
        remote = self.here.remote(window.key, block=cache[0].nbytes)
        wanted = self.numpy.array([9, 63, 0])
        places = self.numpy.array([1, 2, 3], dtype="int32")
        self.here.read(mine.blocks(places), remote.blocks(wanted)).wait(SECONDS)
        self.assertTrue((own[places] == cache[wanted]).all())
        self.here.read(mine.blocks(list(places)), remote.blocks(wanted[::-1].copy())).wait(SECONDS)
        self.assertTrue((own[places] == cache[wanted[::-1]]).all())


class Jax(Ends):
    def test_arrays(self):
        """arrays of jax are sent"""
        jax = library("jax")
        data = jax.numpy.arange(1000.0)
        into = bytearray(data.nbytes)
        move(self.here, self.there, data, into)


if __name__ == "__main__":
    tap.main()
