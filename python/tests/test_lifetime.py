"""Objects live as long as the network may touch them, and no longer; nothing crashes at the end."""

import array
import ctypes
import gc
import os
import signal
import sys
import threading
import unittest

import support
import tap
import tcpx
from support import SECONDS, Ends, Program, move

LOOPS = 100 if os.environ.get("SANITIZE") else 1000


class Allocated(ctypes.Structure):
    """struct mallinfo2 of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                     "uordblks", "fordblks", "keepcost")
    ]


def allocated():
    """Bytes that malloc has given out; 0 where nobody tells. Small objects of Python are not in it."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None or os.environ.get("SANITIZE"):  # which keeps what was freed for a while
        return 0
    mallinfo.restype = Allocated
    told = mallinfo()
    return told.hblkhd + told.uordblks


def is_exported(buffer):
    """Whether somebody holds the memory of a bytearray."""
    try:
        buffer.append(0)
    except BufferError:
        return True
    buffer.pop()
    return False


class Dropped(Ends):
    def let_go(self):
        """Of what has ended, as the next transfers would do."""
        return self.there._ended() == []

    def test_transfer(self):
        """a transfer that is dropped goes on, and lets go of its memory when it is done"""
        into = bytearray(1 << 16)
        self.there.receive(into)
        gc.collect()
        self.assertTrue(is_exported(into))
        self.here.send(b"d" * (1 << 16)).wait(SECONDS)
        self.assertTrue(support.wait_until(lambda: self.let_go() and not is_exported(into)))
        self.assertEqual(into, b"d" * (1 << 16))

    def test_many(self):
        """transfers that are dropped do not add up while others begin"""
        into = [bytearray(1) for _ in range(LOOPS)]
        for buffer in into:
            self.there.receive(buffer)
            self.here.send(b"x")
        move(self.here, self.there, b"last", bytearray(4), 7)
        self.assertTrue(support.wait_until(lambda: all(buffer == b"x" for buffer in into)))
        held = sum(map(is_exported, into))
        self.assertLess(held, LOOPS // 2)
        self.assertTrue(support.wait_until(lambda: self.let_go() and not any(map(is_exported, into))))

    def test_session(self):
        """a session that is dropped with transfers under way is closed, and then lets go"""
        here, there = support.pair()
        into = bytearray(1 << 20)
        there.receive(into)
        self.assertTrue(is_exported(into))
        del there
        self.assertFalse(is_exported(into))
        with self.assertRaises(tcpx.PeerError):
            here.receive(bytearray(1)).wait(SECONDS)

    def test_session_lives(self):
        """a transfer keeps its session, and a remote, too"""
        here, there = support.pair()
        window = tcpx.Window(b"kept", read=True)
        remote = here.remote(window.key)
        receive = there.receive(bytearray(2))
        parts = remote[0:4]
        here.send(b"ab")
        into = bytearray(4)
        here.read(into, parts).wait(SECONDS)
        del here, there
        receive.wait(SECONDS)
        self.assertEqual(into, b"kept")

    def test_window(self):
        """a window that is dropped while it is read lives until the read is done"""
        theirs = bytearray(b"w" * 4096)
        into = bytearray(4096)
        window = tcpx.Window(theirs, read=True)
        read = self.here.read(tcpx.Window(into)[:], self.here.remote(window.key))
        self.assertTrue(is_exported(theirs))
        read.wait(SECONDS)
        self.assertFalse(is_exported(into))
        self.assertEqual(into, theirs)
        del window
        self.assertFalse(is_exported(theirs))

    def test_cycle(self):
        """a cycle through a window and its object is collected"""

        class Memory(bytearray):
            pass

        gone = []
        memory = Memory(64)
        memory.window = tcpx.Window(memory, read=True)
        memory.session = self.here
        memory.told = type("Told", (), {"__del__": lambda _: gone.append(True)})()
        del memory
        gc.collect()
        gc.collect()
        self.assertEqual(gone, [True])

    def test_session_cycle(self):
        """a session and a transfer of an object that has the session are collected together"""
        here, there = support.pair()

        class Memory(bytearray):
            pass

        memory = Memory(64)
        memory.session = there
        there.receive(memory)
        del memory, there
        gc.collect()
        with self.assertRaises(tcpx.PeerError):
            here.receive(bytearray(1)).wait(SECONDS)

    def test_failed(self):
        """the memory of a receive that has failed is kept until the session is closed"""
        into = bytearray(4)
        receive = self.there.receive(into)
        self.here.send(b"12345")
        with self.assertRaises(tcpx.Error):
            receive.wait(SECONDS)
        del receive
        gc.collect()
        self.assertTrue(is_exported(into))
        self.there.close()
        self.assertFalse(is_exported(into))

    def test_cancelled(self):
        """the memory of a cancelled receive is let go of"""
        into = bytearray(4)
        receive = self.there.receive(into)
        receive.cancel()
        with self.assertRaises(tcpx.Cancelled):
            receive.wait(SECONDS)
        self.assertFalse(is_exported(into))

    def test_raises(self):
        """a call that fails holds nothing"""
        into = bytearray(4)
        for call in (
            lambda: self.here.receive(into, 1 << 62),
            lambda: self.here.receive(into, after=object()),
            lambda: self.here.read(into, self.here),
            lambda: tcpx.Window(into, block="1"),
            lambda: tcpx.Window(bytearray()),
        ):
            before = sys.getrefcount(into)
            self.assertRaises((tcpx.Error, TypeError), call)
            self.assertEqual(sys.getrefcount(into), before)
            self.assertFalse(is_exported(into))


class Leaks(Ends):
    def check(self, loop, first=100):
        """No memory and no descriptor for each turn, after the first ones."""
        for _ in range(first):
            loop()
        gc.collect()
        before = allocated(), len(os.listdir("/proc/self/fd")), len(gc.get_objects())
        for _ in range(LOOPS):
            loop()
        gc.collect()
        after = allocated(), len(os.listdir("/proc/self/fd")), len(gc.get_objects())
        self.assertLess(after[0] - before[0], 20 * LOOPS)
        self.assertLessEqual(after[1], before[1])
        self.assertLess(after[2] - before[2], 100)

    def test_moves(self):
        """many sends and receives leave nothing behind"""
        into = bytearray(4096)
        self.check(lambda: move(self.here, self.there, b"m" * 4096, into))

    def test_accesses(self):
        """many windows, remotes and reads leave nothing behind"""
        theirs, mine = bytearray(8192), bytearray(8192)

        def loop():
            window = tcpx.Window(theirs, read=True, block=4096)
            remote = self.here.remote(window.key, block=4096)
            own = tcpx.Window(mine, block=4096)
            self.here.read(own.blocks([0, 1]), remote.blocks([1, 0]), note=b"n").wait(SECONDS)
            self.there.notes()

        self.check(loop)

    def test_failures(self):
        """many failures leave nothing behind"""

        def loop():
            receive = self.there.receive(bytearray(4096))
            receive.cancel()
            self.assertRaises(tcpx.Cancelled, receive.wait, SECONDS)
            self.assertRaises(TypeError, self.here.send, self)

        self.check(loop)

    def test_sessions(self):
        """sessions leave no descriptor behind"""
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            here, there = support.pair()
            here.fileno()
            move(here, there, b"1", bytearray(1))
            del here, there
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), before)


BEGIN = """
import sys, threading, tcpx
sys.path.insert(0, "python/tests")
import support
here, there = support.pair(gpu=GPU)
window = tcpx.Window(bytearray(1 << 24), read=True, write=True)
remote = here.remote(window.key)
reads = [here.read(bytearray(1 << 24), remote) for _ in range(4)]
receives = [there.receive(bytearray(1 << 20), tag) for tag in range(50)]
sends = [here.send(bytes(1 << 20), tag) for tag in range(25)]
"""


class Exit(unittest.TestCase):
    def check(self, text, status=0, said=r"^$"):
        for gpu in ("None", "0"):
            program = Program(self, BEGIN.replace("GPU", gpu) + text)
            ended = program.end()
            self.assertEqual(ended[0], status, ended[1])
            self.assertRegex(ended[1], said)

    def test_falls_off_the_end(self):
        """a program ends with transfers under way, in silence"""
        self.check("")

    def test_exits(self):
        """sys.exit() with transfers under way"""
        self.check("sys.exit(3)", 3)

    def test_raises(self):
        """an exception that nobody catches, with transfers under way"""
        self.check("raise KeyError('nobody')", 1, "KeyError: 'nobody'\n$")

    def test_threads_wait(self):
        """daemon threads wait when the program ends"""
        self.check(
            "for tag in range(25, 50):\n"
            "    threading.Thread(target=receives[tag].wait, daemon=True).start()\n"
            "threading.excepthook = lambda _: None\n"
        )

    def test_modules_go(self):
        """what holds windows and sessions goes at the very end, or too late"""
        self.check("import builtins; builtins.kept = (here, there, window, reads, receives)")

    def test_begins_late(self):
        """what begins while the interpreter exits is refused"""
        program = Program(
            self, "import atexit, sys\n"
            "def late():\n"
            "    import tcpx\n"
            "    try: tcpx.Window(bytearray(4))\n"
            "    except tcpx.UsageError as error: print(error, file=sys.stderr)\n"
            "atexit.register(late)\n"
            "import tcpx\n"
        )
        self.assertEqual(program.end(), (0, "the interpreter is exiting\n"))

    def test_served(self):
        """a listener serves when the program ends"""
        self.check(
            "listener = tcpx.listen('127.0.0.1', 0, windows=True)\n"
            "listener.serve(lambda session, note: None)\n"
            "session = tcpx.connect('127.0.0.1', listener.port)\n"
            "session.note(b'one')\n"
        )

    def test_event_loop_left(self):
        """an event loop that is left with tasks that wait"""
        self.check(
            "import asyncio\n"
            "async def wait(transfer): await transfer\n"
            "loop = asyncio.new_event_loop()\n"
            "tasks = [loop.create_task(wait(receives[tag])) for tag in range(25, 50)]\n"
            "loop.run_until_complete(asyncio.sleep(0.01))\n"
            "import logging; logging.getLogger('asyncio').disabled = True\n"
            "sys.unraisablehook = lambda _: None\n"
        )


class Forks(unittest.TestCase):
    def test_refused(self):
        """a child made by fork is told so by each call, and ends in peace"""
        program = Program(
            self, BEGIN.replace("GPU", "None")
            + "import os, warnings\n"
            "warnings.simplefilter('ignore')  # of a fork with threads, which is what this is about\n"
            "if os.fork() == 0:\n"
            "    calls = (lambda: here.send(b''), lambda: here.notes(), lambda: reads[0].wait(),\n"
            "             lambda: tcpx.Window(bytearray(1)), lambda: tcpx.connect('127.0.0.1', 1),\n"
            "             lambda: tcpx.listen('127.0.0.1', 0), lambda: receives[49].cancel(),\n"
            "             lambda: here.statistics(), lambda: here.remote(bytes(64)), tcpx.gpus)\n"
            "    for i, call in enumerate(calls):\n"
            "        try: call(); print('no error', i, file=sys.stderr)\n"
            "        except tcpx.UsageError as error: assert 'was forked' in str(error), error\n"
            "    here.close()\n"
            "    window.close\n"
            "    sys.exit(5)\n"
            "status = os.waitstatus_to_exitcode(os.wait()[1])\n"
            "for transfer in reads + sends + receives[:25]: transfer.wait(30)\n"
            "sys.exit(status)\n"
        )
        self.assertEqual(program.end(), (5, ""))

    def test_forked_while_waiting(self):
        """a child of a process whose other threads are inside of calls"""
        program = Program(
            self, BEGIN.replace("GPU", "None")
            + "import os, warnings\n"
            "warnings.simplefilter('ignore')\n"
            "for tag in range(25, 50):\n"
            "    threading.Thread(target=receives[tag].wait, daemon=True).start()\n"
            "for _ in range(20):\n"
            "    if os.fork() == 0:\n"
            "        here.close(); there.close()\n"
            "        del here, there\n"
            "        sys.exit(0)\n"
            "    assert os.wait()[1] == 0\n"
            "threading.excepthook = lambda _: None\n"
        )
        self.assertEqual(program.end(), (0, ""))


class Signals(Ends):
    """Ctrl-C, or any handler that raises, ends every wait; what was waited for goes on."""

    def interrupted(self, call):
        class Interrupt(Exception):
            pass

        def handler(*_):
            raise Interrupt

        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            self.assertRaises(Interrupt, call)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def test_wait(self):
        """a wait for a transfer is interrupted"""
        into = bytearray(4)
        receive = self.there.receive(into)
        self.interrupted(receive.wait)
        self.here.send(b"next").wait(SECONDS)
        receive.wait(SECONDS)
        self.assertEqual(into, b"next")

    def test_notes(self):
        """a wait for notes is interrupted"""
        self.interrupted(lambda: self.there.notes(None))

    def test_accept(self):
        """a wait for a peer is interrupted, and the next one gets it"""
        listener = tcpx.listen("127.0.0.1", 0)
        self.interrupted(listener.accept)
        peers = []
        thread = threading.Thread(
            target=lambda: peers.append(tcpx.connect("127.0.0.1", listener.port))
        )
        thread.start()
        listener.accept(SECONDS).close()
        thread.join(SECONDS)
        self.assertEqual(len(peers), 1)

    def test_connect(self):
        """a wait to connect is interrupted; what comes of it later is closed"""
        with tcpx.listen("127.0.0.1", 0) as listener:
            self.interrupted(lambda: tcpx.connect("127.0.0.1", listener.port))
            # The attempt goes on: who accepts it finds a peer that closes.
            session = listener.accept(SECONDS)
            with self.assertRaises(tcpx.PeerError):
                session.receive(bytearray(1)).wait(SECONDS)


class Threads(Ends):
    def test_everything_at_once(self):
        """threads begin, wait for, cancel and drop transfers while the session is closed"""
        stop = threading.Event()
        wrong = []
        window = tcpx.Window(bytearray(4096), read=True)

        def work(number):
            try:
                remote = self.here.remote(window.key)
                while not stop.is_set():
                    receive = self.here.receive(bytearray(64), number)
                    self.there.send(bytes(64), number)
                    self.here.read(bytearray(4096), remote)
                    receive.cancel()
                    receive.done()
            except (tcpx.Cancelled, tcpx.PeerError, tcpx.UsageError):
                pass  # it was closed, or cancelled
            except BaseException as error:
                wrong.append(error)

        for _ in range(5):
            threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
            for thread in threads:
                thread.start()
            threading.Event().wait(0.05)
            self.here.close()
            self.there.close()
            stop.set()
            for thread in threads:
                thread.join(SECONDS)
                self.assertFalse(thread.is_alive())
            stop.clear()
            self.here, self.there = support.pair()
        self.here.close()
        self.there.close()
        self.assertEqual(wrong, [])

    def test_windows_close(self):
        """a window is closed while threads read from and into it"""
        theirs, mine = bytearray(1 << 22), array.array("b", bytes(1 << 22))
        for _ in range(20):
            window = tcpx.Window(theirs, read=True)
            own = tcpx.Window(mine)
            remote = self.here.remote(window.key)
            reads = [self.here.read(own, remote) for _ in range(4)]
            closers = [threading.Thread(target=w.close) for w in (window, own, window, own)]
            for closer in closers:
                closer.start()
            for closer in closers:
                closer.join(SECONDS)
            self.assertFalse(is_exported(theirs))
            mine.append(0)  # nobody holds it either
            mine.pop()
            for read in reads:
                try:
                    read.wait(SECONDS)
                except tcpx.Error as error:
                    self.assertRegex(str(error), "window was closed|no such window")


class Interpreters(unittest.TestCase):
    def test_subinterpreter(self):
        """a subinterpreter is refused in words"""
        for name in ("_xxsubinterpreters", "_interpreters"):
            try:
                interpreters = __import__(name)
                break
            except ImportError:
                continue
        else:
            self.skipTest("this Python has no module for subinterpreters")
        made = interpreters.create()
        code = "import tcpx"
        try:
            failure = interpreters.run_string(made, code)
            said = str(getattr(failure, "msg", failure))
        except Exception as error:
            said = str(error)
        self.assertRegex(said, "main interpreter only|does not support loading in subinterpreters")


if __name__ == "__main__":
    tap.main()
