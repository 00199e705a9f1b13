"""Streams of AMQP frames that are expensive, or at least odd, for a hub to handle.

A stream follows the protocol far enough to reach the code behind it: it comes after a login with
links to every kind of node (OfflineConnection.ATTACHED). `make_stream` is a function of a seed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from pumphouse.amqp.frames import HEAD
from tests.fuzz.encoding import TEXTS, ValueMaker, described, list_of, map_of, narrow_or_wide, text

FRAME_BYTES_MAX = 65536
MESSAGE_BYTES_MAX = 1024 * 1024
BATCH = 0x80013700
# Handles of OfflineConnection.ATTACHED.
PRODUCER, CONSUMER, CBS, MANAGEMENT = 0, 1, 2, 4
FREE = 10  # the first handle that is not in use

SECTIONS = (0x70, 0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78)
PERFORMATIVES = (0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18)


@dataclass(frozen=True, slots=True)
class Stream:
    """Bytes for a hub, in the pieces in which they arrive."""

    kind: str
    pieces: tuple[bytes, ...]
    setup: bytes = b""  # received before, and not measured
    listener: str = ""  # "" for AMQP after a login (listener_streams.py has the others)
    units: int = 0  # WebSocket frames or HTTP requests
    inner: bytes | None = None  # the AMQP frames; None: the stream itself

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))

    @property
    def amqp(self) -> bytes:
        return b"".join(self.pieces) if self.inner is None else self.inner


def uint(number: int) -> bytes:
    return b"\x70" + struct.pack(">I", number & 0xFFFFFFFF)


def frame(body: bytes, channel: int = 0, kind: int = 0) -> bytes:
    return HEAD.pack(8 + len(body), 2, kind, channel) + body


def performative(code: int, *fields: bytes) -> bytes:
    return described(code, list_of(list(fields)))


def transfer(handle: int, delivery: int, payload: bytes, message_format: int = 0) -> bytes:
    """A delivery, in as many frames as it needs."""
    frames = []
    room = FRAME_BYTES_MAX - 64
    for start in range(0, len(payload) or 1, room):
        more = b"\x41" if start + room < len(payload) else b"\x42"
        head = performative(
            0x14, uint(handle), uint(delivery), b"\xa0\x01t", uint(message_format), b"\x42", more
        )
        frames.append(frame(head + payload[start : start + room]))
    return b"".join(frames)


def attach(
    handle: int, receiver: bool, address: bytes, name: bytes = b"\xa1\x01n", rest: bytes = b""
) -> bytes:
    """An attach; `rest` replaces the properties."""
    terminus = described(0x28 if receiver else 0x29, list_of([address]))
    source, target = (terminus, b"\x40") if receiver else (b"\x40", terminus)
    role = b"\x41" if receiver else b"\x42"
    fields = [name, uint(handle), role, b"\x40", b"\x40", source, target, *[b"\x40"] * 6]
    return frame(performative(0x12, *fields, rest or b"\x40"))


def flow(window: int, handle: int | None = None, credit: int = 0, echo: bool = False) -> bytes:
    link = [b"\x40"] * 6
    if handle is not None:
        link = [uint(handle), uint(0), uint(credit), b"\x40", b"\x42", b"\x42"]
    link[5] = b"\x41" if echo else b"\x42"
    return frame(performative(0x13, uint(0), uint(window), uint(0), uint(9), *link))


class StreamMaker:
    """Makes streams from one source of chance."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.values = ValueMaker(rng)

    def size(self, largest: int) -> int:
        """Small sizes are as likely as large ones."""
        return int(min(largest, 2 ** self.rng.uniform(4, largest.bit_length())))

    # -- one frame or message ---------------------------------------------------------------------

    def odd_performative(self) -> bytes:
        """A performative in which one field has any value."""
        rng = self.rng
        room = self.size(FRAME_BYTES_MAX - 600)
        fields = [self.usual_field(number) for number in range(rng.randrange(1, 15))]
        fields[rng.randrange(len(fields))] = self.values.value(room)
        code = rng.choice(PERFORMATIVES)
        return frame(performative(code, *fields)[: FRAME_BYTES_MAX - 8], rng.choice((0, 0, 0, 1)))

    def usual_field(self, number: int) -> bytes:
        usual = [b"\x40", b"\x41", b"\x42", uint(number), text("name"), map_of([]), uint(FREE)]
        return self.rng.choice(usual)

    def odd_attach(self) -> bytes:
        """An attach whose address, name, filter or properties is any value."""
        rng = self.rng
        room = self.size(FRAME_BYTES_MAX - 1000)
        odd = self.values.value(room) if rng.random() < 0.5 else self.values.long_text(room)
        usual = text(rng.choice(TEXTS))
        match rng.randrange(4):
            case 0:
                return attach(FREE, rng.random() < 0.5, odd)
            case 1:
                return attach(FREE, rng.random() < 0.5, usual, name=odd)
            case 2:
                return attach(FREE, rng.random() < 0.5, usual, rest=odd)
        selector = text("apache.org:selector-filter:string", symbol=True)
        filters = map_of([selector, b"\x00" + selector + odd])
        source = described(0x28, list_of([usual, *[b"\x40"] * 6, filters]))
        nulls = [b"\x40"] * 2
        return frame(performative(0x12, text("n"), uint(FREE), b"\x41", *nulls, source, b"\x40"))

    def message(self, room: int) -> bytes:
        """A message of a few sections, most of them with any value."""
        rng = self.rng
        sections = []
        for _ in range(rng.choice((1, 1, 2, 3))):
            code = rng.choice(SECTIONS)
            value = self.section_value(code, room // 3)
            sections.append(described(code, value))
        return b"".join(sections)

    def section_value(self, code: int, room: int) -> bytes:
        rng = self.rng
        if code == 0x75:
            return narrow_or_wide(0xA0, bytes(room)) if rng.random() < 0.8 else b"\x40"
        if rng.random() < 0.4:
            return self.values.keyed(room, 0)
        return self.values.value(room)

    def batch(self, room: int) -> bytes:
        """A batch: many small messages, or a few large ones."""
        rng = self.rng
        events = [self.message(room) for _ in range(rng.randrange(1, 4))]
        small = [self.message(rng.choice((3, 20, 100))) for _ in range(rng.randrange(1, 5))]
        if rng.random() < 0.7:
            events = small
        sections = [described(0x75, narrow_or_wide(0xA0, event)) for event in events]
        repeat = max(1, room // (sum(map(len, sections)) or 1))
        return b"".join(sections * repeat)[:MESSAGE_BYTES_MAX]

    def request(self, room: int) -> bytes:
        """A request to $cbs or $management with any fields."""
        rng = self.rng
        names = ["operation", "name", "type", "partition", "security_token", "partition_count"]
        fields: list[bytes] = []
        for name in rng.sample(names, rng.randrange(1, 5)):
            odd = self.values.long_text(room) if rng.random() < 0.5 else self.values.value(room)
            fields += [text(name), text(rng.choice(TEXTS)) if rng.random() < 0.7 else odd]
        properties = list_of([self.values.value(room // 4), *[b"\x40"] * 3, text("here")])
        token = "SharedAccessSignature " + rng.choice(("sr=a&", "x", "sr=eh&sig=a&se=1&skn=r"))
        body = text(token * (1 + room // 100)) if rng.random() < 0.5 else self.values.value(room)
        return described(0x73, properties) + described(0x74, map_of(fields)) + described(0x77, body)

    # -- streams ----------------------------------------------------------------------------------

    def frames(self) -> Iterator[bytes]:
        for _ in range(self.rng.choice((1, 1, 5, 50))):
            yield self.odd_performative()

    def attaches(self) -> Iterator[bytes]:
        for _ in range(self.rng.choice((1, 1, 5))):
            yield self.odd_attach()

    def events(self) -> Iterator[bytes]:
        room = self.size(MESSAGE_BYTES_MAX - 1000)
        for number in range(self.rng.choice((1, 1, 3))):
            if self.rng.random() < 0.5:
                yield transfer(PRODUCER, number, self.message(room)[:MESSAGE_BYTES_MAX])
            else:
                yield transfer(PRODUCER, number, self.batch(room), BATCH)

    def requests(self) -> Iterator[bytes]:
        room = self.size(200_000)
        handle = self.rng.choice((CBS, MANAGEMENT))
        for number in range(self.rng.choice((1, 1, 5, 40))):
            yield transfer(handle, number, self.request(room))

    def repeated(self) -> Iterator[bytes]:
        """Thousands of the same small frame."""
        rng = self.rng
        flags = b"\x42", b"\x41"  # not settled, and more follows
        part_of_delivery = performative(0x14, uint(PRODUCER), uint(0), b"\xa0\x00", uint(0), *flags)
        small: list[Callable[[int], bytes]] = [
            lambda n: frame(b""),
            lambda n: flow(n % 7, echo=True),
            lambda n: flow(n % 2),
            lambda n: flow(5, CONSUMER, n % 3),
            lambda n: flow(5, CONSUMER, 0xFFFFFFFF, echo=True),
            lambda n: frame(performative(0x11, b"\x40", uint(0), uint(n), uint(9)), 1 + n % 4990),
            lambda n: frame(performative(0x17), 1 + n % 4990),
            lambda n: attach(FREE + n, False, text("eh"), text(str(n))),
            lambda n: attach(FREE + n, False, text("eh/Publishers/" + str(n))),
            lambda n: attach(FREE + n, True, text(rng.choice(TEXTS))),
            lambda n: frame(performative(0x12, text("n"), uint(FREE + n), b"\x41")),
            lambda n: attach(FREE, False, text("eh")) + frame(performative(0x16, uint(FREE))),
            lambda n: transfer(PRODUCER, n, described(0x75, b"\xa0\x00")),
            lambda n: transfer(PRODUCER, n, b""),
            lambda n: transfer(CBS, n, described(0x77, b"\x40")),
            lambda n: transfer(MANAGEMENT, n, described(0x77, b"\x40")),
            lambda n: frame(part_of_delivery),
            lambda n: frame(performative(0x15, b"\x41", uint(n), uint(0xFFFFFFFF), b"\x41")),
        ]  # fmt: skip
        make = [rng.choice(small) for _ in range(rng.choice((1, 1, 2, 3)))]
        for number in range(rng.choice((10, 300, 3000))):
            for each in make:
                yield each(number)

    def noise(self) -> Iterator[bytes]:
        yield frame(self.values.value(self.size(FRAME_BYTES_MAX - 8))[: FRAME_BYTES_MAX - 8])

    def crowd(self) -> bytes:
        """Many links or sessions, for frames that concern all of them."""
        rng = self.rng
        count = rng.choice((100, 2000))
        match rng.randrange(4):
            case 0:
                address = text("eh/ConsumerGroups/$Default/Partitions/1")
                links = [attach(FREE + n, True, address, text(str(n))) for n in range(5)]
                return b"".join(links) + b"".join(flow(9, FREE + n, 50) for n in range(5))
            case 1:
                return b"".join(attach(FREE + n, False, text("eh")) for n in range(count))
            case 2:
                return b"".join(attach(FREE + n, True, text("$cbs")) for n in range(count))
        begin = performative(0x11, b"\x40", uint(0), uint(9), uint(9))
        return b"".join(frame(begin, channel) for channel in range(1, 1 + count))


KINDS: dict[str, Callable[[StreamMaker], Iterator[bytes]]] = {
    "frames": StreamMaker.frames,
    "attaches": StreamMaker.attaches,
    "events": StreamMaker.events,
    "requests": StreamMaker.requests,
    "repeated": StreamMaker.repeated,
    "noise": StreamMaker.noise,
}
READ_BYTES = 256 * 1024  # what asyncio reads from a socket at once


def make_stream(seed: int) -> Stream:
    """The stream of a seed, always the same."""
    rng = Random(seed)
    maker = StreamMaker(rng)
    kind = rng.choice([*KINDS, "repeated", "events"])
    setup = maker.crowd() if rng.random() < 0.2 else b""
    data = b"".join(KINDS[kind](maker))
    kind += " after a crowd" if setup else ""
    return Stream(kind, pieces_of(data, rng), setup)


def pieces_of(data: bytes, rng: Random) -> tuple[bytes, ...]:
    """The pieces in which data arrives: full reads, or tiny ones."""
    piece = READ_BYTES if rng.random() < 0.85 or len(data) > 50_000 else rng.choice((1, 7, 100))
    return tuple(data[start : start + piece] for start in range(0, len(data), piece))
