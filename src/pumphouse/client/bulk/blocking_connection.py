"""One AMQP connection over a blocking socket, for code that runs no event loop.

The twin of wire.py for Spark's executors: a task there is a plain function that reads a range and
ends. All protocol lives in `amqp`; this file moves bytes, and no wait in it is without a deadline.

What comes in is kept in an `Inbox`. Transfers on the link that is being read stay there, to be
turned into columns by the thousand; every other frame is handed to the connection at once.

    BulkClient, RangeReader -> BlockingConnection -> amqp.Connection, Inbox -> Stream
                               ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np

from pumphouse.amqp import events as amqp
from pumphouse.amqp.columnar.buffer_view import SLACK, BufferView
from pumphouse.amqp.columnar.columns import FrameIndex, frame_at
from pumphouse.amqp.composites import decode_performative
from pumphouse.amqp.connection import CLIENT, Connection, Limits
from pumphouse.amqp.constructors import SIZE
from pumphouse.amqp.frames import HEAD
from pumphouse.amqp.links import Link, ReceiverLink, SenderLink
from pumphouse.amqp.messages import Message, Properties, decode_message, encode_message
from pumphouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    SETTLED,
    Attach,
    Open,
    Source,
    Target,
    Transfer,
)
from pumphouse.amqp.session import Session
from pumphouse.client.bulk.streams import Stream
from pumphouse.client.errors import refusal, told
from pumphouse.client.native.connection import FRAME_BYTES_MAX, ConnectionOptions
from pumphouse.client.native.requests import REPLY_CREDIT, value_of
from pumphouse.client.native.transports import cause
from pumphouse.client.routes import Route
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import (
    AuthError,
    ConnectionFailed,
    ProtocolError,
    PumphouseError,
    RemoteProtocolError,
)

READ_BYTES_MIN = 1 << 16  # a smaller read is not worth its system call
LULL_S = 0.002  # a pause after which we look at what we have
TALK_BYTES = 1 << 18  # of an inbox that is not told how much will come
HELD_BYTES_MAX = 128 << 20  # what an inbox may grow to for a delivery that has many frames


class Inbox:
    """What has come in and not been used: a buffer, and where the frames in it are."""

    def __init__(self, frame_bytes_max: int, size: int) -> None:
        self.view = BufferView(bytearray(size + SLACK))
        self.end = 0
        self.index = FrameIndex(frame_bytes_max)

    def __repr__(self) -> str:
        return f"<Inbox {self.end} of {self.size} bytes, {len(self.index)} transfers>"

    @property
    def data(self) -> bytearray:
        return self.view.data

    @property
    def size(self) -> int:
        return len(self.data) - SLACK

    def room(self, wanted: int) -> memoryview:
        """Where to receive into: `wanted` bytes at the most, and one at least."""
        if self.end == self.size:
            self.grow(2 * self.size)
        return memoryview(self.data)[self.end : min(self.size, self.end + wanted)]

    def grow(self, size: int) -> None:
        if size > HELD_BYTES_MAX:
            raise RemoteProtocolError(
                f"a delivery of more than {HELD_BYTES_MAX // 2} bytes",
                "amqp:link:message-size-exceeded",
            )
        if size > self.size:
            grown = bytearray(size + SLACK)
            grown[: self.end] = self.data[: self.end]
            self.view = BufferView(grown)

    def unit(self, is_header: bool) -> bytes | None:
        """The next protocol header or frame, taken out; None if not all of it is there."""
        if self.end < HEAD.size:
            return None
        size = HEAD.size if is_header else SIZE.unpack_from(self.data)[0]
        if not HEAD.size <= size <= self.index.max_frame_size:
            size = HEAD.size  # whoever gets it will say what is wrong with it
        if size > self.end:
            return None
        unit = bytes(self.data[:size])
        self.cut(size)
        return unit

    def drop(self, frames: int = 0) -> None:
        """Forget so many transfers, and all bytes before the next one."""
        self.cut(self.index.drop(frames))

    def cut(self, count: int) -> None:
        """Take so many bytes off the front."""
        left = self.end - count
        self.data[:left] = self.data[count : self.end]
        self.end = left


class BlockingConnection:
    """A connection with one session. A failure breaks it for good."""

    session: Session

    def __init__(
        self,
        stream: Stream,
        route: Route,
        options: ConnectionOptions | None = None,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        clock: Clock | None = None,
    ) -> None:
        self.stream = stream
        self.place = route.place
        self.options = options or ConnectionOptions()
        self.clock: Clock = clock or SystemClock()
        self.amqp = Connection(
            CLIENT,
            Open(
                container_id=uuid.uuid4().hex,
                hostname=route.hostname,
                max_frame_size=frame_bytes_max,
                idle_time_out=int(self.options.idle_s * 1000),
            ),
            limits=Limits(max_frame_size=frame_bytes_max),
        )
        self.inbox = Inbox(frame_bytes_max, TALK_BYTES)
        self.reading: ReceiverLink | None = None  # its transfers stay in the inbox
        self.spoke = self.clock.monotonic()
        self._begun = self._closed = self._leaving = False
        self._answers: dict[Link, Attach] = {}
        self._gone: dict[Link, PumphouseError] = {}
        self._nodes: dict[str, tuple[SenderLink, ReceiverLink]] = {}
        self._replies: dict[str, Message] = {}
        self._asked: set[str] = set()  # calls without a reply
        self._numbers = count(1)

    def __repr__(self) -> str:
        return f"<BlockingConnection {self.place} {self.amqp.state}>"

    # -- what users call --------------------------------------------------------------------------

    def open(self) -> None:
        """Log in, open the connection, begin the session."""
        self.amqp.start()
        self.until(lambda: self._begun, self.options.connect_s, "open the connection")

    def attach(self, role: bool, **fields: Any) -> tuple[Link, Attach]:
        """Ask for a link; the hub's answer, or its refusal as an error."""
        name = f"{self.amqp.opening.container_id[:8]}-{next(self._numbers)}"
        link = self.session.attach(name, role, **fields)
        self.until(
            lambda: link in self._answers or link in self._gone,
            self.options.answer_s,
            "answer an attach",
        )
        self.check(link)
        return link, self._answers.pop(link)

    def detach(self, link: Link) -> None:
        """Give up a link and wait until the hub has let go of it."""
        if link.attached:
            link.detach()
            self.until(lambda: link in self._gone, self.options.answer_s, "answer a detach")
            del self._gone[link]

    def check(self, link: Link) -> None:
        """Raise if the hub has detached the link."""
        if link in self._gone:
            raise self._gone[link]

    def ask(self, node: str, application: Mapping[str, Any], value: Any = None) -> str:
        """Send a call; the number by which its reply is known."""
        asking, _ = self._nodes.get(node) or self.open_node(node)
        self.until(lambda: asking.sendable > 0, self.options.answer_s, f"grant credit on {node}")
        number = str(next(self._numbers))
        properties = Properties(message_id=number, reply_to=f"{node}-reply")
        request = Message(properties=properties, application=dict(application), value=value)
        asking.send(encode_message(request))
        self._asked.add(number)
        self.flush()
        return number

    def reply(self, number: str, node: str, seconds: float | None = None) -> Any:
        """Wait for the reply to a call: its value, or the hub's refusal as an error."""
        seconds = self.options.answer_s if seconds is None else seconds
        self.until(lambda: number in self._replies, seconds, f"answer a call to {node}")
        return value_of(self._replies.pop(number))

    def replied(self, number: str) -> bool:
        return number in self._replies

    def open_node(self, node: str) -> tuple[SenderLink, ReceiverLink]:
        here = f"{node}-reply"
        answering, _ = self.attach(
            RECEIVER,
            source=Source(address=node),
            target=Target(address=here),
            snd_settle_mode=SETTLED,
        )
        asking, _ = self.attach(
            SENDER,
            source=Source(address=here),
            target=Target(address=node),
            snd_settle_mode=SETTLED,
            initial_delivery_count=0,
        )
        assert isinstance(answering, ReceiverLink)
        assert isinstance(asking, SenderLink)
        answering.keep_granting(REPLY_CREDIT)
        self._nodes[node] = asking, answering
        return asking, answering

    def close(self) -> None:
        """Say good-bye, wait a little for the answer, and hang up. Quiet whatever the hub does."""
        self._leaving = True
        try:
            with suppress(PumphouseError):
                self.amqp.close()
                self.until(lambda: self._closed, self.options.close_s, "say good-bye")
        finally:
            self.stream.close()

    def abort(self) -> None:
        """Say good-bye without waiting: what is under way is of no interest any more."""
        self._leaving = True
        try:
            with suppress(PumphouseError):
                self.amqp.close()
                self.flush()
        finally:
            self.stream.close()

    # -- bytes ------------------------------------------------------------------------------------

    def until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Listen until something has happened; the error says what the hub did not do."""
        deadline = self.clock.monotonic() + seconds
        while not done():
            if not self.listen(deadline):
                raise ConnectionFailed(f"the hub at {self.place} did not {what} in {seconds:g} s")

    def listen(self, deadline: float, wanted: int = 1) -> bool:
        """Take in what has come, about `wanted` bytes; False if nothing came in time."""
        self.flush()
        inbox = self.inbox
        received = self.receive(inbox.room(max(wanted, READ_BYTES_MIN)), deadline)
        inbox.end += received
        if received:
            self.linger(min(inbox.size, inbox.end - received + wanted))
        self.digest()
        return received > 0

    def linger(self, target: int) -> None:
        """As long as more keeps coming, wait: much is looked at more cheaply than little."""
        inbox = self.inbox
        more = 1
        while more and inbox.end < target:
            try:
                lull = self.clock.monotonic() + LULL_S
                more = self.receive(inbox.room(target - inbox.end), lull)
            except ConnectionFailed:
                self.digest()  # what came before it may say why
                raise
            inbox.end += more

    def receive(self, room: memoryview, deadline: float) -> int:
        """Wait for bytes, and see to it that the hub hears from us meanwhile."""
        while (now := self.clock.monotonic()) < deadline:
            self.stream.settimeout(max(0.001, min(deadline, self.beat(now)) - now))
            try:
                received = self.stream.recv_into(room)
            except TimeoutError:
                continue
            except OSError as failed:
                raise self.broke(f" ({cause(failed)})") from None
            if not received:
                raise self.broke("; the other side hung up")
            return received
        return 0

    def beat(self, now: float) -> float:
        """Send a heartbeat if one is due; when the next one will be."""
        remote = self.amqp.remote
        if remote is None or not remote.idle_time_out:
            return float("inf")
        # At half of what the hub tolerates, one heartbeat may be late.
        interval = remote.idle_time_out / 2000
        if now - self.spoke >= interval:
            self.amqp.heartbeat()
            self.flush()
        return self.spoke + interval

    def flush(self) -> None:
        """Send all waiting bytes."""
        out = self.amqp.data_to_send()
        if not out:
            return
        try:
            self.stream.settimeout(self.options.answer_s)
            self.stream.sendall(b"".join(out))
        except TimeoutError:
            seconds = f"{self.options.answer_s:g} s"
            raise ConnectionFailed(f"the hub at {self.place} took no bytes in {seconds}") from None
        except OSError as failed:
            raise self.broke(f" ({cause(failed)})") from None
        self.spoke = self.clock.monotonic()

    def misunderstood(self, wrong: ProtocolError) -> ConnectionFailed:
        return ConnectionFailed(f"{self.place} is no event hub we understand: {wrong}")

    def broke(self, why: str) -> ConnectionFailed:
        return ConnectionFailed(f"the connection to {self.place} broke{why}")

    # -- frames -----------------------------------------------------------------------------------

    def digest(self) -> None:
        """Hand over what has come in, except for transfers on the link that is read."""
        inbox = self.inbox
        while self.amqp.layer != "amqp":
            unit = inbox.unit(is_header=self.amqp.layer == "header")
            if unit is None:
                return
            self.take(unit)
        known = len(inbox.index)
        try:
            others = inbox.index.extend(inbox.view, inbox.end)
        except ProtocolError as wrong:
            raise self.misunderstood(wrong) from None
        for frame in others:
            self.take(frame)
        if self.reading is None or self._asked:
            self.sort_out(known)
        if not len(inbox.index):
            inbox.drop()

    def sort_out(self, known: int) -> None:
        """Hand over the new transfers that are not on the link that is read."""
        index = self.inbox.index
        read = np.ones(len(index), np.bool_)
        for at in range(known, len(index)):
            frame = frame_at(self.inbox.data, int(index.starts[at]))
            read[at] = self.is_read(frame)
            if not read[at]:
                self.take(frame)
        index.keep(read)

    def is_read(self, frame: bytes) -> bool:
        if self.reading is None:
            return False
        said, _ = decode_performative(frame, frame[4] * 4, len(frame))
        return isinstance(said, Transfer) and said.handle == self.reading.remote_handle

    def take(self, unit: bytes) -> None:
        """Let the connection have a protocol header or a frame."""
        try:
            for event in self.amqp.receive(unit):
                self.handle(event)
        except ProtocolError as wrong:
            with suppress(ConnectionFailed):
                self.flush()
            raise self.misunderstood(wrong) from None
        except AuthError as refused:
            raise AuthError(f"{self.place}: {refused.description}", refused.status) from None

    def handle(self, event: amqp.Event) -> None:
        match event:
            case amqp.Opened():
                self.session = self.amqp.begin()
            case amqp.Begun():
                self._begun = True
            case amqp.Attached():
                # A refusal names no terminus of the hub's own; the detach that says why follows.
                own = event.attach.source if event.link.role == RECEIVER else event.attach.target
                if own is not None:
                    self._answers[event.link] = event.attach
            case amqp.Detached():
                self._gone[event.link] = refusal(event.error)
            case amqp.Delivered():
                self.on_reply(event)
            case amqp.Ended() if not self._leaving:
                raise ConnectionFailed(f"{self.place} ended the session{told(event.error)}")
            case amqp.Closed():
                self._closed = True
                if not self._leaving:
                    raise ConnectionFailed(f"{self.place} closed the connection{told(event.error)}")

    def on_reply(self, delivery: amqp.Delivered) -> None:
        if not delivery.settled:
            delivery.link.session.accept(delivery.delivery_id)
        reply = decode_message(delivery.payload)
        number = reply.properties.correlation_id if reply.properties else None
        if number in self._asked:
            self._asked.discard(number)
            self._replies[number] = reply
