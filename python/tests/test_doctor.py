"""tcpx.doctor(): what `tcpx doctor` finds on this machine, as objects."""

import os
import re
import signal
import stat
import subprocess
import tempfile
import time
import unittest
from unittest import mock

import tap
import tcpx
from tcpx import _doctor, _program


class Stub:
    """A program in place of tcpx."""

    def __init__(self, test, text):
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        self.pids = f"{folder.name}/pids"
        file = f"{folder.name}/tcpx"
        with open(file, "w") as program:
            program.write(f"#!/bin/sh\n{text.format(pids=self.pids)}\n")
        os.chmod(file, stat.S_IRWXU)
        patch = mock.patch.object(_doctor, "path", lambda: file)
        patch.start()
        test.addCleanup(patch.stop)


class Doctor(unittest.TestCase):
    def setUp(self):
        os.environ.pop("LD_PRELOAD", None)  # of a sanitizer: the program brings its own

    def test_quick(self):
        """the same findings as the program's own lines"""
        found = tcpx.doctor(quick=True)
        self.assertIsNone(found.transfer)
        self.assertIn("kernel", {finding.group for finding in found.findings})
        self.assertEqual({finding.level for finding in found.findings} - {"ok", "note", "problem"}, set())
        said = subprocess.run([_program.path(), "doctor", "--quick"], capture_output=True, text=True, check=False).stdout
        self.assertEqual(len(found.notes), len(re.findall(r"^  note ", said, re.MULTILINE)))
        for finding in found.findings:
            self.assertIn(finding.name, said)
            self.assertIn(finding.text, str(finding))
            self.assertIn(finding.advice, str(finding))

    def test_transfer(self):
        """the transfer is measured, and a stage of it limits"""
        found = tcpx.doctor(gpu=0)
        self.assertEqual(found.problems, [])
        self.assertGreater(found.transfer["gigabytes_per_second"], 0)

    def test_problem(self):
        """a wrong variable is a problem with advice"""
        with mock.patch.dict(os.environ, UCCL_TCPX_SOCKETS="none"):
            found = tcpx.doctor(quick=True)
        self.assertTrue(any("UCCL_TCPX_SOCKETS" in str(problem) for problem in found.problems), found.problems)

    def test_refused(self):
        """a GPU that there cannot be is refused as the program refuses it"""
        with self.assertRaisesRegex(tcpx.UsageError, "not the number of a GPU"):
            tcpx.doctor(gpu=-1)

    def test_late(self):
        """a program that is late is ended, with its children"""
        stub = Stub(self, "sleep 100 & echo $$ $! >{pids}; wait")
        begun = time.monotonic()
        with self.assertRaises(tcpx.Timeout):
            tcpx.doctor(timeout=1)
        self.assertLess(time.monotonic() - begun, 50)
        with open(stub.pids) as file:
            for pid in map(int, file.read().split()):
                self.assertTrue(self.is_gone(pid), pid)

    @staticmethod
    def is_gone(pid):
        """Or waits for whoever collects it."""
        for _ in range(1000):
            try:
                os.kill(pid, 0)
                with open(f"/proc/{pid}/stat") as file:
                    if file.read().rpartition(")")[2].split()[0] == "Z":
                        return True
            except (ProcessLookupError, FileNotFoundError):
                return True
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        return False

    def test_broken(self):
        """a program that fails, says nonsense or is not there is an error in words"""
        Stub(self, "echo 'out of order' >&2; exit 5")
        with self.assertRaisesRegex(tcpx.Error, "status 5: out of order"):
            tcpx.doctor()
        with mock.patch.object(_doctor, "path", lambda: "/nowhere/tcpx"):
            with self.assertRaisesRegex(tcpx.Error, "/nowhere/tcpx cannot be executed: No such file"):
                tcpx.doctor()


if __name__ == "__main__":
    tap.main()
