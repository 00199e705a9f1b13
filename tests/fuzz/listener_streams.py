"""Streams for clients that have not authenticated, and for the other listeners of a hub.

    anonymous   AMQP from the first byte on, before a login and with a login that gives no rights
    websocket   the handshake, and frames of any size and kind, with and without AMQP in them
    http, page  heads and bodies of requests to the HTTP API and to the dashboard's page

`make_listener_stream` is a function of a seed, as `make_stream` is.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator
from random import Random
from urllib.parse import quote

from pumphouse.amqp.frames import AMQP_HEADER, SASL_HEADER
from pumphouse.hub.access.auth import AccessRule, sign_sas
from tests.fuzz.encoding import TEXT_UNITS, text
from tests.fuzz.offline_connection import HUB, KEY, PAGE_TOKEN, RULE, OfflineConnection
from tests.fuzz.streams import (
    FRAME_BYTES_MAX,
    KINDS,
    Stream,
    StreamMaker,
    attach,
    frame,
    performative,
    pieces_of,
    transfer,
    uint,
)

SASL = 1
CBS_SENDER, CBS_RECEIVER = 0, 1
BINARY, CONTINUATION, TEXT, CLOSE, PING, PONG = 2, 0, 1, 8, 9, 10
UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: "
    + base64.b64encode(bytes(16))
    + b"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: amqp\r\n"
)
HOSTS = (b"Host: localhost\r\n",) * 6 + (b"Host: evil.example\r\n", b"")
TARGETS = (
    "/",
    "/health",
    "/hubs",
    f"/hubs/{HUB}",
    f"/hubs/{HUB}/partitions",
    "/hubs/new",
    f"/hubs/{HUB}/groups/g",
    "/homes",
    "/api/about",
    "/static/page.js",
)
HEADER_NAMES = (
    b"a",
    b"Cookie",
    b"Origin",
    b"Authorization",
    b"Connection",
    b"Expect",
    b"Sec-WebSocket-Extensions",
    b"Sec-WebSocket-Protocol",
    b"Content-Length",
)
METHODS = ("GET", "GET", "GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "x" * 300)
SIGNATURE = sign_sas("sb://localhost/", AccessRule(RULE, KEY), 4_000_000_000)
SIGNED = f"Authorization: {SIGNATURE}\r\n".encode()
BEARER = f"Authorization: Bearer {PAGE_TOKEN}\r\n".encode()


def sasl_init(mechanism: bytes, response: bytes = b"\x40") -> bytes:
    return frame(performative(0x41, mechanism, response), kind=SASL)


def websocket_frame(payload: bytes, opcode: int = BINARY, final: bool = True) -> bytes:
    """A masked frame. Its mask is zero, so that the payload is as it is."""
    size = len(payload)
    head = bytes((0x80 * final | opcode,))
    if size < 126:
        head += bytes((0x80 | size,))
    elif size < 1 << 16:
        head += b"\xfe" + struct.pack(">H", size)
    else:
        head += b"\xff" + struct.pack(">Q", size)
    return head + bytes(4) + payload


ANONYMOUS_LOGIN = (
    SASL_HEADER
    + sasl_init(text("ANONYMOUS", symbol=True))
    + AMQP_HEADER
    + frame(performative(0x10, text("fuzz")))
    + frame(performative(0x11, b"\x40", uint(0), uint(100), uint(100)))
)


class ListenerStreamMaker(StreamMaker):
    """Makes streams from one source of chance."""

    # -- anonymous --------------------------------------------------------------------------------

    def anonymous(self) -> Stream:
        rng = self.rng
        make = rng.choice((self.headers, self.sasl, self.opens, self.tokens, self.before_login))
        return self.stream("anonymous", b"".join(make()))

    def headers(self) -> Iterator[bytes]:
        """Protocol headers again and again, or of other versions."""
        rng = self.rng
        usual = [SASL_HEADER, AMQP_HEADER, b"AMQP\x02\x01\x00\x00", b"AMQP", rng.randbytes(8)]
        for _ in range(rng.choice((1, 5, 1000))):
            yield rng.choice(usual)

    def sasl(self) -> Iterator[bytes]:
        """SASL frames of any structure, and many of them."""
        rng = self.rng
        yield SASL_HEADER
        room = self.size(FRAME_BYTES_MAX - 600)
        names = [text(name, symbol=True) for name in ("PLAIN", "ANONYMOUS", "MSSBCBS", "x" * 200)]
        for _ in range(rng.choice((1, 1, 10, 1000))):
            odd = self.values.value(min(room, 20_000) if rng.random() < 0.3 else 50)
            fields = [rng.choice((*names, odd)), rng.choice((b"\x40", b"\xa0\x03\x00r\x00", odd))]
            code = rng.choice((0x40, 0x41, 0x41, 0x42, 0x43, 0x44))
            yield frame(performative(code, *fields)[: FRAME_BYTES_MAX - 8], kind=SASL)

    def opens(self) -> Iterator[bytes]:
        """Odd performatives after a login that gives no rights."""
        yield SASL_HEADER + sasl_init(text("ANONYMOUS", symbol=True)) + AMQP_HEADER
        for _ in range(self.rng.choice((1, 1, 5, 50))):
            yield self.odd_performative()

    def tokens(self) -> Iterator[bytes]:
        """Requests to $cbs with odd tokens, names and fields."""
        yield ANONYMOUS_LOGIN
        yield attach(CBS_SENDER, False, text("$cbs"), text("s"))
        yield attach(CBS_RECEIVER, True, text("$cbs"), text("r"))
        room = self.size(50_000)
        for number in range(self.rng.choice((1, 1, 5, 300))):
            yield transfer(CBS_SENDER, number, self.request(room if number < 5 else 100))

    def before_login(self) -> Iterator[bytes]:
        """What other clients send after their login."""
        yield ANONYMOUS_LOGIN
        yield from KINDS[self.rng.choice([*KINDS])](self)

    # -- websocket --------------------------------------------------------------------------------

    def websocket(self) -> Stream:
        match self.rng.randrange(4):
            case 0:
                return self.stream("websocket", self.handshake())
            case 1:
                return self.websocket_stream(UPGRADE + b"\r\n", [*self.odd_frames()])
        login, amqp = UPGRADE + b"\r\n" + websocket_frame(OfflineConnection.ATTACHED), b""
        amqp = b"".join(KINDS[self.rng.choice([*KINDS])](self))
        return self.websocket_stream(login, [*self.fragments(amqp)], amqp)

    def websocket_stream(self, setup: bytes, frames: list[bytes], amqp: bytes = b"") -> Stream:
        return self.stream("websocket", b"".join(frames), setup, len(frames), amqp)

    def handshake(self) -> bytes:
        return UPGRADE + b"".join(self.header_lines()) + b"\r\n"

    def odd_frames(self) -> Iterator[bytes]:
        """Frames of any kind, many of them without content."""
        rng = self.rng
        opcodes = rng.choice(((PING,), (BINARY, CONTINUATION), (PONG, PING), (BINARY,), range(16)))
        room = rng.choice((0, 0, 1, 100, 5000))
        for number in range(rng.choice((1, 20, 3000 if room <= 100 else 30))):
            opcode, final = rng.choice(opcodes), rng.random() < 0.7
            if CONTINUATION in opcodes:  # a message of many fragments
                opcode, final = (CONTINUATION if number else BINARY), False
            yield websocket_frame(rng.randbytes(room), opcode, final)

    def fragments(self, data: bytes) -> Iterator[bytes]:
        """AMQP in WebSocket frames of one size, with control frames between them."""
        rng = self.rng
        size = (
            rng.choice((1, 7, 500, 1 << 16)) if len(data) < 20_000 else rng.choice((500, 1 << 16))
        )
        for start in range(0, len(data), size):
            yield websocket_frame(data[start : start + size])
            if rng.random() < 0.1:
                yield websocket_frame(b"", PING)

    # -- http -------------------------------------------------------------------------------------

    def http(self) -> Stream:
        return self.requests_to("http", SIGNED)

    def page(self) -> Stream:
        return self.requests_to("page", BEARER)

    def requests_to(self, listener: str, key: bytes) -> Stream:
        rng = self.rng
        if rng.random() < 0.1:
            data = rng.randbytes(self.size(100_000))
        else:
            same = self.http_request(key) if rng.random() < 0.5 else b""
            count = rng.choice((1, 1, 3, 100))
            data = b"".join(same or self.http_request(key) for _ in range(count))
        return self.stream(listener, data, units=data.count(b"\n\r\n") + data.count(b"\n\n"))

    def http_request(self, key: bytes) -> bytes:
        rng = self.rng
        line = f"{rng.choice(METHODS)} {self.target()} HTTP/1.1\r\n".encode()
        lines = [line, rng.choice(HOSTS), *([key] if rng.random() < 0.4 else []), b""]
        if rng.random() < 0.5:
            lines += self.header_lines()
        framing, body = self.body()
        end = rng.choice((b"\r\n", b"\r\n", b"\r\n", b"\n", b""))
        return b"".join(lines) + framing + end + body

    def target(self) -> str:
        rng = self.rng
        usual = rng.choice(TARGETS)
        if rng.random() < 0.6:
            return usual
        odd = quote(rng.choice(TEXT_UNITS), safe="/%&=.") or "x"
        many = odd * (self.size(20_000) // len(odd))
        return rng.choice((f"/{many}", f"{usual}/{many}", f"{usual}?{many}", f"/?token={many}"))

    def header_lines(self) -> Iterator[bytes]:
        """Header lines: many small ones, or a few with long names and values."""
        rng = self.rng
        name = rng.choice(HEADER_NAMES)
        units = (b"a", b" ", b"\t", b";", b"a=b; ", b",", b"a, ", b'"', b"%2F", b"\xff", b"b\r\n ")
        many = rng.random() < 0.3
        unit = rng.choice(units)
        for _ in range(rng.choice((50, 99, 300)) if many else rng.randrange(1, 4)):
            value = unit * (1 if many else self.size(12_000) // len(unit))
            yield name + b": " + value + b"\r\n"

    def body(self) -> tuple[bytes, bytes]:
        """The header that gives the length of a body, and the body."""
        rng = self.rng
        if rng.random() < 0.5:
            return b"", b""
        room = self.size(60_000)
        body = rng.choice((self.json_body, self.noise_body, self.blank_body))(room)
        if rng.random() < 0.5:
            return b"Content-Length: %d\r\n" % (len(body) + rng.choice((0, 0, 9))), body
        size = rng.choice((1, 10, 5000))
        starts = range(0, len(body) if size > 1 else min(len(body), 3000), size)
        chunks = [body[start : start + size] for start in starts]
        data = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        return b"Transfer-Encoding: chunked\r\n", data + b"0\r\n\r\n"

    def json_body(self, room: int) -> bytes:
        rng = self.rng
        numbers: dict[str, object] = {"partitions": 4, "retention": 1}
        if rng.random() < 0.3:
            return b"[" * room
        if rng.random() < 0.5:
            return b'{"partitions": ' + b"9" * room + b"}"
        return json.dumps(numbers | {f"{n:x}": n for n in range(room // 12)}).encode()

    def noise_body(self, room: int) -> bytes:
        return self.rng.randbytes(room)

    def blank_body(self, room: int) -> bytes:
        return b" \t\r\n"[self.rng.randrange(4) :][:1] * room

    # -- streams ----------------------------------------------------------------------------------

    def stream(
        self, listener: str, data: bytes, setup: bytes = b"", units: int = 1, amqp: bytes = b""
    ) -> Stream:
        inner = data if listener == "anonymous" else amqp
        return Stream(listener, pieces_of(data, self.rng), setup, listener, units, inner)


LISTENER_KINDS: dict[str, Callable[[ListenerStreamMaker], Stream]] = {
    "anonymous": ListenerStreamMaker.anonymous,
    "websocket": ListenerStreamMaker.websocket,
    "http": ListenerStreamMaker.http,
    "page": ListenerStreamMaker.page,
}


def make_listener_stream(seed: int) -> Stream:
    """The stream of a seed, always the same."""
    maker = ListenerStreamMaker(Random(f"listener {seed}"))
    return LISTENER_KINDS[maker.rng.choice([*LISTENER_KINDS])](maker)
