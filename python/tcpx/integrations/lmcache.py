"""A transfer channel for LMCache: its servers read each other's caches by tcpx.

    python -m tcpx.integrations.lmcache server --p2p-transfer-engine tcpx ...

is `lmcache server ...` with the channel known to it. A program that uses LMCache as a library calls register().

A server opens one window for its whole cache, and gives the key to each peer that connects to its port. A peer reads
any number of objects by one access. LMCache does not stop a read that it no longer waits for, so every read has a
deadline of its own, after which it touches no memory: let it be less than LMCache's --p2p-load-timeout. Needs LMCache
0.5.6 or newer.
"""

import ctypes
import logging
import struct
import sys
import threading
import time

from lmcache.v1.distributed.transfer_channel.abstract import (
    TransferChannelClient,
    TransferChannelContext,
    TransferChannelServer,
)
from lmcache.v1.distributed.transfer_channel.api import (
    TransferChannelAddress,
    TransferChannelReadResult,
)
from lmcache.v1.distributed.transfer_channel.factory import register_transfer_channel_factory

import tcpx
from tcpx.integrations import joined

_log = logging.getLogger("tcpx")
_HELLO = struct.Struct("!8sQ64s")  # a mark, the bytes of the cache, and the key of its window
_MARK = b"tcpxlmc1"
_CONNECT_SECONDS = 60.0
_READ_SECONDS = 20.0


def _host_and_port(url):
    host, colon, port = url.split("://", 1)[-1].rpartition(":")
    if not colon or not host or not port.isdigit():
        raise ValueError(f"{url!r}: expected host:port")
    return host.strip("[]"), int(port)


class Server(TransferChannelServer):
    """Gives the key of the cache's window to each peer that connects."""

    def __init__(self, listen_url, advertise_url, window, secret):
        host, port = _host_and_port(listen_url)
        hello = _HELLO.pack(_MARK, window.nbytes, window.key)
        self.listener = tcpx.listen(
            None if host in ("0.0.0.0", "::", "*") else host, port, name=advertise_url[:63], secret=secret, windows=True
        )
        self.listener.serve(on_session=lambda session: session.note(hello))

    def close(self):
        self.listener.close()


class Client(TransferChannelClient):
    """Reads from one peer. A connection that breaks is made again when the next read is asked for."""

    def __init__(self, window, peer_url, advertise_url, secret, timeout):
        self.window = window
        self.peer_url = peer_url
        self.options = {"name": advertise_url[:63], "secret": secret}
        self.timeout = timeout
        self.lock = threading.Lock()  # guards all of the following
        self.tasks = {}  # reads by number: the transfer, or None if none was begun, when it expires, how many objects
        self.next_task = 0
        self.session = self.remote = None
        self.remote_bytes = 0
        self.connecting = False
        self.closed = False
        self.connect()

    # --- the connection ----------------------------------------------------------------------------------------

    def connect(self):
        session = tcpx.connect(*_host_and_port(self.peer_url), timeout=_CONNECT_SECONDS, **self.options)
        notes = session.notes(_CONNECT_SECONDS)
        if not notes or len(notes[0]) != _HELLO.size or not notes[0].startswith(_MARK):
            session.close()
            raise tcpx.Error(f"{self.peer_url} is no LMCache server with a transfer channel of tcpx")
        _, remote_bytes, key = _HELLO.unpack(notes[0])
        with self.lock:
            if not self.closed:
                self.session, self.remote, self.remote_bytes = session, session.remote(key), remote_bytes
                return
        session.close()

    def connect_again(self):
        """In a thread: LMCache's own must not wait."""
        try:
            self.connect()
        except tcpx.Error as error:
            _log.warning("no connection to the cache of %s: %s", self.peer_url, error)
        with self.lock:
            self.connecting = False

    def lose(self, session, error):
        _log.warning("a read from the cache of %s has failed: %s", self.peer_url, error)
        if not isinstance(error, tcpx.PeerError):
            return
        with self.lock:
            if self.session is session:
                self.session = self.remote = None
        session.close()

    # --- reads -------------------------------------------------------------------------------------------------

    def submit_read(self, local_addresses, remote_addresses):
        pairs = list(zip(local_addresses, remote_addresses, strict=True))
        for here, there in pairs:
            if here.size != there.size:
                raise ValueError(f"an object of {there.size} bytes there, and room for {here.size} here")
        transfer = self.begin(pairs) if pairs else None
        expires = time.monotonic() + self.timeout
        with self.lock:
            number = self.next_task
            self.next_task += 1
            self.tasks[number] = (transfer, expires, len(pairs))
        return number

    def begin(self, pairs):
        """None: the peer cannot be reached now, and the objects are missed."""
        with self.lock:
            session, remote = self.session, self.remote
            if session is None and not self.connecting and not self.closed:
                self.connecting = True
                threading.Thread(target=self.connect_again, name="tcpx-lmcache", daemon=True).start()
        if session is None:
            return None
        for _, there in pairs:
            if not 0 <= there.offset <= self.remote_bytes - there.size:
                raise ValueError(f"{there} is outside of the cache of {self.peer_url}, of {self.remote_bytes} bytes")
        try:
            return session.read(
                joined(self.window[here.offset : here.offset + here.size] for here, _ in pairs),
                joined(remote[there.offset : there.offset + there.size] for _, there in pairs),
                timeout=self.timeout,
            )
        except tcpx.Error as error:
            self.lose(session, error)
            return None

    def query_read_status(self, task_id):
        with self.lock:
            if task_id not in self.tasks:
                raise KeyError(f"there is no read {task_id}, or its end was told already")
            transfer, expires, count = self.tasks[task_id]
        succeeded = False
        if transfer is not None:
            try:
                succeeded = transfer.done()
                if not succeeded and time.monotonic() < expires:
                    return TransferChannelReadResult(finished=False)
                if not succeeded:
                    transfer.cancel()  # after it no memory is touched, even if the peer never answers
                    _log.warning("a read from the cache of %s was not done in %s s", self.peer_url, self.timeout)
            except tcpx.Error as error:
                self.lose(transfer._session, error)
        with self.lock:
            self.tasks.pop(task_id, None)
        return TransferChannelReadResult(finished=True, succeeded_mask=[succeeded] * count)

    def close(self):
        """Reads under way end without touching memory any more."""
        with self.lock:
            session, self.session, self.remote, self.closed = self.session, None, None, True
            self.tasks.clear()
        if session is not None:
            session.close()


class Context(TransferChannelContext):
    """The cache's window, the server, and a client for each peer."""

    def __init__(self, l1_memory_desc, listen_url, advertise_url, secret=None, timeout=_READ_SECONDS):
        size = l1_memory_desc.stable_registration_size or l1_memory_desc.size
        self.advertise_url = advertise_url
        self.secret = secret
        self.timeout = timeout
        self.lock = threading.Lock()  # guards clients
        self.clients = {}
        self.window = tcpx.Window((ctypes.c_char * size).from_address(l1_memory_desc.ptr), read=True, write=False)
        self.server = Server(listen_url, advertise_url, self.window, secret)

    def get_transfer_channel_address(self, lmcache_addresses):
        for offset, size in lmcache_addresses:
            if offset < 0 or size < 0 or offset + size > self.window.nbytes:
                raise ValueError(
                    f"an object of {size} bytes at {offset} is outside of the cache, of {self.window.nbytes} bytes"
                )
        return [TransferChannelAddress(offset=offset, size=size) for offset, size in lmcache_addresses]

    def get_transfer_channel_server(self):
        return self.server

    def get_transfer_channel_client(self, peer_advertise_url):
        with self.lock:
            client = self.clients.get(peer_advertise_url)
        if client is not None:
            return client
        made = Client(self.window, peer_advertise_url, self.advertise_url, self.secret, self.timeout)
        with self.lock:
            client = self.clients.setdefault(peer_advertise_url, made)
        if client is not made:
            made.close()
        return client

    def remove_transfer_channel_client(self, peer_advertise_url):
        with self.lock:
            client = self.clients.pop(peer_advertise_url, None)
        if client is not None:
            client.close()

    def get_num_connected_clients(self):
        with self.lock:
            return len(self.clients)

    def close(self):
        self.server.close()
        with self.lock:
            clients, self.clients = list(self.clients.values()), {}
        for client in clients:
            client.close()
        self.window.close()


def register(name="tcpx", *, secret=None, timeout=_READ_SECONDS):
    """Makes the channel known to the LMCache of this process.

    secret: the path of a file that all servers have, which keeps strangers out. timeout: seconds for a read.
    """

    def create(l1_memory_desc, listen_url, advertise_url, **others):
        return Context(l1_memory_desc, listen_url, advertise_url, secret, timeout)

    register_transfer_channel_factory(name, create)


def main():
    """python -m tcpx.integrations.lmcache ARGUMENTS: `lmcache ARGUMENTS`, which then knows the channel tcpx."""
    from lmcache.cli.main import main as lmcache

    register()
    sys.argv[0] = "lmcache"
    return lmcache()


if __name__ == "__main__":
    sys.exit(main())
