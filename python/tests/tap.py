"""Runs the tests of one file and prints TAP, as the runner of the repository reads it: tap.main()."""

import os
import sys
import traceback
import unittest
from fnmatch import fnmatch


class Result(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.count = 0
        self.good = True

    def line(self, test, state="ok", note=""):
        self.count += 1
        name = (test.shortDescription() or str(test)).replace("#", "")
        print(f"{state} {self.count} - {name}{note}", flush=True)

    def bad(self, test, error):
        self.good = False
        self.line(test, "not ok")
        for line in "".join(traceback.format_exception(*error)).splitlines():
            print("#", line, flush=True)

    def addSuccess(self, test):
        self.line(test)

    def addSkip(self, test, reason):
        self.line(test, note=f" # SKIP {reason}")

    def addError(self, test, error):
        self.bad(test, error)

    def addFailure(self, test, error):
        self.bad(test, error)


def tests_of(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


def main():
    """Only those that TCPX_TEST_CASE names, if it is set."""
    wanted = os.environ.get("TCPX_TEST_CASE", "*")
    loaded = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    suite = unittest.TestSuite(t for t in tests_of(loaded) if fnmatch(t._testMethodName, wanted))
    result = Result()
    suite.run(result)
    print(f"1..{result.count}")
    sys.exit(not result.good)
