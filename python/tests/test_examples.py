"""The examples, and the lines of README.md and docs/python.md, in two processes each."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

import tap
from support import SECONDS


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def ends(*programs):
    """What each has printed; each has to end well."""
    said = [program.communicate(timeout=SECONDS)[0] for program in programs]
    for program, text in zip(programs, said, strict=True):
        if program.returncode != 0:
            raise AssertionError(f"status {program.returncode}: {text}")
    return said


def port_of(program):
    """Of its first line."""
    line = program.stdout.readline()
    found = re.search(r"listening on port (\d+)", line)
    if found is None:
        raise AssertionError(line + program.communicate()[0])
    return found[1]


def blocks_of(document):
    """The Python code that a document shows."""
    with open(document) as file:
        return re.findall(r"^```python\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)


class Examples(unittest.TestCase):
    def needs_numpy(self):
        if importlib.util.find_spec("numpy") is None:
            self.skipTest("numpy is not installed")

    def test_prefill_decode(self):
        """decode reads blocks of prefill's cache"""
        with tempfile.TemporaryDirectory() as folder:
            ticket = f"{folder}/ticket"
            prefill = start("examples/python/prefill_decode.py", "prefill", ticket, "0")
            port = port_of(prefill)
            self.assertEqual(os.stat(ticket).st_mode & 0o777, 0o600)
            decode = start("examples/python/prefill_decode.py", "decode", ticket, "127.0.0.1", port)
            said = ends(decode, prefill)
        self.assertIn("every byte is right", said[0])
        self.assertEqual(said[1].count("decode has its blocks"), 3)

    def test_copy_model(self):
        """a model is copied, with a progress bar"""
        self.needs_numpy()
        give = start("examples/python/copy_model.py", "give", "0")
        take = start("examples/python/copy_model.py", "take", "127.0.0.1", port_of(give))
        said = ends(take, give)
        self.assertIn("took 18 arrays, every number is right", said[0])
        self.assertIn("[########################################]", said[0])
        self.assertIn("gave 18 arrays to taker", said[1])

    def test_usage(self):
        """without arguments they say how they are used"""
        for name in ("prefill_decode", "copy_model"):
            if name == "copy_model":
                self.needs_numpy()
            said = start(f"examples/python/{name}.py").communicate(timeout=SECONDS)[0]
            self.assertIn(f"python {name}.py", said)


class Readme(unittest.TestCase):
    def test_lines(self):
        """the README's two programs, as they are but for the host and the port"""
        if importlib.util.find_spec("numpy") is None:
            self.skipTest("numpy is not installed")
        receiver, sender = blocks_of("README.md")
        self.assertLessEqual(len((receiver + sender).split("\n")), 14)
        receiver = receiver.replace("listen()", 'listen("127.0.0.1", 0)')
        receiver = receiver.replace(".accept()", "; print('listening on port', session.port, flush=True)\nsession = session.accept()")
        program = start("-c", receiver)
        port = port_of(program)
        sender = sender.replace('"HOST"', f'"127.0.0.1", {port}')
        self.assertIn(port, sender)
        said = ends(start("-c", sender), program)
        self.assertEqual(said[1].strip(), "[0. 1. 2. 3. 4.]")


class Documents(unittest.TestCase):
    def test_compiles(self):
        """the code that the documents show is Python"""
        shown = blocks_of("docs/python.md") + blocks_of("docs/integrations.md")
        self.assertGreater(len(shown), 4)
        for text in shown:
            compile(text, "the documents", "exec", flags=0x2000)  # with await outside of functions


if __name__ == "__main__":
    tap.main()
