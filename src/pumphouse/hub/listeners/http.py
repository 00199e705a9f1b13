"""The HTTP door: HTTP/1.1 on a loopback port, spoken by h11, answered by admin.py.

Every answer is ready at once, so a connection is a protocol without a task. Heads, bodies,
connections and waiting all have bounds.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import cast

import h11

from pumphouse.hub.listeners.admin_api import Admin, Answer, Request, error

log = logging.getLogger("pumphouse.hub")

HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 200
REQUEST_S = 10.0  # for a request to arrive whole, from its first byte or the opening on
KEEP_OPEN_S = 30.0  # between two requests
TOO_LARGE = 413

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class HttpConversation(asyncio.Protocol):
    """One HTTP connection."""

    transport: asyncio.Transport

    def __init__(self, admin: Admin, open_conversations: set[HttpConversation]) -> None:
        self.admin = admin
        self.open_conversations = open_conversations
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self.writable = True
        self.deadline: asyncio.TimerHandle | None = None
        self.begin()

    def begin(self) -> None:
        """Nothing of the next request is known."""
        self.head: h11.Request | None = None
        self.body = bytearray()

    # -- the socket -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if len(self.open_conversations) >= CONNECTIONS_MAX:
            self.transport.abort()
            return
        self.open_conversations.add(self)
        self.wait_at_most(REQUEST_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open_conversations.discard(self)
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

    def wait_at_most(self, seconds: float) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
        loop = asyncio.get_running_loop()
        self.deadline = loop.call_later(seconds, self.transport.abort)

    # -- requests ---------------------------------------------------------------------------------

    def advance(self) -> None:
        """Take what has arrived, as far as it goes; a client that does not read is not heard."""
        try:
            while self.writable and not self.transport.is_closing() and self.step():
                pass
        except h11.RemoteProtocolError as wrong:
            status = wrong.error_status_hint
            self.refuse(error(status, f"this is not HTTP/1.1 as it should be: {wrong}"))

    def step(self) -> bool:
        """Take one event; False if there is none."""
        event = self.http.next_event()
        if isinstance(event, h11.Request):
            self.head = event
            self.wait_at_most(REQUEST_S)
            self.encourage()
        elif isinstance(event, h11.Data):
            self.collect(event.data)
        elif isinstance(event, h11.EndOfMessage):
            self.finish_request()
        elif isinstance(event, h11.ConnectionClosed):
            self.transport.close()
        return event is not h11.NEED_DATA and event is not h11.PAUSED

    def encourage(self) -> None:
        """Some clients send a body only after being told to."""
        if self.http.they_are_waiting_for_100_continue:
            self.write(h11.InformationalResponse(status_code=100, headers=[]))

    def collect(self, data: bytes | bytearray) -> None:
        self.body += data
        if len(self.body) > BODY_BYTES_MAX:
            self.refuse(error(TOO_LARGE, f"a body may have {BODY_BYTES_MAX} bytes at most"))

    def finish_request(self) -> None:
        assert self.head is not None
        request = Request(
            self.head.method.decode("latin-1"),
            self.head.target.decode("latin-1"),
            {name.decode("latin-1"): value.decode("latin-1") for name, value in self.head.headers},
            bytes(self.body),
        )
        self.respond(self.admin.answer(request))
        if self.http.our_state is h11.DONE:
            self.http.start_next_cycle()
            self.begin()
            self.wait_at_most(KEEP_OPEN_S)
        else:
            self.transport.close()

    # -- answers ----------------------------------------------------------------------------------

    def refuse(self, answer: Answer) -> None:
        """Say what is wrong, if it can still be said, and hang up."""
        if self.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.respond(Answer(answer.status, answer.said, {"Connection": "close"}))
        self.transport.close()

    def respond(self, answer: Answer) -> None:
        headers, body = {**HEADERS, **answer.headers}, b""
        if answer.said is not None:
            body = json.dumps(answer.said, separators=(",", ":")).encode() + b"\n"
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self.write(h11.Response(status_code=answer.status, headers=list(headers.items())))
        if body and (self.head is None or self.head.method != b"HEAD"):
            self.write(h11.Data(data=body))
        self.write(h11.EndOfMessage())

    def write(self, event: h11.Event) -> None:
        out = self.http.send(event)
        if out:
            self.transport.write(out)
