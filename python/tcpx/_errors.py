"""The exceptions of tcpx. Each has the text of the library and, in result, its number."""


class Error(Exception):
    """A call of tcpx has failed. result is one of enum tcpx_result in tcpx.h."""

    result = 0


class UsageError(Error, ValueError):
    """The call is wrong, by itself or here and now; nothing has begun."""


class NetworkError(Error, OSError):
    """A system call has failed: no memory, a port that is taken, ..."""


class PeerError(NetworkError, ConnectionError):
    """The peer, or the connection to it, has failed: close the session."""


class Timeout(Error, TimeoutError):
    """The time is over. What was waited for goes on; a read or a write was cancelled."""


class Cancelled(Error):
    """The program itself has ended the transfer early."""


class GpuError(Error):
    """The GPU or its driver refused."""


_KINDS = {
    1: GpuError,  # TCPX_CUDA_ERROR
    2: PeerError,  # TCPX_SYSTEM_ERROR: mostly a broken connection
    4: UsageError,  # TCPX_INVALID_ARGUMENT
    5: UsageError,  # TCPX_INVALID_USAGE
    6: PeerError,  # TCPX_REMOTE_ERROR
    7: Timeout,  # TCPX_IN_PROGRESS
    100: Cancelled,  # TCPX_CANCELLED
}


def exception_of(result, text, has_peer):
    """The exception for a result of the library, of a call that has to do with a peer or not."""
    kind = _KINDS.get(result, Error)
    if kind is PeerError and not has_peer:
        kind = NetworkError
    error = kind(text)
    error.result = result
    return error
