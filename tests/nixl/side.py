"""One agent in a process of its own, which a test drives by calls.

A Side is what the test has of it: each call goes through a pipe to the process, runs there on an Inside, and
its result or exception comes back. So a test is a list of calls to two or more agents, in one order, and may
stop or kill any of them.
"""
import multiprocessing
import os
import re
import signal
import time
import traceback
import zlib

SECONDS = 30  # in which a call returns


def nixl():
    """NIXL's Python interface, by whichever name its wheel has."""
    for name in ("nixl_cu12", "nixl_cu13", "nixl"):
        try:
            return __import__(name + "._api", fromlist=["nixl_agent"])
        except ModuleNotFoundError as error:
            if not error.name.startswith(name):
                raise
    raise ModuleNotFoundError("no wheel of NIXL")


class Inside:
    """Runs in the process of the agent."""

    backend = os.environ.get("NIXL_BACKEND", "TCPX")  # to see what others do

    settings = {}  # of NIXL's agent
    others = ()  # backends that the agent has, too

    def start(self, name, bytes, parameters, listen_port):
        import numpy

        api = nixl()
        options = dict(self.settings)
        if listen_port:
            options |= {"enable_listen_thread": True, "listen_port": listen_port}
        self.agent = api.nixl_agent(name, api.nixl_agent_config(backends=[], **options))
        for other in self.others:
            self.agent.create_backend(other, {})
        self.agent.create_backend(self.backend, parameters)
        self.memory = numpy.zeros(bytes, dtype=numpy.uint8)
        self.registered = self.register()
        self.kept = []
        self.handles = {}
        self.lists = {}
        self.next = 0

    def register(self):
        return self.agent.register_memory([(self.address(), self.memory.nbytes, 0, "")], "DRAM", backends=[self.backend])

    def deregister(self):
        self.agent.deregister_memory(self.registered, backends=[self.backend])

    # --- memory

    def address(self):
        return self.memory.ctypes.data

    def fill(self, seed):
        """All of it with bytes that depend on the seed; returns its checksum."""
        import numpy

        self.memory[:] = numpy.random.default_rng(seed).integers(0, 256, self.memory.nbytes, numpy.uint8)
        return self.checksum()

    def set(self, value):
        self.memory[:] = value

    def checksum(self, block=0):
        """With `block`: of the blocks of that length, from the last to the first."""
        memory = self.memory.reshape(-1, block)[::-1].tobytes() if block else self.memory
        return zlib.crc32(memory)

    def count_other(self, value, bytes=None):
        """Of the first ones."""
        return int((self.memory[:bytes] != value).sum())

    # --- peers

    def metadata(self):
        return self.agent.get_agent_metadata()

    def add(self, metadata):
        name = self.agent.add_remote_agent(metadata)
        return name.decode() if isinstance(name, bytes) else name

    def remove(self, name):
        self.agent.remove_remote_agent(name)

    def fetch(self, name, port):
        self.agent.fetch_remote_metadata(name, "127.0.0.1", port)
        return self.until(lambda: self.agent.check_remote_metadata(name) or None)

    # --- transfers

    def descriptors(self, address, block, numbers):
        return self.agent.get_xfer_descs([(address + i * block, block, 0) for i in numbers], "DRAM")

    def keep(self, handle):
        self.next += 1
        self.handles[self.next] = handle
        return self.next

    def prepare(self, operation, peer, there, block, here_numbers, there_numbers, note=b""):
        here = self.descriptors(self.address(), block, here_numbers)
        return self.keep(
            self.agent.initialize_xfer(operation, here, self.descriptors(there, block, there_numbers), peer, note)
        )

    def prepare_list(self, peer, address, block, count):
        self.lists[peer] = self.agent.prep_xfer_dlist(peer, self.descriptors(address, block, range(count)))

    def prepare_of_lists(self, operation, peer, here_numbers, there_numbers, note=b""):
        return self.keep(
            self.agent.make_prepped_xfer(
                operation, self.lists["NIXL_INIT_AGENT"], here_numbers, self.lists[peer], there_numbers, note
            )
        )

    def post(self, handle):
        return self.agent.transfer(self.handles[handle])

    def post_and_stop(self, handle, process):
        """Stops the process as soon as the first byte, which was 0, has come from it."""
        self.post(handle)
        while self.memory[0] == 0:
            pass
        os.kill(process, signal.SIGSTOP)

    def state(self, handle):
        try:
            return self.agent.check_xfer_state(self.handles[handle])
        except Exception as error:
            return type(error).__name__

    def wait(self, handle, seconds=SECONDS):
        """Its state when it is no longer under way."""
        return self.until(lambda: (lambda s: None if s == "PROC" else s)(self.state(handle)), seconds)

    def run(self, handle):
        state = self.post(handle)
        return self.wait(handle) if state == "PROC" else state

    def release(self, handle):
        self.agent.release_xfer_handle(self.handles.pop(handle))

    def move(self, *arguments):
        handle = self.prepare(*arguments)
        state = self.run(handle)
        self.release(handle)
        return state

    # --- notifications

    def tell(self, peer, text):
        self.agent.send_notif(peer, text)

    def told(self, count):
        """The next `count` of whichever peer, each with its name."""

        def take():
            for name, texts in self.agent.get_new_notifs().items():
                self.kept += [(name, text) for text in texts]
            return True if len(self.kept) >= count else None

        self.until(take)
        found, self.kept = self.kept[:count], self.kept[count:]
        return found

    # --- the process

    def parameters(self):
        return self.agent.get_plugin_params(self.backend)

    def io_threads(self):
        names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
        return sum("tcpx-io" in name for name in names)

    def place(self):
        """How peers reach it, from its metadata."""
        metadata = self.agent.get_agent_metadata()
        return re.search(rb"tcpx 1 nixl-[0-9a-f]+ \d+[ 0-9a-f.:]+", metadata)[0].decode()

    def until(self, ask, seconds=SECONDS):
        end = time.monotonic() + seconds
        while True:
            answer = ask()
            if answer is not None:
                return answer
            if time.monotonic() > end:
                raise TimeoutError(f"not within {seconds} s")
            time.sleep(0.0005)


def serve(pipe, errors, inside):
    """The process: calls until the pipe ends."""
    if errors:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    while True:
        try:
            call, arguments = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            pipe.send((True, getattr(inside, call)(*arguments)))
        except Exception as error:
            pipe.send((False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


class Failure(Exception):
    pass


class Side:
    def __init__(self, name, bytes=1 << 20, parameters=None, listen_port=0, errors=None, inside=None):
        self.name = name
        self.inside = inside or Inside()
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=serve, args=(theirs, errors, self.inside), daemon=True)
        self.process.start()
        theirs.close()
        self.start(name, bytes, parameters or {}, listen_port)

    def begin(self, call, *arguments):
        self.pipe.send((call, arguments))

    def finish(self, seconds=2 * SECONDS):
        if not self.pipe.poll(seconds):
            raise Failure(f"{self.name} has not answered in {seconds} s")
        try:
            good, result = self.pipe.recv()
        except EOFError:
            raise Failure(f"{self.name} has ended") from None
        if not good:
            raise Failure(f"{self.name}: {result}")
        return result

    def __getattr__(self, call):
        if not hasattr(type(self.inside), call):
            raise AttributeError(call)

        def remote(*arguments):
            self.begin(call, *arguments)
            return self.finish()

        return remote

    def signal(self, number):
        os.kill(self.process.pid, number)

    def stop(self):
        """All of its threads stand still when it returns; each of them stops when it next sees the signal."""
        self.signal(signal.SIGSTOP)
        end = time.monotonic() + SECONDS
        while any(state != "T" for state in self.thread_states()):
            if time.monotonic() > end:
                raise Failure(f"{self.name} does not stop")

    def thread_states(self):
        folder = f"/proc/{self.process.pid}/task"
        return [open(f"{folder}/{task}/stat").read().rsplit(")", 1)[1].split()[0] for task in os.listdir(folder)]

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.is_alive():
            self.signal(signal.SIGCONT)
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.kill()


def meet(*sides):
    """Each knows all others."""
    for side in sides:
        for other in sides:
            if other is not side:
                assert side.add(other.metadata()) == other.name
