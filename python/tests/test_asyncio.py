"""asyncio: transfers, notes and peers that are awaited, cancelled, in several loops."""

import asyncio
import logging
import os
import threading
import unittest.mock

import support
import tap
import tcpx
import tcpx._asyncio
from support import SECONDS, Ends

COUNT = 1000


async def result_of(transfer):
    return await transfer


class Awaited(Ends):
    def run_async(self, coroutine):
        """Every test has to leave no descriptor and no waiter behind."""
        before = len(os.listdir("/proc/self/fd"))

        async def main():
            return await asyncio.wait_for(coroutine, SECONDS)

        result = asyncio.run(main())
        for session in (self.here, self.there):
            if session._events is not None:
                self.assertEqual(session._events.readers, {})
                self.assertEqual(session._events.note_waiters, [])
        # Each session's own eventfd may have come.
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), before + 2)
        return result

    def test_many_reads(self):
        """1000 reads that are awaited at once"""
        theirs = bytes(range(256)) * 40
        window = tcpx.Window(theirs, read=True)
        remote = self.here.remote(window.key)
        into = [bytearray(10) for _ in range(COUNT)]

        async def main():
            reads = (self.here.read(into[i], remote[i : i + 10]) for i in range(COUNT))
            await asyncio.gather(*map(result_of, reads))

        self.run_async(main())
        for i in range(COUNT):
            self.assertEqual(into[i], theirs[i : i + 10])

    def test_ends_early(self):
        """a read that ends after it was asked about and before the eventfd is there"""
        window = tcpx.Window(b"early", read=True)
        into = bytearray(5)
        original = tcpx._asyncio._Reader

        def late(*arguments):
            support.wait_until(lambda: self.here.statistics()["reads"] == 1)
            return original(*arguments)

        async def main():
            remote = self.here.remote(window.key)
            with unittest.mock.patch("tcpx._asyncio._Reader", late):
                await self.here.read(into, remote)

        self.run_async(main())
        self.assertEqual(into, b"early")

    def test_sends(self):
        """sends and receives that are awaited, a transfer also twice and when it is done"""

        async def main():
            into = bytearray(4)
            receive = self.there.receive(into)
            await self.here.send(b"abcd")
            await asyncio.gather(result_of(receive), result_of(receive))
            await receive
            return into

        self.assertEqual(self.run_async(main()), b"abcd")

    def test_failure(self):
        """what fails raises where it is awaited"""

        async def main():
            receive = self.there.receive(bytearray(4), 1)
            self.here.send(b"12345", 1)
            with self.assertRaisesRegex(tcpx.Error, "tag 1"):
                await receive

        self.run_async(main())

    def test_cancelled_task(self):
        """a cancelled task cancels its transfer, and awaits its end"""
        receive = self.there.receive(bytearray(4))

        async def main():
            task = asyncio.ensure_future(result_of(receive))
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            with self.assertRaises(tcpx.Cancelled):
                receive.done()

        self.run_async(main())

    def test_time_out(self):
        """asyncio.timeout() ends a transfer"""

        async def main():
            with self.assertRaises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await self.there.receive(bytearray(4))

        self.run_async(main())

    def test_cancelled_chunks(self):
        """a task whose transfer cannot be cancelled is cancelled alone"""
        here, there = support.pair(channels=2)
        into = bytearray(4)
        receive = there.receive(into)

        async def main():
            with self.assertRaises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await receive
            await here.send(b"late")
            await receive

        self.run_async(main())
        self.assertEqual(into, b"late")
        here.close()
        there.close()

    def test_peer_closes(self):
        """a peer that closes ends what is awaited"""

        async def main():
            receive = self.here.receive(bytearray(4))
            task = asyncio.ensure_future(result_of(receive))
            await asyncio.sleep(0)
            self.there.close()
            with self.assertRaises(tcpx.PeerError):
                await task

        self.run_async(main())

    def test_closed_here(self):
        """the session that is closed here ends what is awaited"""

        async def main():
            receive = self.here.receive(bytearray(4))
            task = asyncio.ensure_future(result_of(receive))
            await asyncio.sleep(0)
            async with self.here as session:
                self.assertIs(session, self.here)
            with self.assertRaisesRegex(tcpx.Cancelled, "session was closed"):
                await task
            with self.assertRaisesRegex(tcpx.Cancelled, "session was closed"):
                await receive

        self.run_async(main())

    def test_waited_elsewhere(self):
        """a thread that waits for the same transfer does not take its end away"""
        receive = self.there.receive(bytearray(4))
        thread = threading.Thread(target=receive.wait)
        thread.start()

        async def main():
            task = asyncio.ensure_future(result_of(receive))
            await asyncio.sleep(0.01)
            self.here.send(b"both")
            await task

        self.run_async(main())
        thread.join(SECONDS)
        self.assertFalse(thread.is_alive())

    def test_two_loops(self):
        """two event loops wait for one session, each for its own transfers"""
        wrong = []
        window = tcpx.Window(b"x" * 100, read=True)
        remote = self.here.remote(window.key)

        async def main():
            for _ in range(100):
                into = bytearray(100)
                await self.here.read(into, remote)
                if into != b"x" * 100:
                    wrong.append(into)

        def loop():
            try:
                asyncio.run(asyncio.wait_for(main(), SECONDS))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=loop) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * SECONDS)
        self.assertEqual(wrong, [])

    def test_notes(self):
        """notes that are awaited, and those that had come before"""

        async def main():
            self.there.note(b"early")
            early = await self.here.wait_notes()
            task = asyncio.ensure_future(self.here.wait_notes())
            await asyncio.sleep(0.01)
            self.there.note(b"late")
            return early, await task

        self.assertEqual(self.run_async(main()), ([b"early"], [b"late"]))

    def test_notes_fail(self):
        """a task that waits for notes learns that the peer has closed"""

        async def main():
            task = asyncio.ensure_future(self.here.wait_notes())
            await asyncio.sleep(0.01)
            self.there.close()
            with self.assertRaises(tcpx.PeerError):
                await task

        self.run_async(main())

    def test_notes_closed_here(self):
        """a task that waits for notes learns that the session was closed here"""

        async def main():
            task = asyncio.ensure_future(self.here.wait_notes())
            await asyncio.sleep(0.01)
            self.here.close()
            with self.assertRaises(tcpx.UsageError):
                await task

        self.run_async(main())

    def test_listener(self):
        """async for takes peers; one that does not fit is logged, and ends nothing"""
        log = logging.getLogger("tcpx")
        listener = tcpx.listen("127.0.0.1", 0, channels=1)

        def come(**options):
            return tcpx.connect("127.0.0.1", listener.port, timeout=SECONDS, **options)

        async def serve(sessions):
            async for session in listener:
                sessions.append(session)

        async def main():
            sessions = []
            serving = asyncio.ensure_future(serve(sessions))
            with self.assertRaises(tcpx.Error):
                await asyncio.to_thread(come, channels=2)
            peers = [await asyncio.to_thread(come) for _ in range(2)]
            listener.close()
            await serving
            for session in sessions + peers:
                session.close()
            return len(sessions)

        with self.assertLogs(log, "WARNING") as logged:
            self.assertEqual(self.run_async(main()), 2)
        self.assertIn("a peer did not become a session", logged.output[0])


if __name__ == "__main__":
    tap.main()
