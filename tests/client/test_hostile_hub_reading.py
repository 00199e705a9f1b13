"""Our readers against a hub that sends what it should not: bounded memory, a clear error."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from pumphouse.amqp.events import Flowed
from pumphouse.amqp.frames import encode_frame
from pumphouse.amqp.links import SenderLink
from pumphouse.amqp.performatives import Detach, End, Error, Transfer
from pumphouse.amqp.types import Symbol
from pumphouse.client.base import ReaderOptions
from pumphouse.client.bulk.client import RangeTimeout
from pumphouse.client.native.client import NativeClient
from pumphouse.errors import AmqpError, ConnectionFailed, PumphouseError, RemoteProtocolError
from pumphouse.events import EARLIEST
from tests.client.hostile_calls import bulk, check_error, names, native, receive, receive_all
from tests.client.hostile_hub import PoliteHub, WebSocketHub, message


class Sender(PoliteHub):
    """Sends transfers to a reader as soon as it has attached, whatever its credit is."""

    def on_reader(self, link: SenderLink) -> None:
        self.flush()
        self.link, self.sent = link, 0
        self.attack()

    def attack(self) -> None:
        raise NotImplementedError

    def transfer(self, payload: bytes, more: bool = False) -> bytes:
        """One transfer frame, with the next delivery id unless `more` continues a delivery."""
        frame = Transfer(
            handle=self.link.handle,
            delivery_id=self.sent,
            delivery_tag=b"t",
            message_format=0,
            settled=True,
            more=more,
        )
        self.sent += not more
        return encode_frame(frame, self.link.session.channel, payload)


class BeyondCredit(Sender):
    """Sends more events than the reader asked for, and does not stop."""

    body = b"x" * 100

    def attack(self) -> None:
        while not self.stop.is_set():
            self.send(b"".join(self.transfer(message(self.sent, self.body)) for _ in range(100)))


class EmptyBeyondCredit(Sender):
    """The same with messages of no bytes, which a limit in bytes does not count."""

    def attack(self) -> None:
        while not self.stop.is_set():
            self.send(b"".join(self.transfer(b"") for _ in range(1000)))


class EndlessDelivery(Sender):
    """One delivery of very many frames."""

    def attack(self) -> None:
        piece = self.transfer(bytes(100_000), more=True)
        self.send_until_closed(piece)


class EndlessEmptyDelivery(Sender):
    """One delivery of frames without payload."""

    def attack(self) -> None:
        self.send_until_closed(self.transfer(b"", more=True) * 1000)


class SlowDelivery(Sender):
    """One delivery that is never complete, a frame now and then."""

    ends_by_deadline = True

    def attack(self) -> None:
        while not self.stop.wait(0.05):
            self.send(self.transfer(b"x", more=True))


class HeartbeatsOnly(Sender):
    """Never sends an event, but keeps the connection alive."""

    ends_by_deadline = True

    def attack(self) -> None:
        while not self.stop.wait(0.05):
            self.send(b"\x00\x00\x00\x08\x02\x00\x00\x00")


class OversizedFrame(Sender):
    def attack(self) -> None:
        self.send(b"\x7f\xff\xff\xff\x02\x00\x00\x00")
        self.wait()


class BrokenMessage(Sender):
    def attack(self) -> None:
        self.send(self.transfer(b"\x00\x53\x72\xd1\xff\xff\xff\xff\xff\xff\xff\xff"))
        self.wait()


class HugeCount(Sender):
    """A list of four billion items in a few bytes."""

    def attack(self) -> None:
        self.send(self.transfer(b"\x00\x53\x77\xd0\x00\x00\x00\x05\xff\xff\xff\xff\x40"))
        self.wait()


class OddSequence(Sender):
    def attack(self) -> None:
        self.send(self.transfer(message("one")) + self.transfer(message([2])))
        self.wait()


class OddTime(Sender):
    def attack(self) -> None:
        for number in range(5):
            self.send(self.transfer(message(number, enqueued_time=float("inf"))))
        self.wait()


class LinkRedirect(Sender):
    def attack(self) -> None:
        info = {Symbol("hostname"): "evil.example", Symbol("address"): "other"}
        error = Error(condition="amqp:link:redirect", description="go there", info=info)
        detach = Detach(handle=self.link.handle, closed=True, error=error)
        self.send(encode_frame(detach, self.link.session.channel))
        self.wait()


class EndsSession(Sender):
    """The reader must notice: its link is gone with the session."""

    def attack(self) -> None:
        self.send(encode_frame(End(), self.link.session.channel))
        self.wait()


class UnknownHandle(Sender):
    def attack(self) -> None:
        frame = Transfer(handle=77, delivery_id=0, delivery_tag=b"t", settled=True)
        self.send(encode_frame(frame, self.link.session.channel, b"x"))
        self.wait()


NATIVE = [
    (BeyondCredit, RemoteProtocolError, "more events .* than .* requested"),
    (EmptyBeyondCredit, RemoteProtocolError, "more events .* than .* requested"),
    (EndlessDelivery, ConnectionFailed, "the connection holds 16[0-9]* bytes, the limit is"),
    (EndlessEmptyDelivery, ConnectionFailed, "the connection holds 16[0-9]* bytes"),
    (OversizedFrame, ConnectionFailed, "frame of 2147483647 bytes"),
    (BrokenMessage, RemoteProtocolError, "invalid event .*Partitions/0"),
    (HugeCount, RemoteProtocolError, "invalid event .*Partitions/0"),
    (OddSequence, RemoteProtocolError, "invalid event .*sequence number"),
    (OddTime, RemoteProtocolError, "invalid event .*enqueued time"),
    (UnknownHandle, ConnectionFailed, "ended the session|unattached"),
    (EndsSession, ConnectionFailed, "ended the session"),
]


@pytest.mark.parametrize(("hub", "kind", "sentence"), NATIVE, ids=names)
async def test_a_reader_raises(
    hub: type[PoliteHub], kind: type[PumphouseError], sentence: str
) -> None:
    with pytest.raises(kind) as failed:
        await native(hub, receive_all)
    check_error(failed.value, sentence)


async def test_a_redirect_is_not_followed() -> None:
    with pytest.raises(PumphouseError, match=r"go there \(amqp:link:redirect\)"):
        await native(LinkRedirect, receive)


@pytest.mark.parametrize("hub", [SlowDelivery, HeartbeatsOnly], ids=names)
async def test_a_reader_returns_at_its_deadline(hub: type[PoliteHub]) -> None:
    async def receive_once(client: NativeClient) -> int:
        reader = await client.reader(ReaderOptions("0", position=EARLIEST))
        return len(await reader.receive(10, 0.3))

    assert await native(hub, receive_once) == 0


@pytest.mark.parametrize("hub", [BeyondCredit, EmptyBeyondCredit], ids=names)
async def test_the_buffer_of_an_idle_reader_is_bounded(hub: type[PoliteHub]) -> None:
    """Its program does not call receive, so that nothing leaves the buffer."""

    async def idle(client: NativeClient) -> int:
        reader = await client.reader(ReaderOptions("0", position=EARLIEST, prefetch=50))
        while reader._failure is None:
            reader._wakeup.clear()
            await reader._wakeup.wait()
        return len(reader._buffer)

    assert await native(hub, idle) <= 2 * 50 + 1000  # and one run of transfers


# -- ranges ---------------------------------------------------------------------------------------


class BeyondRange(BeyondCredit):
    """Waits for the credit of the range before it sends more."""

    def on_reader(self, link: SenderLink) -> None:
        self.link, self.sent = link, 0

    def handle(self, event: Any) -> None:
        super().handle(event)
        if (
            isinstance(event, Flowed)
            and event.link.credit
            and event.link is getattr(self, "link", 0)
        ):
            self.flush()
            self.attack()


class BeforeAttach(BeyondCredit):
    """Sends events before it has responded to the attach."""

    def on_reader(self, link: SenderLink) -> None:
        self.link, self.sent = link, 0
        self.attack()


BULK = [
    (EndlessDelivery, PumphouseError, "a delivery of more than 67108864 bytes|did not arrive"),
    (SlowDelivery, RangeTimeout, "event 0 of partition 0 did not arrive"),
    (HeartbeatsOnly, PumphouseError, "did not respond to an attach|did not arrive"),
    (OversizedFrame, ConnectionFailed, "frame of 2147483647 bytes"),
    (BrokenMessage, RemoteProtocolError, "invalid event"),
    (HugeCount, RemoteProtocolError, "invalid event"),
    (OddSequence, RemoteProtocolError, "invalid event"),
    (UnknownHandle, ConnectionFailed, "ended the session"),
    (EndsSession, ConnectionFailed, "ended the session"),
    (LinkRedirect, PumphouseError, "go there"),
    (BeyondRange, RemoteProtocolError, "events from 5 on arrived but were not requested"),
    (BeforeAttach, ConnectionFailed, "ended the session"),
]


@pytest.mark.parametrize(("hub", "kind", "sentence"), BULK, ids=names)
def test_a_range_raises(hub: type[PoliteHub], kind: type[PumphouseError], sentence: str) -> None:
    with pytest.raises(kind, match=sentence) as failed:
        bulk(hub)
    if not isinstance(failed.value, RangeTimeout | AmqpError):
        check_error(failed.value, sentence)


# -- WebSocket ------------------------------------------------------------------------------------


class HugeFrame(WebSocketHub):
    """A frame of 2^63 - 1 bytes."""

    def serve_frames(self) -> None:
        self.send(b"\x82\x7f\x7f" + b"\xff" * 7)
        self.wait()


class LargeFrame(WebSocketHub):
    def serve_frames(self) -> None:
        self.send(b"\x82\x7f" + (5 << 20).to_bytes(8, "big"))
        self.send_until_closed(bytes(1 << 16))


class MaskedFrame(WebSocketHub):
    def serve_frames(self) -> None:
        self.send(b"\x82\x81\x00\x00\x00\x00x")
        self.wait()


class TextFrames(WebSocketHub):
    def serve_frames(self) -> None:
        self.send(b"\x81\x02hi")
        self.wait()


class ClosesOnly(WebSocketHub):
    """Sends a close frame, and leaves the connection open."""

    def serve_frames(self) -> None:
        self.send(b"\x88\x02\x03\xe8")
        self.wait()


class PingFlood(WebSocketHub):
    """Pings without an end, and reads no pong."""

    ends_by_deadline = True

    def serve_frames(self) -> None:
        self.send_until_closed((b"\x89\x7d" + bytes(125)) * 1000)


class WebSocketRedirect(WebSocketHub):
    status = b"302 Found"
    headers = b"Location: ws://evil.example/\r\nContent-Length: 0\r\n"


class EndlessHeaders(WebSocketHub):
    def run(self) -> None:
        self.receive()
        self.send(b"HTTP/1.1 101 Switching Protocols\r\n")
        self.send_until_closed(b"a: b\r\n" * 1000)


class SlowHeaders(WebSocketHub):
    ends_by_deadline = True

    def run(self) -> None:
        self.receive()
        self.send(b"HTTP/1.1 101 Switching Protocols\r\n")
        while not self.stop.wait(0.05):
            self.send(b"a")


WEBSOCKET = [
    (HugeFrame, "invalid WebSocket|sent 1009|too big|exceeds limit"),
    (LargeFrame, "exceeds limit|WebSocket"),
    (MaskedFrame, "invalid WebSocket .*mask"),
    (TextFrames, "WebSocket|text message"),
    (ClosesOnly, "closed"),
    (PingFlood, "does not read|did not open the connection|accepted no bytes|broke"),
    (WebSocketRedirect, "handshake .*302"),
    (EndlessHeaders, "handshake .*not receive a valid HTTP response"),
    (SlowHeaders, "did not open the connection|no response in time"),
]


async def use(client: NativeClient) -> Any:
    return await client.properties()


@pytest.mark.parametrize(("hub", "sentence"), WEBSOCKET, ids=names)
async def test_a_websocket_that_breaks_the_rules(hub: type[PoliteHub], sentence: str) -> None:
    with pytest.raises(ConnectionFailed) as failed:
        await native(hub, use, transport="websocket")
    check_error(failed.value, sentence)


@pytest.mark.parametrize(("hub", "sentence"), WEBSOCKET, ids=names)
def test_a_websocket_that_breaks_the_rules_to_a_bulk_client(
    hub: type[PoliteHub], sentence: str
) -> None:
    with pytest.raises(ConnectionFailed) as failed:
        bulk(hub, transport="websocket")
    check_error(failed.value, sentence)


# -- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hub", "call"),
    [
        (EndlessDelivery, receive_all),
        (EndlessEmptyDelivery, receive_all),
        (EmptyBeyondCredit, receive_all),
    ],
    ids=names,
)
async def test_memory_is_bounded(hub: type[PoliteHub], call: Callable[..., Any]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(PumphouseError):
            await native(hub, call)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 << 20
