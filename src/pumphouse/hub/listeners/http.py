"""HTTP/1.1 connections of the admin API, parsed by h11.

Every response is computed at once, so a connection needs no task. Header size, body size, number
of connections and waiting times are bounded.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import cast

import h11

from pumphouse.hub.listeners.admin_api import AdminApi, Request, Response, error

log = logging.getLogger("pumphouse.hub")

HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 200
REQUEST_S = 10.0  # for the first request head to arrive after the connect, and for each body
KEEP_OPEN_S = 30.0  # between two requests
TOO_LARGE = 413

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class HttpConnection(asyncio.Protocol):
    """One HTTP connection."""

    transport: asyncio.Transport

    def __init__(self, api: AdminApi, connections: set[HttpConnection]) -> None:
        self.api = api
        self.connections = connections  # all open ones
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self.writable = True
        self.deadline: asyncio.TimerHandle | None = None
        self.reset()

    def reset(self) -> None:
        """Prepare for the next request."""
        self.head: h11.Request | None = None
        self.body = bytearray()

    # -- called by the transport ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if len(self.connections) >= CONNECTIONS_MAX:
            self.transport.abort()
            return
        self.connections.add(self)
        self.set_deadline(REQUEST_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        if self.deadline is not None:
            self.deadline.cancel()

    def data_received(self, data: bytes) -> None:
        self.http.receive_data(data)
        self.advance()

    def eof_received(self) -> bool:
        self.http.receive_data(b"")
        self.advance()
        return False

    def pause_writing(self) -> None:
        self.writable = False
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.writable = True
        self.transport.resume_reading()
        self.advance()

    def set_deadline(self, seconds: float) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
        loop = asyncio.get_running_loop()
        self.deadline = loop.call_later(seconds, self.transport.abort)

    # -- requests ---------------------------------------------------------------------------------

    def advance(self) -> None:
        """Handle what has arrived, unless the client does not read its responses."""
        try:
            while self.writable and not self.transport.is_closing() and self.step():
                pass
        except h11.RemoteProtocolError as failure:
            status = failure.error_status_hint
            self.refuse(error(status, f"invalid HTTP/1.1 request: {failure}"))

    def step(self) -> bool:
        """Handle one event; False if there is none."""
        event = self.http.next_event()
        if isinstance(event, h11.Request):
            self.head = event
            self.set_deadline(REQUEST_S)
            self.send_continue()
        elif isinstance(event, h11.Data):
            self.collect(event.data)
        elif isinstance(event, h11.EndOfMessage):
            self.finish_request()
        elif isinstance(event, h11.ConnectionClosed):
            self.transport.close()
        return event is not h11.NEED_DATA and event is not h11.PAUSED

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
            {name.decode("latin-1"): value.decode("latin-1") for name, value in self.head.headers},
            bytes(self.body),
        )
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
        headers, body = {**HEADERS, **response.headers}, b""
        if response.body is not None:
            body = json.dumps(response.body, separators=(",", ":")).encode() + b"\n"
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self.write(h11.Response(status_code=response.status, headers=list(headers.items())))
        if body and (self.head is None or self.head.method != b"HEAD"):
            self.write(h11.Data(data=body))
        self.write(h11.EndOfMessage())

    def write(self, event: h11.Event) -> None:
        data = self.http.send(event)
        if data:
            self.transport.write(data)
