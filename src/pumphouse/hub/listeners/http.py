"""HTTP/1.1 connections of the admin API, parsed by h11.

A response is computed without any waiting, so a connection needs no task. Header size, body size,
number of connections and waiting times are bounded. All connections share turns of TURN_S.
If all connections are in use, the one that was served least recently is closed in favour of the new
one: silent clients keep no other client out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import cast

import h11

from pumphouse.http_requests import RequestParser
from pumphouse.hub.limits.admission import AdmissionLimits, Slot
from pumphouse.hub.listeners.admin_api import BAD_REQUEST, AdminApi, Request, Response, error

log = logging.getLogger("pumphouse.hub")

HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 200
# One connection buffers a request; its response goes into the transport's buffer.
LIMITS = AdmissionLimits(
    CONNECTIONS_MAX,
    CONNECTIONS_MAX,
    anonymous_bytes_max=HEAD_BYTES_MAX + BODY_BYTES_MAX,
    connection_bytes_max=HEAD_BYTES_MAX + BODY_BYTES_MAX,
    total_bytes_max=CONNECTIONS_MAX * (HEAD_BYTES_MAX + BODY_BYTES_MAX),
)
TURN_S = 0.005  # then the other connections of the hub are served
REQUEST_S = 10.0  # for the first request head to arrive after the connect, and for each body
KEEP_OPEN_S = 30.0  # between two requests
TOO_LARGE, HEAD_TOO_LARGE = 413, 431

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class HttpConnection(asyncio.Protocol):
    """One HTTP connection."""

    transport: asyncio.Transport

    def __init__(self, api: AdminApi, slot: Slot, turns: HttpTurns) -> None:
        self.api = api
        self.slot = slot
        self.http = RequestParser(HEAD_BYTES_MAX)
        self.writable = True
        self.waiting = False  # for our turn
        self.ended = False  # the client sends nothing more
        self.turns = turns
        self.deadline: asyncio.TimerHandle | None = None
        self.reset()

    def reset(self) -> None:
        """Prepare for the next request."""
        self.head: h11.Request | None = None
        self.body = bytearray()

    # -- called by the transport ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.slot.close = self.shut
        self.set_deadline(REQUEST_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self.slot.release()
        if self.deadline is not None:
            self.deadline.cancel()

    def shut(self, reason: str) -> None:
        self.transport.abort()

    def fail(self, failure: Exception) -> None:
        """Report an unexpected error and close, as asyncio does if `data_received` raises."""
        context = {"message": "unexpected error of an HTTP request", "exception": failure}
        self.turns.loop.call_exception_handler(context)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self.http.receive_data(data)
        self.wait_for_turn()

    def eof_received(self) -> bool:
        self.http.receive_data(b"")
        self.ended = True
        self.wait_for_turn()
        return True  # the requests that have arrived get their responses; then we close

    def pause_writing(self) -> None:
        self.writable = False
        self.pause_reading()

    def resume_writing(self) -> None:
        self.writable = True
        self.wait_for_turn()

    # -- turns ------------------------------------------------------------------------------------

    def wait_for_turn(self) -> None:
        """Read no more until what has arrived is handled."""
        if self.ready and not self.waiting:
            self.waiting = True
            self.pause_reading()
            self.turns.add(self)

    def take_turn(self, end: float) -> bool:
        """Handle what has arrived, until this time of the loop; returns whether more may be left.

        A read may have thousands of requests.
        """
        try:
            while self.ready and self.step():
                if self.turns.now() > end:
                    return True
        except h11.RemoteProtocolError as failure:
            status = failure.error_status_hint
            self.refuse(error(status, f"invalid HTTP/1.1 request: {failure}"))
        self.waiting = False
        if self.ready:
            self.resume_reading()
        return False

    def pause_reading(self) -> None:
        if not self.ended:
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.ended:  # the end would be read a second time
            self.transport.resume_reading()

    @property
    def ready(self) -> bool:
        """Whether requests are handled: the connection is open, and the client reads."""
        return self.writable and not self.transport.is_closing()

    def set_deadline(self, seconds: float) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
        loop = asyncio.get_running_loop()
        self.deadline = loop.call_later(seconds, self.transport.abort)

    # -- requests ---------------------------------------------------------------------------------

    def step(self) -> bool:
        """Handle one event; False if there is none."""
        event = self.http.next_event()
        if isinstance(event, h11.Request):
            self.begin_request(event)
        elif isinstance(event, h11.Data):
            self.collect(event.data)
        elif isinstance(event, h11.EndOfMessage):
            self.finish_request()
        elif isinstance(event, h11.ConnectionClosed):
            self.transport.close()
        return event is not h11.NEED_DATA and event is not h11.PAUSED

    def begin_request(self, head: h11.Request) -> None:
        self.head = head
        self.set_deadline(REQUEST_S)
        if (fault := head_fault(head)) is not None:
            self.refuse(fault)
        else:
            self.send_continue()

    def send_continue(self) -> None:
        """Ask for the body: some clients wait for status 100 before they send it."""
        if self.http.they_are_waiting_for_100_continue:
            self.write(h11.InformationalResponse(status_code=100, headers=[]))

    def collect(self, data: bytes | bytearray) -> None:
        self.body += data
        if len(self.body) > BODY_BYTES_MAX:
            self.refuse(error(TOO_LARGE, f"the body is larger than {BODY_BYTES_MAX} bytes"))

    def finish_request(self) -> None:
        assert self.head is not None
        request = Request(
            self.head.method.decode("latin-1"),
            self.head.target.decode("latin-1"),
            headers_of(self.head),
            bytes(self.body),
        )
        self.slot.renew()
        self.respond(self.api.handle(request))
        if self.http.our_state is h11.DONE:
            self.http.start_next_cycle()
            self.reset()
            self.set_deadline(KEEP_OPEN_S)
        else:
            self.transport.close()

    # -- responses --------------------------------------------------------------------------------

    def refuse(self, response: Response) -> None:
        """Send an error, if a response is still possible, and close."""
        if self.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.respond(Response(response.status, response.body, {"Connection": "close"}))
        self.transport.close()

    def respond(self, response: Response) -> None:
        headers, body = {**HEADERS, **response.headers}, response.content
        if body:
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self.write(h11.Response(status_code=response.status, headers=list(headers.items())))
        if body:
            self.write(h11.Data(data=body))
        self.write(h11.EndOfMessage())

    def write(self, event: h11.Event) -> None:
        data = self.http.send(event)
        if data:
            self.transport.write(data)


class HttpTurns:
    """Handles the requests of all HTTP connections, one connection after the other.

    HTTP connections need no key. So all of them together get one turn of TURN_S, whatever their
    number is. Then the other connections of the hub are served.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.now = loop.time
        self.waiting: deque[HttpConnection] = deque()

    def add(self, connection: HttpConnection) -> None:
        self.waiting.append(connection)
        if len(self.waiting) == 1:
            self.loop.call_soon(self.run)

    def run(self) -> None:
        end = self.now() + TURN_S
        while True:
            connection = self.waiting[0]  # stays, so that `add` schedules no second run
            try:
                if connection.take_turn(end):
                    self.waiting.append(connection)
            except Exception as failure:  # the others still have their turns
                connection.fail(failure)
            self.waiting.popleft()
            if not self.waiting:
                return
            if self.now() > end:
                break
        self.loop.call_soon(self.run)


def headers_of(head: h11.Request) -> dict[str, str]:
    """The headers by name. The values of a repeated header are joined, as RFC 9110 defines."""
    headers: dict[str, str] = {}
    for name, value in ((n.decode("latin-1"), v.decode("latin-1")) for n, v in head.headers):
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def head_fault(head: h11.Request) -> Response | None:
    """Why a head is refused: it is large, or the length of its request is ambiguous.

    h11 limits only a head that is not complete yet. If a request has both kinds of length, h11
    ignores one of them: a proxy in front of the hub could then see other requests than the hub.
    """
    if sum(len(name) + len(value) + 4 for name, value in head.headers) > HEAD_BYTES_MAX:
        return error(HEAD_TOO_LARGE, f"the headers are larger than {HEAD_BYTES_MAX} bytes")
    names = {name for name, _ in head.headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        text = "a request has Content-Length or Transfer-Encoding, not both"
        return error(BAD_REQUEST, text)
    return None
