"""Two connections, client and server, that exchange bytes in memory.

`talk` carries bytes in both directions until both sides are silent. The events are in
`client.events` and `server.events`. The pair decides how the stream is split, so a test can use any
split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, TypeVar

from pumphouse.amqp.composites import decode_performative
from pumphouse.amqp.connection import CLIENT, SERVER, Connection, Login
from pumphouse.amqp.credit import Limits
from pumphouse.amqp.events import AttachAsked, Event
from pumphouse.amqp.frames import ByteReader
from pumphouse.amqp.links import Link, ReceiverLink, SenderLink
from pumphouse.amqp.performatives import RECEIVER, SENDER, Error, Open, SaslInit, Source, Target
from pumphouse.amqp.performatives import Attach as AttachFrame
from pumphouse.amqp.session import Session
from pumphouse.errors import ProtocolError

E = TypeVar("E")
Chunks = Callable[[bytes], Iterator[bytes]]


def unsplit(data: bytes) -> Iterator[bytes]:
    """One piece per write."""
    yield data


def split_by(random: Random) -> Chunks:
    """Random pieces: single bytes, halves of headers, several frames at once."""

    def cut(data: bytes) -> Iterator[bytes]:
        pos = 0
        while pos < len(data):
            size = random.choice((1, 2, 7, 8, 9, 30, 200, 5000))
            yield data[pos : pos + size]
            pos += size

    return cut


def performatives_in(data: bytes) -> list[Any]:
    """The headers and decoded performatives of a stream."""
    return [what for what, _ in performatives_of_stream(data)]


def performatives_of_stream(data: bytes) -> list[tuple[Any, bytes]]:
    """The same, each with its payload."""
    reader = ByteReader(1 << 20)
    performatives: list[tuple[Any, bytes]] = []
    reader.feed(data)
    while reader.pending:
        if (header := data[len(data) - reader.pending :][:8]).startswith(b"AMQP"):
            performatives.append((header, b""))
            reader.header()
            continue
        frame = reader.frame()
        assert frame is not None, "half a frame"
        what, after = decode_performative(frame.data, frame.start, frame.end)
        performatives.append((what, frame.data[after : frame.end]))
    return performatives


class Side:
    """One connection and its events."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.events: list[Event] = []
        self.error: ProtocolError | None = None
        self.sent = b""  # all sent bytes

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def last(self, kind: type[E]) -> E:
        return self.of(kind)[-1]

    def take(self) -> bytes:
        data = b"".join(self.connection.data_to_send())
        self.sent += data
        return data


class Pair:
    """A client and a server. The server answers each attach, with a refusal if one is prepared."""

    def __init__(
        self,
        *,
        client_open: Open | None = None,
        server_open: Open | None = None,
        limits: Limits | None = None,
        login: Login | None = None,
        authenticate: Callable[[SaslInit], None] | None = None,
        chunks: Chunks = unsplit,
    ) -> None:
        self.chunks = chunks
        self.client = Side(
            Connection(
                CLIENT, client_open or Open(container_id="c", hostname="localhost"), login=login
            )
        )
        self.server = Side(
            Connection(
                SERVER,
                server_open or Open(container_id="s"),
                limits=limits,
                authenticate=authenticate,
            )
        )
        self.refusals: dict[str, Error] = {}  # by link name
        self.client.connection.start()

    def talk(self) -> None:
        """Carry bytes in both directions until both sides are silent."""
        while any([self.carry(self.client, self.server), self.carry(self.server, self.client)]):
            pass

    def carry(self, source: Side, sink: Side) -> bool:
        data = source.take()
        for piece in self.chunks(data):
            self.feed(sink, piece)
        return bool(data)

    def feed(self, side: Side, data: bytes) -> None:
        """Feed bytes to one side, which answers attaches as a server does."""
        if side.error is not None:
            return
        try:
            for event in side.connection.receive(data):
                side.events.append(event)
                if isinstance(event, AttachAsked):
                    self.answer(event.link, event.attach)
        except ProtocolError as wrong:
            side.error = wrong

    def answer(self, link: Link, attach: AttachFrame) -> None:
        if (refusal := self.refusals.get(link.name)) is not None:
            link.refuse(refusal)
            return
        link.send_attach(
            AttachFrame(
                name=link.name,
                handle=link.handle,
                role=link.role,
                source=attach.source,
                target=attach.target,
                initial_delivery_count=0 if link.role == SENDER else None,
            )
        )

    # -- shortcuts --------------------------------------------------------------------------------

    def opened(self) -> Pair:
        self.talk()
        assert self.client.connection.state == self.server.connection.state == "OPENED"
        return self

    def begun(self) -> Session:
        """A session of the client."""
        self.talk()
        session = self.client.connection.begin()
        self.talk()
        return session

    def sender(self, session: Session, name: str = "out") -> tuple[SenderLink, ReceiverLink]:
        """The two ends of a link on which the client sends."""
        near, far = self.attach(session, name, SENDER)
        assert isinstance(near, SenderLink)
        assert isinstance(far, ReceiverLink)
        return near, far

    def receiver(self, session: Session, name: str = "in") -> tuple[ReceiverLink, SenderLink]:
        """The two ends of a link on which the client receives."""
        near, far = self.attach(session, name, RECEIVER)
        assert isinstance(near, ReceiverLink)
        assert isinstance(far, SenderLink)
        return near, far

    def attach(self, session: Session, name: str, role: bool) -> tuple[Link, Link]:
        fields: dict[str, Any] = {"source": Source(address="a"), "target": Target(address="b")}
        if role == SENDER:
            fields["initial_delivery_count"] = 0
        near = session.attach(name, role, **fields)
        self.talk()
        return near, self.server.last(AttachAsked).link
