"""The backend TCPX in a real NIXL: agents in processes of their own. Prints TAP.

    python3 cases.py [all|short|refused|NAME...]
"""
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from side import Failure, Inside, Side, meet

MIB = 1 << 20
CASES = []
SHORT = []


def case(function):
    CASES.append(function)
    return function


def short(function):
    SHORT.append(function)
    return case(function)


def expect(found, wanted, what):
    if found != wanted:
        raise Failure(f"{what}: {str(found)[:300]} instead of {str(wanted)[:300]}")


class Skip(Exception):
    pass


class WithOthers(Inside):
    others = ("UCX", "POSIX")


# --- data


@short
def writes_and_reads_with_notifications():
    block, count = 65536, 64
    with Side("a", block * count) as a, Side("b", block * count) as b:
        meet(a, b)
        a.fill(1)
        there = b.address()
        turned = list(reversed(range(count)))
        expect(a.move("WRITE", "b", there, block, range(count), turned, b"written"), "DONE", "write")
        expect(b.told(1), [("a", b"written")], "its notification")
        expect(b.checksum(), a.checksum(block), "what was written")
        b.fill(2)
        expect(a.move("READ", "b", there, block, turned, range(count), b"read"), "DONE", "read")
        expect(b.told(1), [("a", b"read")], "its notification")
        expect(a.checksum(), b.checksum(block), "what was read")
        # The other way, over a session of its own.
        expect(b.move("READ", "a", a.address(), block, range(count), range(count)), "DONE", "b reads")
        expect(b.checksum(), a.checksum(), "what b has read")


@short
def notifications_of_any_length():
    lengths = [1, 100, 32744, 32745, 65488, 100000, 3 * MIB]
    texts = [os.urandom(length) for length in lengths]
    with Side("a") as a, Side("b " + 200 * "x") as b:
        meet(a, b)
        for text in texts:
            a.tell(b.name, text)
        got = b.told(len(texts))
        for text in texts:
            expect(got.pop(0) == ("a", text), True, f"{len(text)} bytes, by themselves, in their order")
        for text in texts:
            expect(a.move("WRITE", b.name, b.address(), 4096, [0], [0], text), "DONE", "write")
            expect(b.told(1) == [("a", text)], True, f"{len(text)} bytes with a write")
        for i in range(3000):
            b.tell("a", b"%d" % i)
        expect([text for _, text in a.told(3000)], [b"%d" % i for i in range(3000)], "their order")


@short
def prepared_lists_and_handles_are_used_again():
    block, count = 4096, 256
    with Side("a", block * count) as a, Side("b", block * count) as b:
        meet(a, b)
        a.fill(3)
        a.prepare_list("NIXL_INIT_AGENT", a.address(), block, count)
        a.prepare_list("b", b.address(), block, count)
        for start in range(0, count, 32):
            numbers = list(range(start, start + 32))
            handle = a.prepare_of_lists("WRITE", "b", numbers, [count - 1 - i for i in numbers])
            expect(a.run(handle), "DONE", f"blocks from {start} on")
            a.release(handle)
        expect(b.checksum(), a.checksum(block), "what was written")
        handle = a.prepare_of_lists("WRITE", "b", [0], [0], b"again")
        for _ in range(300):
            expect(a.run(handle), "DONE", "a handle that is posted again")
        expect(b.told(300), 300 * [("a", b"again")], "a notification for each post")


@short
def many_descriptors():
    block, count = 512, 112000
    with Side("a", block * count) as a, Side("b", block * count) as b:
        meet(a, b)
        a.fill(4)
        handle = a.prepare("WRITE", "b", b.address(), block, range(count), range(count - 1, -1, -1), b"all")
        for _ in range(3):
            expect(a.run(handle), "DONE", "write")
        expect(b.told(3), 3 * [("a", b"all")], "notifications")
        expect(b.checksum(), a.checksum(block), "what was written")


@short
def an_agent_to_itself():
    with Side("a", 2 * MIB) as a:
        a.fill(5)
        expect(a.move("WRITE", "a", a.address(), MIB, [0], [1], b"to myself"), "DONE", "write")
        expect(a.told(1), [("a", b"to myself")], "its notification")
        expect(a.checksum(), a.checksum(MIB), "both halves")


@case
def other_backends_beside_it():
    with Side("a", inside=WithOthers()) as a, Side("b", inside=WithOthers()) as b:
        meet(a, b)
        a.fill(6)
        expect(a.move("WRITE", "b", b.address(), MIB, [0], [0], b"by TCPX"), "DONE", "write")
        expect(b.told(1), [("a", b"by TCPX")], "its notification")
        expect(b.checksum(), a.checksum(), "what was written")


@case
def eight_agents_share_the_cores():
    sides = [Side(f"agent {i}", 8 * MIB) for i in range(8)]
    try:
        meet(*sides)
        for i, side in enumerate(sides):
            side.fill(i)
        addresses = [side.address() for side in sides]
        for turn in range(2):
            for i, side in enumerate(sides):
                peer = (i + 1) % 8
                side.begin("move", "READ", sides[peer].name, addresses[peer], 4 * MIB, [0], [1], b"turn %d" % turn)
            for side in sides:
                expect(side.finish(), "DONE", side.name)
            for i, side in enumerate(sides):
                expect(side.told(1), [(sides[i - 1].name, b"turn %d" % turn)], "notifications")
        threads = [side.io_threads() for side in sides]
        expect(threads[-1], 1, f"the I/O threads of the last one, of {threads}")
    finally:
        for side in sides:
            side.__exit__()


# --- peers that fail


@short
def a_killed_peer_is_lost_at_once():
    with Side("a") as a, Side("b") as b:
        meet(a, b)
        handle = a.prepare("WRITE", "b", b.address(), 4096, [0], [0])
        expect(a.run(handle), "DONE", "write")
        b.stop()
        expect(a.post(handle), "PROC", "a write to a stopped peer")
        begun = time.monotonic()
        b.kill()
        expect(a.wait(handle), "nixlRemoteDisconnectError", "its end")
        expect(time.monotonic() - begun < 5, True, "soon")


def released(stop):
    """A read is given up while its peer is stopped, as `stop` does it; the memory is this program's then."""
    block, count = MIB, 64
    with Side("a", (count + 1) * block) as a, Side("b", (count + 1) * block) as b:
        meet(a, b)
        expect(a.move("READ", "b", b.address(), block, [count], [0]), "DONE", "a connection")
        b.set(1)
        handle = a.prepare("READ", "b", b.address(), block, range(count), range(count), b"this read is over")
        stop(a, b, handle)
        begun = time.monotonic()
        a.release(handle)
        took = time.monotonic() - begun
        a.set(7)
        b.signal(signal.SIGCONT)
        # What b has still sent is followed by this, and by what it answers then.
        expect(a.move("READ", "b", b.address(), block, [count], [0]), "DONE", "another read, behind that memory")
        for _ in range(5):
            expect(a.count_other(7, count * block), 0, "bytes that were changed after the release")
            a.tell("b", b"?")
            expect(b.told(1), [("a", b"?")], "what b is told")
        expect(took < 2, True, f"released in {took:.3f} s")


@short
def released_memory_is_not_written_to_in_the_middle():
    released(lambda a, b, handle: a.post_and_stop(handle, b.process.pid))


@case
def released_memory_is_not_written_to_at_the_beginning():
    def stop(a, b, handle):
        b.stop()
        a.post(handle)

    released(stop)


@case
def a_write_that_is_released_leaves_the_peer_in_peace():
    size = 64 * MIB
    with Side("a", size) as a, Side("b", size) as b:
        meet(a, b)
        a.set(3)
        for turn in range(5):
            handle = a.prepare("WRITE", "b", b.address(), size, [0], [0], b"long " + bytes(100000))
            a.post(handle)
            a.release(handle)
        # Of each, the notification has come with all of its bytes or not at all.
        expect(a.move("WRITE", "b", b.address(), size, [0], [0], b"last"), "DONE", "a write after them")
        told = []
        while told[-1:] != [b"last"]:
            told.append(b.told(1)[0][1])
        expect(set(told) <= {b"last", b"long " + bytes(100000)}, True, "notifications are whole")
        expect(b.checksum(), a.checksum(), "what was written")


@short
def a_stopped_peer_has_a_deadline():
    with Side("a", parameters={"timeout_ms": "700"}) as a, Side("b") as b:
        meet(a, b)
        handle = a.prepare("READ", "b", b.address(), 4096, [0], [0])
        expect(a.run(handle), "DONE", "read")
        b.stop()
        begun = time.monotonic()
        expect(a.post(handle), "PROC", "a read from a stopped peer")
        expect(a.wait(handle), "nixlRemoteDisconnectError", "its end")
        expect(0.6 < time.monotonic() - begun < 10, True, "in its time")


@short
def an_agent_comes_back_under_its_name():
    with Side("a") as a:
        for life in range(3):
            with Side("b") as b:
                meet(a, b)
                expect(a.move("WRITE", "b", b.address(), 4096, [0], [0], b"life"), "DONE", f"life {life}")
                expect(b.told(1), [("a", b"life")], "notification")
                expect(b.move("WRITE", "a", a.address(), 4096, [0], [0], b"back"), "DONE", "the other way")
                expect(a.told(1), [("b", b"back")], "notification")
                b.kill() if life == 0 else None
            a.remove("b")


@case
def a_peer_that_is_not_there():
    with Side("a", parameters={"timeout_ms": "1500"}) as a:
        with Side("b") as b:
            meet(a, b)
            address = b.address()
        begun = time.monotonic()
        handle = a.prepare("WRITE", "b", address, 4096, [0], [0])
        expect(time.monotonic() - begun < 1, True, "preparing does not wait")
        a.post(handle)
        expect(a.wait(handle), "nixlRemoteDisconnectError", "its end")


@case
def memory_is_taken_back():
    with Side("a", 64 * MIB) as a, Side("b", 64 * MIB) as b:
        meet(a, b)
        handle = a.prepare("WRITE", "b", b.address(), 64 * MIB, [0], [0], b"too late")
        a.post(handle)
        b.deregister()
        b.set(9)
        expect(a.wait(handle) in ("nixlBackendError", "ERR", "DONE"), True, "its end")
        expect(b.count_other(9), 0, "bytes that were changed after that")


# --- how agents find each other, and what they can be told


@short
def metadata_through_the_listen_thread():
    ports = [18500 + os.getpid() % 1000 * 2, 18501 + os.getpid() % 1000 * 2]
    with Side("a", listen_port=ports[0]) as a, Side("b", listen_port=ports[1]) as b:
        expect(a.fetch("b", ports[1]), True, "a has b's metadata")
        expect(a.move("WRITE", "b", b.address(), 4096, [0], [0], b"found"), "DONE", "write")
        expect(b.told(1), [("a", b"found")], "notification")


@short
def the_example_is_as_printed():
    def start(*arguments):
        program = [sys.executable, "examples/nixl_pair.py", *arguments]
        return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    processes = [start("owner"), start("reader", "127.0.0.1")]
    try:
        said = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    expect(said[0][0], "the reader says [b'thank you']\n", f"the owner: {said[0][1]}")
    expect(said[1][0], "DONE 8388608 bytes, verified\n", f"the reader: {said[1][1]}")


@short
def parameters_are_taken():
    ports = f"{20000 + os.getpid() % 4000 * 4}-{20003 + os.getpid() % 4000 * 4}"
    here = {"advertise": "127.0.0.1", "interfaces": "lo", "port": ports, "sockets": "2", "timeout_ms": "20000"}
    with Side("a", parameters=here) as a, Side("b", parameters=here) as b:
        words = a.place().split()
        expect(words[4], "127.0.0.1", "the address that is advertised")
        expect(int(ports[:5]) <= int(words[3]) <= int(ports[6:]), True, f"port {words[3]} of {ports}")
        meet(a, b)
        expect(a.move("WRITE", "b", b.address(), 4096, [0], [0], b"x"), "DONE", "write")


@case
def agents_with_a_secret():
    with tempfile.NamedTemporaryFile() as secret, tempfile.NamedTemporaryFile() as errors:
        secret.write(b"a secret that nobody guesses\n")
        secret.flush()
        ours = {"secret_file": secret.name, "timeout_ms": "3000"}
        try:
            a = Side("a", parameters=ours, errors=errors.name)
        except Failure:
            said = open(errors.name).read()
            raise Skip("libsodium is not installed") if "sodium" in said else Failure(said)
        with a, Side("b", parameters=ours) as b, Side("stranger", parameters={"timeout_ms": "2000"}) as stranger:
            meet(a, b, stranger)
            expect(a.move("WRITE", "b", b.address(), 4096, [0], [0]), "DONE", "with the secret")
            handle = stranger.prepare("READ", "a", a.address(), 4096, [0], [0])
            stranger.post(handle)
            expect(stranger.wait(handle), "nixlRemoteDisconnectError", "without it")


@short
def wrong_parameters_are_refused_in_words():
    wrong = [
        ({"portt": "1"}, 'no parameter "portt"; it has port, advertise,'),
        ({"port": "many"}, "UCCL_TCPX_PORT=many is not valid: expected auto, a port from 1 to 65535"),
        ({"timeout_ms": "1"}, "timeout_ms=1: expected milliseconds from 100 to 3600000"),
        ({"channels": "0"}, "channels=0: expected a number from 1 to 64"),
        ({"secret_file": "/does/not/exist"}, "/does/not/exist"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for number, (parameters, words) in enumerate(wrong):
            errors = f"{folder}/{number}"
            try:
                Side("a", parameters=parameters, errors=errors).kill()
            except Failure:
                said = open(errors).read()
                expect(words in said, True, f"the words for {parameters}: {said}")
            else:
                raise Failure(f"{parameters} were taken")


def an_unknown_interface_is_refused():
    """Of a NIXL before 1.0.0: in words, and without harm to the process."""
    with tempfile.NamedTemporaryFile() as errors:
        try:
            Side("a", errors=errors.name).kill()
        except Failure as failure:
            said = open(errors.name).read()
            expect("is made for NIXL 1.0.0" in said and "virtual functions there" in said, True, said)
            expect("has ended" in str(failure), False, f"the process lives: {failure}")
        else:
            raise Failure("it was taken")


def main():
    multiprocessing.set_start_method("spawn")
    os.environ.setdefault("NIXL_LOG_LEVEL", "error")
    wanted = sys.argv[1:] or ["all"]
    chosen = {"all": CASES, "short": SHORT, "refused": [an_unknown_interface_is_refused]}.get(wanted[0]) or [
        function for function in CASES if function.__name__ in wanted
    ]
    failed = 0
    for number, function in enumerate(chosen, 1):
        begun = time.monotonic()
        line, detail = f"ok {number} - {function.__name__.replace('_', ' ')}", ""
        try:
            function()
            line += f" # {time.monotonic() - begun:.1f} s"
        except Skip as skipped:
            line += f" # SKIP {skipped}"
        except Exception:
            line, detail = "not " + line, traceback.format_exc()
            failed += 1
        print("\n# ".join([line] + detail.splitlines()), flush=True)
    print(f"1..{len(chosen)}")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
