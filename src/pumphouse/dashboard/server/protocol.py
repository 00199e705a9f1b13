"""HTTP connections of the page with deadlines, which uvicorn does not have.

A client that sends half a request, or does not read its stream, would keep its connection open
forever. Here a request must be complete REQUEST_S after its first byte (or after the connect), and
a client must read what was sent to it within WRITE_S.

A client without the token keeps no other client out: if CONNECTIONS_MAX are open, one of them is
closed in favour of the new one. Connections that have had no allowed request are closed first, then
those that wait for their next request, and among these the one that has waited longest. A
connection with an allowed request in progress, such as a stream, stays.

    socket -> TimedProtocol -> uvicorn -> routes
              ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeGuard

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from pumphouse.dashboard.server.client_log import RequestLog
from pumphouse.dashboard.server.guard import HEAD_BYTES_MAX
from pumphouse.http_requests import RequestParser

CONNECTIONS_MAX = 200  # a browser opens up to six to one server
REQUEST_S = 10.0
WRITE_S = 30.0  # a stream sends an update or a heartbeat every ten seconds
# What is handled before other connections have their turn. A body in chunks is refused: 2,700
# chunks of one byte in such a read would take 10 ms.
READ_BYTES_MAX = 16 * 1024
# Connections that are accepted in one turn of the loop. A request is read and checked three turns
# after its connection is accepted: fewer than CONNECTIONS_MAX others arrive meanwhile.
BACKLOG = 50
ALLOWED = "pumphouse.allowed"  # in the state of a request: the guard has allowed it


class TimedProtocol(H11Protocol, asyncio.BufferedProtocol):
    """One connection of a browser."""

    conn: RequestParser

    def __init__(self, request_log: RequestLog, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = RequestParser(HEAD_BYTES_MAX, accept_chunks=False)
        self.logger = request_log  # type: ignore[assignment]
        self.read_buffer = memoryview(bytearray(READ_BYTES_MAX))
        self.request_timer = Timer()
        self.write_timer = Timer()
        self.has_been_allowed = False
        self.waiting_since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.make_room()
        self.request_timer.start(REQUEST_S, transport)

    def make_room(self) -> None:
        """Close one connection if there are too many: this one, if no other one may be closed."""
        others = [each for each in self.connections if is_open(each) and each is not self]
        if len(others) >= CONNECTIONS_MAX:
            waiting = [each for each in others if not each.is_serving]
            min(waiting, key=TimedProtocol.rank, default=self).transport.abort()

    def rank(self) -> tuple[bool, float]:
        """Sort key: the connection with the lowest rank is closed first."""
        return self.has_been_allowed, self.waiting_since

    @property
    def is_serving(self) -> bool:
        """Whether an allowed request is in progress."""
        return self.is_allowed and not self.cycle.response_complete

    @property
    def is_allowed(self) -> bool:
        return self.cycle is not None and ALLOWED in self.scope.get("state", {})

    def on_response_complete(self) -> None:
        if self.is_allowed:
            self.has_been_allowed, self.waiting_since = True, self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.request_timer.stop()
        self.write_timer.stop()
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self.read_buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.has_half_a_request():
            self.request_timer.start(REQUEST_S, self.transport)
        else:
            self.request_timer.stop()

    def has_half_a_request(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY or self.conn.has_part_of_a_head

    def send_400_response(self, msg: str) -> None:
        """Refuse an invalid request; only close if its response has already begun."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # its handler sends nothing more
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(self.conn.refused_because or msg)
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.write_timer.start(WRITE_S, self.transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.write_timer.stop()


def is_open(connection: object) -> TypeGuard[TimedProtocol]:
    return isinstance(connection, TimedProtocol) and not connection.transport.is_closing()


class Timer:
    """Aborts a connection after a time, unless it is stopped."""

    def __init__(self) -> None:
        self.handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float, transport: asyncio.Transport) -> None:
        """Start the timer, unless it runs already: more bytes of a request do not extend it."""
        if self.handle is None and not transport.is_closing():
            loop = asyncio.get_running_loop()
            self.handle = loop.call_later(seconds, transport.abort)

    def stop(self) -> None:
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None
