"""One AMQP connection over a blocking socket, for code without an event loop.

Spark executors use it: a Spark task is a plain function that reads a range and ends. All protocol
logic is in `amqp`. This module moves bytes, and every wait in it has a deadline.

Received bytes are kept in a `ReceiveBuffer`. Transfers of the link that is being read stay there
and are turned into columns by the thousand. All other frames go to the AMQP connection at once.

    BulkClient, RangeReader -> BlockingConnection -> amqp.Connection, ReceiveBuffer -> Stream
                               ^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np

from pumphouse.amqp import events as amqp
from pumphouse.amqp.columnar.columns import ColumnReader, frame_at
from pumphouse.amqp.composites import decode_performative
from pumphouse.amqp.connection import CLIENT, Connection
from pumphouse.amqp.credit import Limits
from pumphouse.amqp.links import Link, ReceiverLink, SenderLink
from pumphouse.amqp.messages import Message, Properties, decode_message, encode_message
from pumphouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    SETTLED,
    Attach,
    Error,
    Open,
    Source,
    Target,
    Transfer,
)
from pumphouse.amqp.session import Session
from pumphouse.client.bulk.receive_buffer import ReceiveBuffer
from pumphouse.client.bulk.streams import Stream
from pumphouse.client.errors import error_from, reason_text, shortened
from pumphouse.client.native.connection import ConnectionOptions
from pumphouse.client.native.requests import REPLY_CREDIT, reply_value
from pumphouse.client.native.transports import cause_of
from pumphouse.client.routes import Route
from pumphouse.errors import (
    AuthError,
    ConnectionFailed,
    ProtocolError,
    PumphouseError,
    RemoteProtocolError,
)

READ_BYTES_MIN = 1 << 16  # a smaller read is not worth its system call
PAUSE_S = 0.002  # received data is processed if no more arrives for this long
SMALL_BUFFER_BYTES = 1 << 18  # before the size of a range is known
COLUMN_READERS_MAX = 16  # a hub may give each link another handle
HEARTBEAT_S_MIN = 0.1  # more heartbeats than this would only use the processor


class BlockingConnection:
    """A connection with one session. A failure breaks it permanently."""

    session: Session

    def __init__(
        self,
        stream: Stream,
        route: Route,
        options: ConnectionOptions | None = None,
    ) -> None:
        self.stream = stream
        self.address = route.address
        self.options = options or ConnectionOptions()
        self.clock = self.options.clock
        frame_bytes_max = self.options.frame_bytes_max
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
        self.buffer = ReceiveBuffer(frame_bytes_max, SMALL_BUFFER_BYTES)
        self.reading: ReceiverLink | None = None  # its transfers stay in the buffer
        self.sent_at = self.clock.monotonic()
        self._begun = self._closed = self._closing = False
        self._links: set[Link] = set()  # that we have requested
        self._responses: dict[Link, Attach] = {}
        self._detached: dict[Link, PumphouseError] = {}
        self._columns: dict[tuple[int, int], ColumnReader] = {}  # by channel and handle
        self._nodes: dict[str, tuple[SenderLink, ReceiverLink]] = {}
        self._replies: dict[str, Message] = {}
        self._pending: set[str] = set()  # requests without a reply
        self._numbers = count(1)

    def __repr__(self) -> str:
        return f"<BlockingConnection {self.address} {self.amqp.state}>"

    # -- links and requests -----------------------------------------------------------------------

    def open(self) -> None:
        """Log in, open the connection and begin the session."""
        self.amqp.start()
        self.wait_until(lambda: self._begun, self.options.connect_s, "open the connection")

    def attach(self, role: bool, **fields: Any) -> tuple[Link, Attach]:
        """Attach a link; returns the response of the hub, or raises its refusal."""
        link = self.start_attach(role, **fields)
        return link, self.finish_attach(link)

    def start_attach(self, role: bool, **fields: Any) -> Link:
        """Request a link, and do not wait for the response of the hub."""
        name = f"{self.amqp.opening.container_id[:8]}-{next(self._numbers)}"
        link = self.session.attach(name, role, **fields)
        self._links.add(link)
        return link

    def finish_attach(self, link: Link) -> Attach:
        """The response of the hub to an attach; raises its refusal."""
        self.wait_until(
            lambda: link in self._responses or link in self._detached,
            self.options.answer_s,
            "respond to an attach",
        )
        self.check(link)
        return self._responses.pop(link)

    def detach(self, link: Link, *, wait: bool = True) -> None:
        """Detach a link and wait for the response of the hub, or only send the detach."""
        if link.attached:
            link.detach()
            if wait:
                self.wait_until(
                    lambda: link in self._detached, self.options.answer_s, "respond to a detach"
                )
                del self._detached[link]
            else:
                self.flush()
        self._links.discard(link)

    def check(self, link: Link) -> None:
        """Raise if the hub has detached the link."""
        if link in self._detached:
            raise self._detached[link]

    def column_reader(self, link: ReceiverLink) -> ColumnReader:
        """A reader of the transfers of a link.

        Handles are used again. So the reader of a later link knows the layouts of earlier ones: the
        events of a hub often have the same few.
        """
        channel, handle = link.session.remote_channel, link.remote_handle
        assert channel is not None
        assert handle is not None
        reader = self._columns.get((channel, handle))
        if reader is None:
            if len(self._columns) >= COLUMN_READERS_MAX:
                self._columns.clear()
            reader = self._columns[channel, handle] = ColumnReader(channel, handle)
        return reader

    def request(self, node: str, application: Mapping[str, Any], value: Any = None) -> str:
        """Send a request; returns its id, which `reply` takes."""
        request_link, _ = self._nodes.get(node) or self.open_request_links(node)
        self.wait_until(
            lambda: request_link.sendable > 0, self.options.answer_s, f"grant credit on {node}"
        )
        request_id = str(next(self._numbers))
        properties = Properties(message_id=request_id, reply_to=f"{node}-reply")
        request = Message(properties=properties, application=dict(application), value=value)
        request_link.send(encode_message(request))
        self._pending.add(request_id)
        self.flush()
        return request_id

    def reply(self, request_id: str, node: str, seconds: float | None = None) -> Any:
        """Wait for a reply; returns its value, or raises its error."""
        seconds = self.options.answer_s if seconds is None else seconds
        self.wait_until(
            lambda: request_id in self._replies, seconds, f"respond to a request to {node}"
        )
        return reply_value(self._replies.pop(request_id))

    def has_reply(self, request_id: str) -> bool:
        return request_id in self._replies

    def open_request_links(self, node: str) -> tuple[SenderLink, ReceiverLink]:
        """Attach the request link and the reply link of a node."""
        reply_address = f"{node}-reply"
        reply_link, _ = self.attach(
            RECEIVER,
            source=Source(address=node),
            target=Target(address=reply_address),
            snd_settle_mode=SETTLED,
        )
        request_link, _ = self.attach(
            SENDER,
            source=Source(address=reply_address),
            target=Target(address=node),
            snd_settle_mode=SETTLED,
            initial_delivery_count=0,
        )
        assert isinstance(reply_link, ReceiverLink)
        assert isinstance(request_link, SenderLink)
        reply_link.keep_granting(REPLY_CREDIT)
        self._nodes[node] = request_link, reply_link
        return request_link, reply_link

    def close(self) -> None:
        """Close the connection within `close_s`. Never raises a PumphouseError."""
        self._closing = True
        try:
            with suppress(PumphouseError):
                self.amqp.close()
                self.wait_until(lambda: self._closed, self.options.close_s, "close the connection")
        finally:
            self.stream.close()

    def abort(self) -> None:
        """Close the connection without waiting for the hub."""
        self._closing = True
        try:
            with suppress(PumphouseError):
                self.amqp.close()
                self.flush()
        finally:
            self.stream.close()

    # -- bytes ------------------------------------------------------------------------------------

    def wait_until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Receive until a condition holds; the error names what the hub did not do."""
        deadline = self.clock.monotonic() + seconds
        while not done():
            if not self.receive_frames(deadline):
                raise ConnectionFailed(f"the hub at {self.address} did not {what} in {seconds:g} s")

    def receive_frames(self, deadline: float, size: int = 1) -> bool:
        """Receive and process about `size` bytes; False if nothing arrived in time."""
        self.flush()
        buffer = self.buffer
        received = self.receive(self.room(max(size, READ_BYTES_MIN)), deadline)
        buffer.end += received
        if received:
            self.receive_more(min(buffer.size, buffer.end - received + size))
        self.process()
        return received > 0

    def receive_more(self, target: int) -> None:
        """Receive while data keeps arriving: large amounts are cheaper to process."""
        buffer = self.buffer
        received = 1
        while received and buffer.end < target:
            try:
                deadline = self.clock.monotonic() + PAUSE_S
                received = self.receive(self.room(target - buffer.end), deadline)
            except ConnectionFailed:
                self.process()  # earlier data may contain the reason
                raise
            buffer.end += received

    def room(self, size: int) -> memoryview:
        try:
            return self.buffer.room(size)
        except RemoteProtocolError as wrong:
            raise RemoteProtocolError(f"{self.address}: {wrong}", wrong.condition) from None

    def receive(self, room: memoryview, deadline: float) -> int:
        """Wait for bytes, and send heartbeats meanwhile."""
        while (now := self.clock.monotonic()) < deadline:
            self.stream.settimeout(max(0.001, min(deadline, self.send_heartbeat(now)) - now))
            try:
                received = self.stream.recv_into(room)
            except TimeoutError:
                continue
            except OSError as failed:
                raise self.connection_broken(f" ({cause_of(failed)})") from None
            if not received:
                raise self.connection_broken("; the peer closed it")
            return received
        return 0

    def send_heartbeat(self, now: float) -> float:
        """Send a heartbeat if one is due; returns when the next one is due."""
        remote = self.amqp.remote
        if remote is None or not remote.idle_time_out:
            return float("inf")
        # Every half of the hub's idle timeout, so that one heartbeat may be late.
        interval = max(HEARTBEAT_S_MIN, remote.idle_time_out / 2000)
        if now - self.sent_at >= interval:
            self.amqp.heartbeat()
            self.flush()
        return self.sent_at + interval

    def flush(self) -> None:
        """Send all pending bytes."""
        out = self.amqp.data_to_send()
        if not out:
            return
        seconds = self.options.close_s if self._closing else self.options.answer_s
        try:
            self.stream.settimeout(seconds)
            self.stream.sendall(b"".join(out))
        except TimeoutError:
            raise ConnectionFailed(
                f"the hub at {self.address} accepted no bytes in {seconds:g} s"
            ) from None
        except OSError as failed:
            raise self.connection_broken(f" ({cause_of(failed)})") from None
        self.sent_at = self.clock.monotonic()

    def protocol_error(self, wrong: ProtocolError) -> ConnectionFailed:
        return ConnectionFailed(f"{self.address} sent invalid AMQP: {shortened(str(wrong))}")

    def connection_broken(self, reason: str) -> ConnectionFailed:
        return ConnectionFailed(f"the connection to {self.address} broke{reason}")

    # -- frames -----------------------------------------------------------------------------------

    def process(self) -> None:
        """Handle received frames, except for transfers of the link that is read."""
        buffer = self.buffer
        while self.amqp.layer != "amqp":
            unit = buffer.take_unit(is_header=self.amqp.layer == "header")
            if unit is None:
                return
            self.feed(unit)
        indexed_before = len(buffer.index)
        try:
            others = buffer.index.extend(buffer.view, buffer.end)
        except ProtocolError as wrong:
            raise self.protocol_error(wrong) from None
        for frame in others:
            self.feed(frame)
        if self.reading is None or self.reading.remote_handle is None or self._pending:
            self.handle_other_links(indexed_before)
        if not len(buffer.index):
            buffer.drop()

    def handle_other_links(self, indexed_before: int) -> None:
        """Handle the new transfers that are not of the link that is read."""
        index = self.buffer.index
        keep = np.ones(len(index), np.bool_)
        for position in range(indexed_before, len(index)):
            frame = frame_at(self.buffer.data, int(index.starts[position]))
            keep[position] = self.is_of_link_in_use(frame)
            if not keep[position]:
                self.feed(frame)
        index.keep(keep)

    def is_of_link_in_use(self, frame: bytes) -> bool:
        """Whether a frame is a transfer of the link that is read."""
        if self.reading is None:
            return False
        try:
            performative, _ = decode_performative(frame, frame[4] * 4, len(frame))
        except ProtocolError as wrong:
            raise self.protocol_error(wrong) from None
        return (
            isinstance(performative, Transfer) and performative.handle == self.reading.remote_handle
        )

    def feed(self, unit: bytes) -> None:
        """Pass a protocol header or a frame to the AMQP connection."""
        try:
            for event in self.amqp.receive(unit):
                self.handle(event)
        except ProtocolError as wrong:
            with suppress(ConnectionFailed):
                self.flush()
            raise self.protocol_error(wrong) from None
        except AuthError as refused:
            raise AuthError(f"{self.address}: {refused.description}", refused.status) from None

    def handle(self, event: amqp.Event) -> None:
        match event:
            case amqp.Opened():
                self.session = self.amqp.begin()
            case amqp.Begun():
                self._begun = True
            case amqp.Attached():
                # A refusal has no source or target of the hub; a detach with the reason follows.
                hub_end = (
                    event.attach.source if event.link.role == RECEIVER else event.attach.target
                )
                if hub_end is not None:
                    self._responses[event.link] = event.attach
            case amqp.AttachAsked():
                refusal = "The client accepts no links."
                event.link.refuse(Error(condition="amqp:not-allowed", description=refusal))
            case amqp.Detached() if event.link in self._links:
                self._detached[event.link] = error_from(event.error)
            case amqp.Delivered():
                self.on_reply(event)
            case amqp.Ended() if not self._closing:
                raise ConnectionFailed(
                    f"{self.address} ended the session{reason_text(event.error)}"
                )
            case amqp.Closed():
                self._closed = True
                if not self._closing:
                    raise ConnectionFailed(
                        f"{self.address} closed the connection{reason_text(event.error)}"
                    )

    def on_reply(self, delivery: amqp.Delivered) -> None:
        if not delivery.settled:
            delivery.link.session.accept(delivery.delivery_id)
        reply = decode_message(delivery.payload)
        request_id = reply.properties.correlation_id if reply.properties else None
        # A hub could send any value; one that is not a string may not even be hashable.
        if isinstance(request_id, str) and request_id in self._pending:
            self._pending.discard(request_id)
            self._replies[request_id] = reply
