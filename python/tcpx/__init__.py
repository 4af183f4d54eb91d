"""tcpx moves memory between two processes over TCP: of GPUs, or of hosts.

Two processes, the first one on a host named a:

    import numpy, tcpx                                  # the first one

    session = tcpx.listen(port=12345).accept()
    array = numpy.empty(1000)
    session.receive(array).wait()

    import numpy, tcpx                                  # the second one

    with tcpx.connect("a", 12345) as session:
        session.send(numpy.arange(1000.0)).wait()

Any contiguous tensor or array will do: of torch, cupy, numpy and jax, on a GPU or not, and whatever
has a buffer: bytearray, mmap, array. connect() and listen() take gpu=0 for memory of GPU 0.

One side can also read and write memory of the other, without a call there:

    window = tcpx.Window(cache, read=True, block=4096)  # here; window.key goes to the peer
    listener = tcpx.listen(windows=True)

    remote = session.remote(key, block=4096)            # there
    mine = tcpx.Window(own_cache, block=4096)
    await session.read(mine.blocks([0, 1, 2]), remote.blocks([7, 3, 12]), note=b"request 42")

Every transfer can be waited for, asked, awaited and cancelled: see help(tcpx.Transfer).

Failures are exceptions with the library's text: UsageError (a ValueError), PeerError (a
ConnectionError), Timeout (a TimeoutError), Cancelled, GpuError; all of them are tcpx.Error.

python -m tcpx devices, doctor, perf, ... is the program. doctor() gives what it finds as objects.
tcpx.integrations has what Ray and LMCache load.
"""

import atexit as _atexit

from tcpx import _tcpx
from tcpx._doctor import Diagnosis, Finding, doctor
from tcpx._errors import (
    Cancelled,
    Error,
    GpuError,
    NetworkError,
    PeerError,
    Timeout,
    UsageError,
)
from tcpx._tcpx import (
    GpuMemory,
    Listener,
    Parts,
    Remote,
    Session,
    Transfer,
    Window,
    connect,
    gpus,
    listen,
)

__version__ = _tcpx.version

__all__ = [
    "Cancelled",
    "Diagnosis",
    "Error",
    "Finding",
    "GpuError",
    "GpuMemory",
    "Listener",
    "NetworkError",
    "Parts",
    "PeerError",
    "Remote",
    "Session",
    "Timeout",
    "Transfer",
    "UsageError",
    "Window",
    "connect",
    "doctor",
    "gpus",
    "listen",
]

for _name in __all__:
    if _name[0].isupper():
        continue
    globals()[_name].__module__ = "tcpx"

for _type in (Cancelled, Diagnosis, Error, Finding, GpuError, NetworkError, PeerError, Timeout, UsageError):
    _type.__module__ = "tcpx"

# While objects still have their memory: after it nothing is touched by the network.
_atexit.register(_tcpx._close_all)
