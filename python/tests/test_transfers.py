"""Sends and receives: of every kind of object, in order, cancelled, failing, between processes."""

import array
import ctypes
import mmap
import re
import signal
import sys
import threading
import time
import types

import support
import tap
import tcpx
from support import SECONDS, Ends, Interface, Program, Tensor, move


def address_of(buffer):
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))


def cancelled_while(transfer, call):
    """Whether a thread that waits for the transfer is told that the call has cancelled it."""
    said = []

    def wait():
        try:
            transfer.wait()
        except tcpx.Cancelled as error:
            said.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    call()
    thread.join(SECONDS)
    return not thread.is_alive() and len(said) == 1


class Objects(Ends):
    def test_bytes(self):
        """bytes arrive in a bytearray"""
        into = bytearray(5)
        move(self.here, self.there, b"hello", into)
        self.assertEqual(into, b"hello")

    def test_many_kinds(self):
        """array, mmap and memoryview are sent from and received into"""
        data = bytes(range(256)) * 64
        with mmap.mmap(-1, len(data)) as shared:
            numbers = array.array("q", bytes(len(data)))
            move(self.here, self.there, memoryview(data), shared)
            move(self.there, self.here, shared, numbers)
            self.assertEqual(numbers.tobytes(), data)

    def test_nothing(self):
        """no bytes are a transfer, too"""
        move(self.here, self.there, b"", bytearray())

    def test_large(self):
        """64 MiB arrive whole"""
        data = bytearray(64 << 20)
        data[:: 1 << 12] = bytes(i % 251 for i in range(1 << 14))
        into = bytearray(len(data))
        move(self.here, self.there, data, into)
        self.assertEqual(into, data)

    def test_tensor(self):
        """a tensor as torch's, by data_ptr()"""
        memory = bytearray(b"tensor")
        into = bytearray(6)
        move(self.here, self.there, Tensor(address_of(memory), 6), into)
        self.assertEqual(into, b"tensor")

    def test_array_interface(self):
        """an array by __array_interface__, as numpy's of types that no buffer can name"""
        memory = bytearray(b"abcdef")
        data = (address_of(memory), False)
        into = bytearray(6)
        move(self.here, self.there, Interface(memory, shape=(3, 1), typestr="|V2", data=data), into)
        self.assertEqual(into, b"abcdef")
        good = Interface(memory, shape=(3, 2), strides=(2, 1), typestr="|u1", data=data)
        move(self.here, self.there, good, into)

    def test_dlpack(self):
        """an array by __dlpack__, as jax's; it is read-only"""
        import dlpack

        into = bytearray(8)
        exporter = dlpack.Exporter(b"dlpacked")
        move(self.here, self.there, exporter, into)
        self.assertEqual(into, b"dlpacked")
        self.assertEqual(exporter.given, exporter.released)
        with self.assertRaisesRegex(TypeError, "read-only"):
            self.here.receive(exporter)
        self.assertEqual(exporter.given, exporter.released)

    def test_not_contiguous(self):
        """what has gaps is refused in words"""
        memory = bytearray(16)
        data = (address_of(memory), False)
        for refused in (
            memoryview(memory)[::2],
            Tensor(data[0], 16, contiguous=False),
            Interface(memory, shape=(2, 2), strides=(4, 1), typestr="|u1", data=data),
        ):
            with self.assertRaisesRegex(TypeError, "not contiguous"):
                self.here.send(refused)

    def test_marked(self):
        """a tensor whose bytes are not its numbers is refused, with what to do"""
        memory = bytearray(16)
        for marked, cure in (("is_conj", "resolve_conj"), ("is_neg", "resolve_neg")):
            tensor = Tensor(address_of(memory), 16)
            tensor.is_conj = tensor.is_neg = lambda: False
            self.here.send(tensor)
            setattr(tensor, marked, lambda: True)
            for use in (self.here.send, self.here.receive, tcpx.Window):
                with self.assertRaisesRegex(TypeError, rf"{marked}\(\) holds: move what {cure}\(\)"):
                    use(tensor)
            setattr(tensor, marked, lambda: [][1])
            with self.assertRaises(IndexError):
                self.here.send(tensor)

    def test_no_memory(self):
        """an object without memory is refused by its type"""
        for refused in (5, None, "text", [1, 2]):
            with self.assertRaisesRegex(TypeError, "has no memory that can be moved"):
                self.here.send(refused)

    def test_read_only(self):
        """nothing is received into what is read-only"""
        for refused in (b"bytes", memoryview(b"view")):
            with self.assertRaisesRegex(TypeError, "read-only"):
                self.here.receive(refused)

    def test_other_devices(self):
        """memory of a GPU is refused by a session for host memory, and so is another device"""
        with self.assertRaisesRegex(tcpx.UsageError, "host memory only.*gpu=0"):
            self.here.send(tcpx.GpuMemory(64))
        with self.assertRaisesRegex(TypeError, "cpu and cuda"):
            self.here.send(Tensor(0, 0, Tensor.device("mps", 0)))

    def test_bad_interfaces(self):
        """interfaces that make no sense are refused, whatever they say"""
        memory = bytearray(8)
        data = (address_of(memory), False)
        for wrong in (
            dict(shape=(8,), typestr="u", data=data),
            dict(shape=(8,), typestr="|u1", data=None),
            dict(shape=(-8,), typestr="|u1", data=data),
            dict(shape=(1 << 62, 1 << 62), typestr="|u1", data=data),
            dict(shape=(8,), typestr=7, data=data),
            dict(shape=8, typestr="|u1", data=data),
            dict(shape=(8,), typestr="|u1", data=data, mask=memory),
            dict(typestr="|u1", data=data),
        ):
            with self.assertRaises(TypeError, msg=wrong):
                self.here.send(Interface(memory, **wrong))


class GpuObjects(Ends):
    gpu = 0

    def test_gpu_memory(self):
        """memory of a GPU goes to host memory and back"""
        memory = tcpx.GpuMemory(1 << 20)
        data = bytes(range(256)) * (1 << 12)
        into = bytearray(len(data))
        move(self.here, self.there, data, memory)
        self.assertEqual(memory.read(), data)
        move(self.there, self.here, memory, into)
        self.assertEqual(into, data)

    def test_gpu_tensor(self):
        """a tensor as torch's on a GPU, of which the driver knows the memory"""
        memory = tcpx.GpuMemory(4096)
        memory.write(b"x" * 4096)
        address = memory.__cuda_array_interface__["data"][0]
        into = bytearray(4096)
        move(self.here, self.there, Tensor(address, 4096, Tensor.device("cuda", 0)), into)
        self.assertEqual(into, b"x" * 4096)
        with self.assertRaisesRegex(tcpx.UsageError, "GPU 1, and the session is for GPU 0"):
            self.here.send(Tensor(address, 4096, Tensor.device("cuda", 1)))

    def test_ranges(self):
        """GpuMemory writes and reads within its bounds only"""
        memory = tcpx.GpuMemory(8)
        memory.write(b"abcd", 4)
        self.assertEqual(memory.read(5, 2), b"bc")
        for wrong in (lambda: memory.write(b"abcd", 5), lambda: memory.read(9), lambda: memory.read(0, 9)):
            with self.assertRaisesRegex(tcpx.UsageError, "not inside of 8 bytes"):
                wrong()

    def test_streams(self):
        """streams as numbers and objects; what is none is refused in words"""
        memory = tcpx.GpuMemory(64)
        objects = (
            0,
            types.SimpleNamespace(cuda_stream=0),
            types.SimpleNamespace(ptr=0),
            types.SimpleNamespace(__cuda_stream__=lambda: (0, 0)),
        )
        for stream in objects:
            into = bytearray(64)
            receive = self.there.receive(into)
            self.here.send(memory, after=stream).wait(SECONDS)
            receive.wait(SECONDS)
        with self.assertRaisesRegex(TypeError, "is no stream"):
            self.here.send(memory, after=object())
        with self.assertRaisesRegex(tcpx.UsageError, "only name"):
            self.here.send(memory, after="now")

    def test_current_stream(self):
        """after="current" asks torch, or else cupy, if it is loaded"""
        asked = []

        def current_stream(gpu):
            asked.append(gpu)
            return types.SimpleNamespace(cuda_stream=0)

        memory = tcpx.GpuMemory(64)
        with self.assertRaisesRegex(tcpx.UsageError, "neither torch nor cupy is loaded"):
            self.here.send(memory, after="current")
        cuda = types.SimpleNamespace(get_current_stream=lambda: types.SimpleNamespace(ptr=0))
        sys.modules["cupy"] = types.SimpleNamespace(cuda=cuda)
        self.addCleanup(sys.modules.pop, "cupy")
        self.here.send(memory, after="current")
        cuda = types.SimpleNamespace(current_stream=current_stream)
        sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
        self.addCleanup(sys.modules.pop, "torch")
        self.here.send(memory, after="current")
        self.assertEqual(asked, [0])


class Order(Ends):
    def test_tags(self):
        """tags bring sends and receives together, in whatever order they begin"""
        into = [bytearray(4) for _ in range(100)]
        receives = [self.there.receive(into[i], i) for i in range(100)]
        sends = [self.here.send(b"%04d" % i, i) for i in reversed(range(100))]
        for transfer in receives + sends:
            transfer.wait(SECONDS)
        self.assertEqual([bytes(b) for b in into], [b"%04d" % i for i in range(100)])

    def test_done(self):
        """done() is False before and True after the end, and again"""
        into = bytearray(4)
        receive = self.there.receive(into)
        self.assertFalse(receive.done())
        self.here.send(b"done").wait(SECONDS)
        receive.wait(SECONDS)
        self.assertTrue(receive.done())
        self.assertTrue(receive.done())
        self.assertEqual(receive.nbytes, 4)

    def test_timeout(self):
        """a wait that is over raises a TimeoutError, and the transfer goes on"""
        into = bytearray(4)
        receive = self.there.receive(into)
        with self.assertRaisesRegex(TimeoutError, "4 bytes was not done in time") as caught:
            receive.wait(0.05)
        self.assertIsInstance(caught.exception, tcpx.Timeout)
        self.here.send(b"late").wait(SECONDS)
        receive.wait(SECONDS)
        self.assertEqual(into, b"late")

    def test_lengths(self):
        """lengths that are not equal fail in words, and other tags go on"""
        receive = self.there.receive(bytearray(4), 1)
        self.here.send(b"12345", 1)
        with self.assertRaisesRegex(tcpx.Error, "tag 1.* 4 bytes"):
            receive.wait(SECONDS)
        move(self.here, self.there, b"ok", bytearray(2), 2)

    def test_bad_arguments(self):
        """wrong tags and times are refused"""
        with self.assertRaisesRegex(tcpx.UsageError, "tag"):
            self.here.send(b"", 1 << 62)
        with self.assertRaises(OverflowError):
            self.here.send(b"", -1)
        with self.assertRaisesRegex(ValueError, "timeout of -1 seconds"):
            self.there.receive(bytearray(1)).wait(-1)
        with self.assertRaises(TypeError):
            self.there.receive(bytearray(1)).wait("soon")

    def test_cancel(self):
        """a cancelled receive says so, and its memory is quiet"""
        into = bytearray(b"before")
        receive = self.there.receive(into)
        receive.cancel()
        receive.cancel()
        with self.assertRaisesRegex(tcpx.Cancelled, "6 bytes with tag 0 was cancelled"):
            receive.wait(SECONDS)
        self.assertEqual(into, b"before")

    def test_cancel_while_waiting(self):
        """one thread can cancel what another one waits for"""
        receive = self.there.receive(bytearray(4))
        self.assertTrue(cancelled_while(receive, receive.cancel))

    def test_cancel_done(self):
        """to cancel what is done has no effect"""
        receive = self.there.receive(bytearray(2))
        self.here.send(b"ab").wait(SECONDS)
        receive.wait(SECONDS)
        receive.cancel()
        receive.wait()

    def test_chunks(self):
        """what goes in chunks cannot be cancelled, in words"""
        here, there = support.pair(channels=2)
        receive = there.receive(bytearray(4))
        with self.assertRaisesRegex(tcpx.UsageError, "chunks cannot be cancelled"):
            receive.cancel()
        here.send(b"abcd").wait(SECONDS)
        receive.wait(SECONDS)
        here.close()
        there.close()


class Sessions(Ends):
    def test_names(self):
        """both sides know the name and the path"""
        self.assertEqual((self.here.peer, self.there.peer), ("there", "here"))
        self.assertRegex(self.here.path, r"^127\.0\.0\.1:\d+: built-in transport over ")
        self.assertIsNone(self.here.gpu)
        self.assertIn(self.here.path, repr(self.here))

    def test_statistics(self):
        """statistics have every counter of the header"""
        move(self.here, self.there, b"count", bytearray(5))
        with open("include/tcpx.h") as file:
            header = file.read()
        struct = re.search(r"struct tcpx_session_statistics \{(.*?)\};", header, re.DOTALL)[1]
        self.assertEqual(list(self.here.statistics()), re.findall(r"uint64_t (\w+);", struct))
        self.assertEqual(self.here.statistics()["sent_bytes"], 5)
        self.assertEqual(self.there.statistics()["receives"], 1)

    def test_closed(self):
        """a closed session refuses in words, and ends its transfers"""
        receive = self.here.receive(bytearray(4))
        kept = self.here.path
        self.here.close()
        self.here.close()
        self.assertTrue(self.here.closed)
        with self.assertRaisesRegex(tcpx.Cancelled, "session was closed"):
            receive.wait()
        for call in (lambda: self.here.send(b""), self.here.statistics, self.here.notes):
            with self.assertRaisesRegex(tcpx.UsageError, "the session is closed"):
                call()
        receive.cancel()
        self.assertEqual(self.here.path, kept)

    def test_close_while_waiting(self):
        """one thread can close the session that another one waits in"""
        receive = self.here.receive(bytearray(4))
        self.assertTrue(cancelled_while(receive, self.here.close))

    def test_context(self):
        """with closes it, also after an exception"""
        with self.assertRaises(KeyError), self.here:
            raise KeyError
        self.assertTrue(self.here.closed)

    def test_peer_closes(self):
        """a peer that closes is a ConnectionError"""
        receive = self.here.receive(bytearray(4))
        self.there.close()
        with self.assertRaises(ConnectionError) as caught:
            receive.wait(SECONDS)
        self.assertIsInstance(caught.exception, tcpx.PeerError)
        self.assertIn(caught.exception.result, (2, 6))

    def test_nobody_listens(self):
        """nobody who listens is a Timeout that names the address"""
        with tcpx.listen("127.0.0.1", 0) as listener:
            port = listener.port
        with self.assertRaisesRegex(tcpx.Timeout, f"127.0.0.1.*{port}"):
            tcpx.connect("127.0.0.1", port, timeout=0.1)

    def test_port_taken(self):
        """a port that is taken is an OSError, and no ConnectionError"""
        with tcpx.listen("127.0.0.1", 0) as listener:
            with self.assertRaisesRegex(OSError, "in use") as caught:
                tcpx.listen("127.0.0.1", listener.port)
        self.assertNotIsInstance(caught.exception, ConnectionError)

    def test_bad_options(self):
        """options that are wrong are refused in words"""
        for wrong, words in (
            (dict(gpu=-2), "number of a GPU"),
            (dict(channels=1000), "channels"),
            (dict(name="\n"), "printable ASCII"),
            (dict(gpu=9), "GPU 9"),
        ):
            with self.assertRaisesRegex(tcpx.Error, words, msg=wrong):
                tcpx.connect("127.0.0.1", 1, timeout=0.1, **wrong)
        with self.assertRaises(TypeError):
            tcpx.connect("127.0.0.1", secret=5)

    def test_accept(self):
        """an accept ends in time, and when the listener is closed"""
        listener = tcpx.listen("127.0.0.1", 0)
        with self.assertRaisesRegex(tcpx.Timeout, "no peer came"):
            listener.accept(0.01)
        said = []

        def accept():
            try:
                listener.accept()
            except tcpx.UsageError as error:
                said.append(str(error))

        thread = threading.Thread(target=accept)
        thread.start()
        listener.close()
        thread.join(SECONDS)
        self.assertEqual(said, ["the listener is closed"])

    def test_serve(self):
        """serve() accepts all peers, and hands out their notes in order"""
        notes, peers = [], []
        with tcpx.listen("127.0.0.1", 0, windows=True) as listener:
            listener.serve(lambda session, note: notes.append((session.peer, note)), peers.append)
            sessions = [
                tcpx.connect("127.0.0.1", listener.port, name=f"p{i}", windows=True) for i in range(3)
            ]
            for i in range(30):
                sessions[i % 3].note(b"%d" % i)
            self.assertTrue(support.wait_until(lambda: len(notes) == 30))
            for i, session in enumerate(sessions):
                own = [int(note) for peer, note in notes if peer == f"p{i}"]
                self.assertEqual(own, list(range(i, 30, 3)))
                session.close()
            self.assertTrue(support.wait_until(lambda: all(peer.closed for peer in peers)))
        self.assertEqual(len(peers), 3)

    def test_serve_closed(self):
        """a session that on_session closes, or a function that raises, ends nothing"""
        notes, seen = [], []

        def on_session(session):
            seen.append(session)
            if len(seen) == 1:
                session.close()
            raise KeyError("ours")

        with tcpx.listen("127.0.0.1", 0) as listener, self.assertLogs("tcpx", "ERROR"):
            listener.serve(lambda session, note: notes.append(note), on_session)
            first = tcpx.connect("127.0.0.1", listener.port)
            with self.assertRaises(tcpx.PeerError):
                first.receive(bytearray(1)).wait(SECONDS)
            first.close()
            second = tcpx.connect("127.0.0.1", listener.port)
            second.note(b"heard")
            self.assertTrue(support.wait_until(lambda: notes == [b"heard"]))
        self.assertTrue(support.wait_until(lambda: seen[1].closed))  # with the listener
        second.close()


ECHO = """
import sys, tcpx
with tcpx.listen("127.0.0.1", 0, windows=True) as listener:
    print(listener.port, flush=True)
    session = listener.accept(30)
data = bytearray(1 << 20)
session.receive(data).wait(30)
session.send(data, 1).wait(30)
print("echoed", flush=True)
sys.stdin.readline()
"""


class Processes(Ends):
    def test_echo(self):
        """1 MiB goes to another process and comes back"""
        program = Program(self, ECHO)
        with tcpx.connect("127.0.0.1", int(program.line())) as session:
            data = bytes(range(256)) * (1 << 12)
            into = bytearray(len(data))
            back = session.receive(into, 1)
            session.send(data).wait(SECONDS)
            back.wait(SECONDS)
            self.assertEqual(into, data)
        self.assertEqual(program.end(), (0, ""))

    def test_killed(self):
        """a peer that is killed is a PeerError at once"""
        program = Program(self, ECHO)
        session = tcpx.connect("127.0.0.1", int(program.line()))
        receive = session.receive(bytearray(4))
        begun = time.monotonic()
        program.process.send_signal(signal.SIGKILL)
        with self.assertRaises(tcpx.PeerError):
            receive.wait(SECONDS)
        self.assertLess(time.monotonic() - begun, SECONDS / 2)
        session.close()
        program.end()


if __name__ == "__main__":
    tap.main()
