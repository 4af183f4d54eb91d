"""doctor(): what `tcpx doctor` finds on this machine, as objects."""

import json
import os
import signal
import subprocess
from dataclasses import dataclass

from tcpx._errors import Error, Timeout, UsageError
from tcpx._program import path


@dataclass(frozen=True)
class Finding:
    """One line of `tcpx doctor`."""

    group: str  # what it is about: "kernel", "network", "GPU", ...
    name: str
    level: str  # "ok", "note" or "problem"
    text: str  # what was found
    advice: str  # what to do about it; "": nothing

    def __str__(self):
        return f"{self.level}: {self.name}: {self.text}" + (f" -> {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class Diagnosis:
    """All that was found."""

    findings: tuple[Finding, ...]
    transfer: dict | None  # the transfer that was measured, as `tcpx doctor --json` has it; None: there was none

    @property
    def problems(self):
        """What does not work, or not as it was asked for."""
        return [finding for finding in self.findings if finding.level == "problem"]

    @property
    def notes(self):
        """What works, but could be better, or is worth knowing."""
        return [finding for finding in self.findings if finding.level == "note"]


def doctor(*, gpu=None, quick=False, timeout=120.0):
    """Looks for what is wrong with this machine, and measures what limits, as `tcpx doctor` does.

    It runs in a process of its own. gpu: looks at this GPU only. quick: does not measure a transfer.
    """
    arguments = ["--json"]
    if gpu is not None:
        arguments += ["--gpu", str(gpu)]
    if quick:
        arguments += ["--quick"]
    status, said, complaint = _run(["doctor", *arguments], timeout)
    if status == 2:
        raise UsageError(complaint.strip().splitlines()[0])
    try:
        found = json.loads(said)
    except ValueError:
        raise Error(f"the program tcpx has ended with status {status}: {complaint.strip()}") from None
    names = Finding.__dataclass_fields__
    findings = tuple(Finding(**{name: one[name] for name in names}) for one in found["findings"])
    return Diagnosis(findings, found["transfer"])


def _run(arguments, timeout):
    """In a group of its own, so that its children end with it."""
    try:
        program = subprocess.Popen(
            [path(), *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
        )  # fmt: skip
    except OSError as error:
        raise Error(f"{path()} cannot be executed: {error.strerror}") from None
    with program:
        try:
            said, complaint = program.communicate(timeout=timeout)
        except BaseException as error:
            os.killpg(program.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Timeout(f"tcpx doctor was not done in {timeout} s") from None
            raise
    return program.returncode, said, complaint
