"""asyncio: transfers, notes and peers that are awaited.

An event loop that waits for a session reads a descriptor of its own of the session's eventfd, and
only as long as somebody waits. Whoever finds that a transfer has ended hands that to all waiters,
whichever loop and thread they belong to.
"""

import asyncio
import logging
import os

_log = logging.getLogger("tcpx")


class Events:
    """What waits for a session: its readers by event loop, and who waits for notes."""

    def __init__(self):
        self.readers = {}
        self.note_waiters = []

    def wake(self, session):
        """Something has ended without the eventfd. From any thread."""
        for loop in list(self.readers):
            _call_in(loop, _deliver, session)


class _Waiter:
    def __init__(self, loop):
        self.loop = loop
        self.future = loop.create_future()

    def finish(self):
        if not self.future.done():
            self.future.set_result(None)


class _Reader:
    """The descriptor of one loop: there as long as somebody of it waits."""

    def __init__(self, loop, session):
        self.loop = loop
        self.waiting = 0
        self.fd = os.dup(session.fileno())
        loop.add_reader(self.fd, _on_event, self.fd, session)

    def close(self):
        self.loop.remove_reader(self.fd)
        os.close(self.fd)


def _call_in(loop, function, *arguments):
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        pass  # the loop is closed, and nobody waits in it any more


def _on_event(fd, session):
    try:
        os.read(fd, 8)
    except BlockingIOError:
        pass  # another loop was first, and hands out what there is
    _deliver(session)


def _deliver(session):
    for waiter in session._ended() + session._events.note_waiters:
        if waiter.loop is asyncio.get_running_loop():
            waiter.finish()
        else:
            _call_in(waiter.loop, waiter.finish)


class _Waiting:
    """While a task of the running loop waits for the session."""

    def __init__(self, session):
        self.session = session
        self.loop = asyncio.get_running_loop()
        if session._events is None:
            session._events = Events()
        self.readers = session._events.readers

    def __enter__(self):
        reader = self.readers.get(self.loop)
        if reader is None:
            reader = self.readers[self.loop] = _Reader(self.loop, self.session)
        reader.waiting += 1
        return _Waiter(self.loop)

    def __exit__(self, *_):
        reader = self.readers[self.loop]
        reader.waiting -= 1
        if reader.waiting > 0:
            return
        # A task that awaits one transfer after the other waits again before this is called.
        try:
            self.loop.call_soon(self.close_if_idle, reader)
        except RuntimeError:  # the loop is closed
            self.close_if_idle(reader)

    def close_if_idle(self, reader):
        if reader.waiting == 0 and self.readers.get(self.loop) is reader:
            del self.readers[self.loop]
            reader.close()


async def _wait_until_ended(transfer):
    """Also of one that fails. The caller's _Waiting keeps the loop's descriptor open."""
    session = transfer._session
    if session.closed:
        return
    with _Waiting(session) as waiter:
        if not transfer._add_waiter(waiter):
            # It may have ended already, and the program may have read the eventfd itself. Then this wakes the waiter.
            try:
                transfer.done()
            except Exception:  # the task that awaits the transfer gets it
                pass
            await waiter.future


async def _give_up(transfer):
    """After it the memory is the caller's again, unless the transfer cannot be cancelled."""
    try:
        transfer.cancel()
    except Exception as error:  # as of one that goes in chunks: it goes on, and is kept alive
        _log.debug("a cancelled task leaves a transfer under way: %s", error)
        return
    await _wait_until_ended(transfer)


async def wait_for(transfer):
    """What `await transfer` does."""
    try:
        if not transfer.done():
            await _wait_until_ended(transfer)
    except asyncio.CancelledError:
        await _give_up(transfer)
        raise
    transfer.wait()


async def wait_notes(session):
    """What Session.wait_notes() does."""
    notes = session.notes()
    while not notes:
        with _Waiting(session) as waiter:
            waiters = session._events.note_waiters
            waiters.append(waiter)
            try:
                notes = session.notes()  # what came before the eventfd was there
                if not notes:
                    await waiter.future
            finally:
                waiters.remove(waiter)
        notes = notes or session.notes()
    return notes


async def itself(session):
    """What `async with session` gets."""
    return session


async def close(session):
    """A close waits for the peer's host, half a second at most."""
    await asyncio.get_running_loop().run_in_executor(None, session.close)


_LOOK_SECONDS = 0.25
_PAUSE_SECONDS = 0.1


def _accept(listener):
    """In a thread: a session, None, or the reason why a peer did not become one."""
    from tcpx import Error, Timeout

    try:
        return listener.accept(_LOOK_SECONDS)
    except Timeout:
        return None
    except Error as error:
        return None if listener.closed else error


def _close_late(future):
    if not future.cancelled() and future.exception() is None and hasattr(future.result(), "close"):
        future.result().close()


async def accept(listener):
    """What `async for session in listener` waits for. A peer that does not fit is logged."""
    loop = asyncio.get_running_loop()
    while not listener.closed:
        future = loop.run_in_executor(None, _accept, listener)
        try:
            found = await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(_close_late)
            raise
        if isinstance(found, Exception):
            _log.warning("a peer did not become a session: %s", found)
            await asyncio.sleep(_PAUSE_SECONDS)
        elif found is not None:
            return found
    raise StopAsyncIteration
