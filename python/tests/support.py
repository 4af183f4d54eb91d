"""What the tests share: two ends in one process, programs in others, and memory of many kinds."""

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import tcpx

SECONDS = 30  # that anything may take on a busy machine


def library(name):
    """The module, or a skip with a reason."""
    if importlib.util.find_spec(name) is None:
        raise unittest.SkipTest(f"{name} is not installed")
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise unittest.SkipTest(f"{name} cannot be loaded: {error}") from error


class Ends(unittest.TestCase):
    """Each test has two sessions with each other, here and there."""

    gpu = None

    def setUp(self):
        self.here, self.there = pair(gpu=self.gpu)
        self.addCleanup(self.here.close)
        self.addCleanup(self.there.close)


def pair(**options):
    """Two ends of a session in this process."""
    options.setdefault("windows", True)
    accepted = []
    with tcpx.listen("127.0.0.1", 0, name="there", **options) as listener:
        thread = threading.Thread(target=lambda: accepted.append(listener.accept(SECONDS)))
        thread.start()
        here = tcpx.connect("127.0.0.1", listener.port, name="here", timeout=SECONDS, **options)
        thread.join()
    return here, accepted[0]


def move(here, there, data, into, tag=0):
    """Sends and receives, and waits for both."""
    receive = there.receive(into, tag)
    here.send(data, tag).wait(SECONDS)
    receive.wait(SECONDS)


class Program:
    """Another Python process, with the text of a program: it reads and prints lines."""

    def __init__(self, test, text):
        test.addCleanup(self.clear_up)
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def line(self):
        return self.process.stdout.readline().strip()

    def stop(self):
        """Until it goes on, none of its threads runs."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def end(self):
        """Its status, and what it has said on standard error."""
        self.process.stdin.close()
        self.process.stdout.read()
        status = self.process.wait(SECONDS)
        self.errors.seek(0)
        return status, self.errors.read()

    def clear_up(self):
        """Whatever has become of it."""
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.errors):
            file.close()


class Tensor:
    """What a tensor of torch shows, of emulated or host memory."""

    class device:
        def __init__(self, kind, index):
            self.type, self.index = kind, index

    def __init__(self, address, nbytes, device=None, contiguous=True):
        self.address, self.nbytes, self.contiguous = address, nbytes, contiguous
        self.device = device or Tensor.device("cpu", None)

    def data_ptr(self):
        return self.address

    def is_contiguous(self):
        return self.contiguous


class Interface:
    """An array that has only an array interface, of the memory of another object."""

    def __init__(self, keep, **interface):
        self.keep = keep
        self.__array_interface__ = {"version": 3, "strides": None, **interface}


def wait_until(condition):
    """Bounded in time; the condition is looked at every millisecond."""
    pause = threading.Event()
    for _ in range(1000 * SECONDS):
        if condition():
            return True
        pause.wait(0.001)
    return False
