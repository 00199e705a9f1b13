"""The hub's side of AMQP over WebSocket: the handshake, the turns of frames, and the close."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from typing import Protocol

from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from pumphouse.errors import AuthError
from pumphouse.hub.access.http_callers import as_host, check_websocket
from pumphouse.hub.limits.admission import Slot
from pumphouse.hub.limits.turns import Turns
from pumphouse.logs import line
from pumphouse.websocket_transport import (
    AMQP,
    FRAME_BYTES_MAX,
    GOING_AWAY,
    Data,
    WebSocketAdapter,
    library_log,
)

PATH = "/$servicebus/websocket"
# The registered name, and the one that Microsoft's .NET and JavaScript clients use.
SUBPROTOCOLS = (AMQP, Subprotocol("AMQPWSB10"))
HANDSHAKE_S = 10.0
HANDSHAKE_BYTES_MAX = 64 * 1024  # of a request; the official clients send 300
# Limit of one frame before the client has authenticated: one AMQP frame, and as much again.
ANONYMOUS_FRAME_BYTES_MAX = 128 * 1024
# Parsed before the time is checked. It has room for 340 frames without content, which take less
# than two milliseconds.
PIECE_BYTES = 2048
CLOSE_S = 0.5  # for a client to respond to our close frame; an idle client does not read it


class WebSocketOwner(Protocol):
    """The part of the server that its WebSockets use."""

    turns: Turns
    loop: asyncio.AbstractEventLoop

    def make_connection(self, slot: Slot) -> asyncio.Protocol: ...

    def inform(self, report: line, slot: Slot) -> None: ...


class ServerWebSocket(WebSocketAdapter):
    """One WebSocket connection of a client. The AMQP connection is made after the handshake."""

    protocol: ServerProtocol

    def __init__(
        self,
        server: WebSocketOwner,
        slot: Slot,
        names: Collection[str],
        handshaking: set[ServerWebSocket],
    ) -> None:
        super().__init__(
            ServerProtocol(
                subprotocols=SUBPROTOCOLS,
                max_size=(None, ANONYMOUS_FRAME_BYTES_MAX),
                logger=library_log,
            )
        )
        self.server = server
        self.slot = slot
        self.names = names  # of this server, as in a Host header
        self.handshaking = handshaking  # connections whose handshake is not complete
        self.turns, self.clock = server.turns, server.loop.time
        self._paused = False  # the AMQP connection accepts no more bytes
        self._awaits_turn = False  # other connections are served
        self._late: deque[memoryview] = deque()  # received, and not parsed yet
        self._late_bytes = 0
        self._handshake_bytes = 0  # received before the handshake is complete
        self._buffered = 0  # bytes of an incomplete frame that count in the slot's budget

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.handshaking.add(self)
        self.slot.close = self.shut
        self.slot.on_authenticated = self.allow_large_frames
        loop = asyncio.get_running_loop()
        self.deadline = loop.call_later(HANDSHAKE_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self.deadline.cancel()
        self.handshaking.discard(self)
        self.turns.discard(self)
        self._late.clear()
        super().connection_lost(exc)
        self.slot.release()

    def shut(self, reason: str) -> None:
        self.transport.abort()

    def allow_large_frames(self) -> None:
        self.protocol.max_fragment_size = FRAME_BYTES_MAX

    # -- received ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.must_wait or not self.has_time():
            self._late.append(memoryview(data))
            self.count_late(len(data))
        else:
            self.parse_some(memoryview(data))

    def parse_some(self, data: memoryview) -> None:
        """Parse frames as long as this client has time. The rest waits for its turn."""
        payloads: list[Data] = []
        start = now = self.clock()
        end = start + self.turns.allowance(self.slot)
        parsed = 0
        while parsed < len(data) and now <= end:
            payloads += self.parse(data[parsed : parsed + PIECE_BYTES])
            parsed += PIECE_BYTES
            now = self.clock()
        self.turns.spend(self.slot, now - start)
        if parsed < len(data):
            self.await_turn(data[parsed:])
        self.pass_on(payloads)
        self.flush()
        self.count_parsed(min(parsed, len(data)))

    def count_parsed(self, size: int) -> None:
        """Count bytes of the handshake, and those of an incomplete frame."""
        if self in self.handshaking:
            self._handshake_bytes += size
            if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
                self.transport.abort()
        buffered = len(self.protocol.reader.buffer)
        self.slot.budget.hold(buffered - self._buffered)
        self._buffered = buffered

    def count_late(self, size: int) -> None:
        """Count bytes that wait for their turn, as those of an AMQP connection."""
        self._late_bytes += size
        self.slot.hold_fixed(size)

    # -- waiting ----------------------------------------------------------------------------------

    @property
    def must_wait(self) -> bool:
        """Whether received bytes are not parsed now. No more are read meanwhile."""
        return self._paused or self._awaits_turn

    def has_time(self) -> bool:
        """Whether frames can be parsed now. If not, the connection waits for its turn."""
        if self.turns.allowance(self.slot) > 0:
            return True
        self.await_turn()
        return False

    def await_turn(self, rest: memoryview | None = None) -> None:
        """Stop reading while others are served; then continue with the rest of a read."""
        if rest is not None:
            self._late.appendleft(rest)
            self.count_late(len(rest))
        self._awaits_turn = True
        self.transport.pause_reading()
        self.turns.wait(self, continued=rest is not None)

    def take_turn(self) -> None:
        self._awaits_turn = False
        self.proceed()

    def pause_reading(self) -> None:
        self._paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        self.proceed()

    def proceed(self) -> None:
        """Parse what was received during a wait, then read more."""
        while not self.must_wait and not self.transport.is_closing():
            if not self._late:
                self.transport.resume_reading()
            elif self.has_time():
                rest = self._late.popleft()
                self.count_late(-len(rest))
                self.parse_some(rest)
                continue
            return

    def eof_received(self) -> bool:
        self._late.clear()  # the parser accepts nothing after the end
        return super().eof_received()

    # -- handshake and close ----------------------------------------------------------------------

    def on_handshake(self, event: Request | Response) -> None:
        assert isinstance(event, Request)
        if self.protocol.eof_sent:  # the bytes after the request were not a valid frame
            self.flush()
            return
        path = event.path.partition("?")[0]
        error = None
        if path.rstrip("/").lower() != PATH:
            response = self.protocol.reject(404, f"AMQP over WebSocket is served at {PATH}.\n")
        elif (error := self.refusal(event)) is not None:
            response = self.protocol.reject(403, f"{error}.\n")
        else:
            response = self.protocol.accept(event)
        self.protocol.send_response(response)
        # The response goes first: the AMQP connection may send as soon as it is connected.
        self.flush()
        if self.protocol.state is OPEN:
            self.deadline.cancel()
            self.handshaking.discard(self)
            self.open(self.server.make_connection(self.slot))
        else:
            status = response.status_code
            report = line("websocket_refused", path=path[:80], status=status, error=error)
            self.server.inform(report, self.slot)

    def refusal(self, request: Request) -> str | None:
        """Why a request is refused: it names another host, or is from a page of another site."""
        headers = {name.lower(): value for name, value in request.headers.raw_items()}
        own_address = self.transport.get_extra_info("sockname") or ("",)
        tls = self.transport.get_extra_info("sslcontext") is not None
        try:
            check_websocket(headers, {*self.names, as_host(str(own_address[0]))}, tls)
        except AuthError as refusal:
            return refusal.description
        return None

    def leave(self) -> None:
        """Send the close frame and give the client a moment to respond."""
        if self.leaving:
            return
        self.leaving = True
        self.send_close(GOING_AWAY)
        loop = asyncio.get_running_loop()
        self.deadline = loop.call_later(CLOSE_S, self.transport.close)
