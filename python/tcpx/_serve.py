"""Listener.serve(): peers are accepted, and their notes handed out, in threads of their own."""

import logging
import selectors
import socket
import threading

from tcpx import Error, Timeout

_log = logging.getLogger("tcpx")
_LOOK_SECONDS = 0.25
_PAUSE_SECONDS = 0.1


class _Server:
    def __init__(self, listener, on_note, on_session):
        self.listener = listener
        self.on_note = on_note
        self.on_session = on_session
        self.lock = threading.Lock()  # guards `arrived`
        self.arrived = []
        self.bell, self.button = socket.socketpair()
        self.bell.setblocking(False)
        threading.Thread(target=self.accept, name="tcpx-accept", daemon=True).start()
        threading.Thread(target=self.watch, name="tcpx-notes", daemon=True).start()

    # In one thread: peers.

    def accept(self):
        while not self.listener.closed:
            try:
                session = self.listener.accept(_LOOK_SECONDS)
            except Timeout:
                continue
            except Error as error:
                if not self.listener.closed:
                    _log.warning("a peer did not become a session: %s", error)
                    threading.Event().wait(_PAUSE_SECONDS)
                continue
            with self.lock:
                self.arrived.append(session)
            self.button.send(b"x")
        self.button.close()

    # In the other one: their sessions, until the first one has ended and closed the button.

    def watch(self):
        with selectors.DefaultSelector() as selector, self.bell:
            selector.register(self.bell, selectors.EVENT_READ)
            while self.serve_once(selector):
                pass
            for key in list(selector.get_map().values()):
                if key.fileobj is not self.bell:
                    key.data.close()

    def serve_once(self, selector):
        for key, _ in selector.select():
            if key.fileobj is not self.bell:
                self.hand_out(selector, key.fd, key.data)
            elif not self.bell.recv(4096):
                return False
            else:
                self.welcome(selector)
        return True

    def welcome(self, selector):
        with self.lock:
            arrived, self.arrived = self.arrived, []
        for session in arrived:
            self.call(self.on_session, session)
            try:
                fd = session.fileno()
            except Error:  # on_session has closed it
                continue
            if fd in selector.get_map():  # of a session that the program has closed
                selector.unregister(fd)
            selector.register(fd, selectors.EVENT_READ, session)
            self.hand_out(selector, fd, session)  # what came before it was watched

    def hand_out(self, selector, fd, session):
        try:
            notes = session.notes(0.001)  # which also resets the descriptor
        except Error:
            selector.unregister(fd)
            session.close()
            return
        for note in notes:
            self.call(self.on_note, session, note)

    @staticmethod
    def call(function, *arguments):
        if function is None:
            return
        try:
            function(*arguments)
        except Exception:
            _log.exception("a function given to Listener.serve() has failed")


def serve(listener, on_note, on_session):
    _Server(listener, on_note, on_session)
