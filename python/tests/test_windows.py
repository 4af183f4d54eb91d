"""Windows: reads and writes by blocks and ranges, notes, keys, deadlines, closing."""

import array
import threading

import support
import tap
import tcpx
from support import SECONDS, Ends, Program, pair

BLOCK = 64


def numbered(blocks):
    """Each block is full of its number."""
    return bytearray(b"".join(bytes([i]) * BLOCK for i in range(blocks)))


class Accesses(Ends):
    def setUp(self):
        super().setUp()
        self.theirs = numbered(100)
        self.window = tcpx.Window(self.theirs, read=True, write=True, block=BLOCK)
        self.remote = self.here.remote(self.window.key, block=BLOCK)
        self.mine = bytearray(100 * BLOCK)
        self.own = tcpx.Window(self.mine, block=BLOCK)

    def test_blocks(self):
        """blocks are read into other places"""
        self.here.read(self.own.blocks([5, 0]), self.remote.blocks([7, 99])).wait(SECONDS)
        self.assertEqual(self.mine[5 * BLOCK : 6 * BLOCK], bytes([7]) * BLOCK)
        self.assertEqual(self.mine[:BLOCK], bytes([99]) * BLOCK)
        self.assertEqual(self.mine[BLOCK : 5 * BLOCK], bytes(4 * BLOCK))

    def test_numbers(self):
        """numbers of blocks come as list, tuple, range and arrays of 32 and 64 bits"""
        for numbers in ([3, 1], (3, 1), range(3, 0, -2), *(array.array(t, [3, 1]) for t in "iIlLqQ")):
            parts = self.remote.blocks(numbers)
            self.assertEqual((len(parts), parts.nbytes), (2, 2 * BLOCK))
            self.here.read(self.own[: 2 * BLOCK], parts).wait(SECONDS)
            self.assertEqual(self.mine[: 2 * BLOCK], bytes([3]) * BLOCK + bytes([1]) * BLOCK)

    def test_wrong_numbers(self):
        """numbers that are no blocks are refused"""
        for wrong in ([100], [-1], [1 << 62], array.array("q", [-1]), array.array("Q", [(1 << 64) - 1])):
            with self.assertRaisesRegex(IndexError, r"there are 0 to 99", msg=wrong):
                self.own.blocks(wrong)
        for wrong in (array.array("h", [1]), array.array("d", [1]), ["1"], [1.5], 5, None, b"1"):
            with self.assertRaises(TypeError, msg=wrong):
                self.own.blocks(wrong)
        with self.assertRaises(OverflowError):
            self.own.blocks([1 << 64])
        with self.assertRaisesRegex(tcpx.UsageError, "block="):
            tcpx.Window(self.mine).blocks([0])

    def test_list_that_changes(self):
        """a list that gets shorter while its numbers are asked is an error, and no crash"""
        numbers = []

        class Shrinking:
            def __index__(self):
                numbers.clear()
                return 0

        numbers.extend([Shrinking(), 1, 2])
        self.assertEqual(len(self.own.blocks(numbers)), 3)  # which are those that it had

    def test_ranges(self):
        """ranges of bytes, also from the end"""
        self.here.read(self.own[10:20], self.remote[640:650]).wait(SECONDS)
        self.assertEqual(self.mine[9:21], b"\0" + bytes([10]) * 10 + b"\0")
        self.assertEqual(self.own[:].nbytes, len(self.mine))
        self.assertEqual(self.own[-10:].nbytes, 10)
        for wrong in (lambda: self.own[5:99999], lambda: self.own[9:5], lambda: self.remote[-1:3]):
            self.assertRaises(IndexError, wrong)
        self.assertRaises(TypeError, lambda: self.own[5])
        self.assertRaisesRegex(tcpx.UsageError, "needs an end", lambda: self.remote[5:])
        self.assertRaisesRegex(tcpx.UsageError, "no step", lambda: self.own[::2])

    def test_objects(self):
        """an object with memory can take the place of a window, and a remote that of its first bytes"""
        into = bytearray(2 * BLOCK)
        self.here.read(into, self.remote).wait(SECONDS)
        self.assertEqual(into, self.theirs[: 2 * BLOCK])
        self.here.write(b"written", self.remote[0:7]).wait(SECONDS)
        self.assertEqual(self.theirs[:8], b"written\0")

    def test_cut_differently(self):
        """the two sides are cut differently, and several windows are one list"""
        second = tcpx.Window(bytearray(30))
        here = second[0:30] + self.own[0:0] + self.own.blocks([4]) + second[5:15]
        there = self.remote[128:178] + self.remote[640:694]
        self.assertEqual(here.nbytes, there.nbytes)
        self.here.read(here, there).wait(SECONDS)
        expected = bytes([2]) * 50 + bytes([10]) * 54
        self.assertEqual(self.mine[4 * BLOCK : 5 * BLOCK], expected[30:94])

    def test_sums(self):
        """sums that are not equal are refused with both"""
        with self.assertRaisesRegex(tcpx.UsageError, "64 bytes here, and 128 there"):
            self.here.read(self.own.blocks([0]), self.remote.blocks([1, 2]))

    def test_write_and_notes(self):
        """the note of a write comes with its bytes, that of a read to the other side"""
        self.mine[:BLOCK] = b"w" * BLOCK
        self.here.write(self.own.blocks([0]), self.remote.blocks([50]), note=b"first").wait(SECONDS)
        self.assertEqual(self.there.notes(SECONDS), [b"first"])
        self.assertEqual(self.theirs[50 * BLOCK : 51 * BLOCK], b"w" * BLOCK)
        self.here.read(self.own.blocks([0]), self.remote.blocks([1]), note=bytearray()).wait(SECONDS)
        self.assertEqual(self.there.notes(SECONDS), [b""])
        self.assertEqual(self.there.notes(), [])
        self.there.note(b"back")
        self.assertEqual(self.here.notes(SECONDS), [b"back"])

    def test_note_alone(self):
        """a list without parts moves the note only"""
        nothing = self.own.blocks([])
        self.here.read(nothing, self.remote.blocks([]), note=b"only").wait(SECONDS)
        self.assertEqual(self.there.notes(SECONDS), [b"only"])

    def test_notes_have_limits(self):
        """a note that is too long is refused, and so are more than the peer takes, in time"""
        with self.assertRaisesRegex(tcpx.UsageError, "32768"):
            self.here.note(bytes(32769))
        with self.assertRaises(tcpx.Timeout):
            for _ in range(100):
                self.here.note(bytes(32768), timeout=0)
        self.assertGreater(len(self.there.notes(SECONDS)), 0)
        self.here.note(b"room again", timeout=SECONDS)

    def test_wrong_key(self):
        """a wrong key is refused in words, and the session goes on"""
        key = bytearray(self.window.key)
        key[30] ^= 1
        with self.assertRaisesRegex(tcpx.Error, "no such window, or a wrong key"):
            self.here.read(self.own.blocks([0]), self.here.remote(key, block=BLOCK).blocks([0])).wait(SECONDS)
        for wrong in (b"", bytes(64)):
            with self.assertRaisesRegex(tcpx.UsageError, "key"):
                self.here.remote(wrong)
        self.here.read(self.own.blocks([0]), self.remote.blocks([1])).wait(SECONDS)

    def test_permission(self):
        """a window that may only be read cannot be written, and one for this side has no peers"""
        readable = tcpx.Window(self.theirs, read=True)
        with self.assertRaisesRegex(tcpx.UsageError, "cannot be written"):
            self.here.write(b"1234", self.here.remote(readable.key)[0:4]).wait(SECONDS)
        closed = tcpx.Window(self.theirs)
        with self.assertRaisesRegex(tcpx.UsageError, "cannot be read"):
            self.here.read(bytearray(4), self.here.remote(closed.key)[0:4]).wait(SECONDS)

    def test_read_only(self):
        """read-only memory can be read by peers, but not written by anybody"""
        window = tcpx.Window(b"constant", read=True)
        into = bytearray(8)
        self.here.read(into, self.here.remote(window.key)).wait(SECONDS)
        self.assertEqual(into, b"constant")
        with self.assertRaisesRegex(TypeError, "read-only"):
            tcpx.Window(b"constant", write=True)
        for wrong in (b"constant", tcpx.Window(b"constant")):
            with self.assertRaisesRegex(TypeError, "read-only"):
                self.here.read(wrong, self.remote[0:8])

    def test_mixed_up(self):
        """sides and sessions that are mixed up are refused"""
        other, there = support.pair()
        with self.assertRaisesRegex(TypeError, "parts of a Window"):
            self.here.read(self.remote[0:4], self.remote[0:4])
        with self.assertRaisesRegex(TypeError, "the other side is a Remote"):
            self.here.read(self.own, bytearray(4))
        with self.assertRaisesRegex(TypeError, "parts of a Remote"):
            self.here.read(self.own[0:4], self.own[0:4])
        with self.assertRaisesRegex(tcpx.UsageError, "another session"):
            other.read(self.own[0:4], self.remote[0:4])
        other.close()
        there.close()

    def test_not_allowed(self):
        """a peer that does not let others into its windows says so"""
        here, there = support.pair(windows=False)
        with self.assertRaisesRegex(tcpx.UsageError, "does not allow access to its windows"):
            here.remote(self.window.key)
        here.close()
        there.close()

    def test_closed(self):
        """a closed window refuses here and there, and lets go of its object"""
        self.window.close()
        self.window.close()
        with self.assertRaisesRegex(tcpx.Error, "no such window"):
            self.here.read(bytearray(4), self.remote[0:4]).wait(SECONDS)
        with self.assertRaisesRegex(tcpx.UsageError, "the window is closed"):
            self.window.key
        self.theirs.extend(b"may grow again: no buffer is exported")
        with self.own:
            pass
        with self.assertRaisesRegex(tcpx.UsageError, "the window is closed"):
            self.here.read(self.own[0:4], self.remote[0:4])

    def test_threads(self):
        """8 threads read and write at the same time through one session"""
        wrong = []

        def work(number):
            into = bytearray(BLOCK)
            for i in range(50):
                block = (number * 12 + i) % 100
                self.here.read(into, self.remote.blocks([block])).wait(SECONDS)
                if into != bytes([block]) * BLOCK:
                    wrong.append(block)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        self.assertEqual(wrong, [])
        self.assertEqual(self.here.statistics()["reads"], 400)


class Gpus(Ends):
    gpu = 0

    def test_gpu_window(self):
        """blocks of GPU memory go to GPU memory and to host memory"""
        cache, own = tcpx.GpuMemory(100 * BLOCK), tcpx.GpuMemory(10 * BLOCK)
        cache.write(numbered(100))
        window = tcpx.Window(cache, read=True, block=BLOCK)
        mine = tcpx.Window(own, block=BLOCK)
        remote = self.here.remote(window.key, block=BLOCK)
        self.here.read(mine.blocks([3, 1]), remote.blocks([77, 78]), after=0).wait(SECONDS)
        self.assertEqual(own.read(3 * BLOCK, BLOCK), bytes([77]) * BLOCK)
        into = bytearray(BLOCK)
        self.here.read(into, remote.blocks([9])).wait(SECONDS)
        self.assertEqual(into, bytes([9]) * BLOCK)
        with self.assertRaisesRegex(tcpx.UsageError, "in one access"):
            self.here.read(mine.blocks([0]) + tcpx.Window(into)[:], remote[0 : 2 * BLOCK])

    def test_no_kernels(self):
        """with no_kernels small blocks of GPU memory arrive, too"""
        here, there = pair(gpu=0, no_kernels=True)
        with here, there:
            cache, own = tcpx.GpuMemory(100 * BLOCK), tcpx.GpuMemory(100 * BLOCK)
            cache.write(numbered(100))
            window, mine = tcpx.Window(cache, read=True), tcpx.Window(own, block=BLOCK)
            remote = here.remote(window.key, block=BLOCK)
            here.read(mine.blocks(range(0, 100, 2)), remote.blocks(range(99, 49, -1))).wait(SECONDS)
            for block in range(50):
                self.assertEqual(own.read(2 * block * BLOCK, BLOCK), bytes([99 - block]) * BLOCK)


STOPPED = """
import sys, tcpx
memory = bytearray(1 << 20)
window = tcpx.Window(memory, read=True)
with tcpx.listen("127.0.0.1", 0, windows=True) as listener:
    print(listener.port, window.key.hex(), flush=True)
    session = listener.accept(30)
sys.stdin.readline()
"""


class Processes(Ends):
    def test_deadline(self):
        """a read from a peer that is stopped ends in time, when that goes on, with the library's text"""
        program = Program(self, STOPPED)
        port, key = program.line().split()
        session = tcpx.connect("127.0.0.1", int(port), windows=True)
        remote = session.remote(bytes.fromhex(key))
        session.read(bytearray(8), remote).wait(SECONDS)
        program.stop()
        read = session.read(bytearray(1 << 20), remote, timeout=0.05)
        with self.assertRaises(tcpx.Timeout):
            read.wait(0.5)  # the peer cannot confirm
        program.go_on()
        with self.assertRaisesRegex(TimeoutError, "a read of 1048576 bytes was cancelled: .*in time"):
            read.wait(SECONDS)
        session.close()
        program.end()


if __name__ == "__main__":
    tap.main()
