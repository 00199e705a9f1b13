"""Producer links on a real socket: accepted, rejected and settled deliveries."""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.amqp.events import Disposed
from pumphouse.amqp.links import ReceiverLink
from pumphouse.amqp.messages import BATCH_FORMAT, Message, encode_batch, encode_message
from pumphouse.amqp.performatives import (
    Accepted,
)
from pumphouse.amqp.types import Symbol
from pumphouse.hub.embedded import EmbeddedHub
from tests.amqp.codec.test_map_keys import uuid_keys
from tests.hub.conftest import Connect
from tests.hub.links.partitions import last_sequence, numbered_bodies
from tests.hub.peer import HUB, Clock, Peer, event, rejection


async def test_sent_events_are_accepted_and_read(connect: Connect, clock: Clock) -> None:
    peer = await connect()
    out = await peer.sender()
    for number in range(3):
        assert await peer.send(out, event(b"%d" % number)) == Accepted()
    batch = encode_batch([event(b"3"), event(b"4")])
    assert await peer.send(out, batch, BATCH_FORMAT) == Accepted()
    into = await peer.receiver(credit=10)
    await peer.until(lambda: len(peer.deliveries(into)) == 5)
    assert peer.bodies(into) == numbered_bodies(0, 5)
    stamps = [message.annotations for message in peer.messages(into)]
    assert [stamp["x-opt-sequence-number"] for stamp in stamps] == [*range(5)]
    assert {stamp["x-opt-enqueued-time"] for stamp in stamps} == {clock.time * 1000}
    assert all(delivery.settled for delivery in peer.deliveries(into))


async def test_many_outcomes_share_few_frames(connect: Connect) -> None:
    peer = await connect()
    out = await peer.sender()
    for number in range(100):
        out.send(event(b"%d" % number), settled=False)
    await peer.until(lambda: peer.outcome(99) is not None)
    assert sum(outcome.last - outcome.first + 1 for outcome in peer.of(Disposed)) == 100
    assert len(peer.of(Disposed)) < 20


async def test_settled_sends_get_no_disposition(hub: EmbeddedHub, connect: Connect) -> None:
    peer = await connect()
    out = await peer.sender()
    await peer.send(out, event(b"good"), settled=True)
    await peer.send(out, b"\xff bad", settled=True)
    await peer.send(out, event(b"bad format"), message_format=9, settled=True)
    await peer.sync()
    assert peer.of(Disposed) == []
    assert last_sequence(hub) == 0


@pytest.mark.parametrize(
    ("payload", "message_format", "condition"),
    [
        (b"\xff", 0, "amqp:decode-error"),
        (encode_batch([event(b"a"), b"\xff"]), BATCH_FORMAT, "amqp:decode-error"),
        (event(b"a"), 1, "amqp:not-implemented"),
        (event(b"a"), BATCH_FORMAT + 1, "amqp:not-implemented"),
        (event(b"a", x_opt_partition_key="k" * 129), 0, "com.microsoft:argument-error"),
        (b"\x00\x53\x72\xc1\x03\x02\x45\x40", 0, "amqp:decode-error"),  # a list for a key
        (b"\x00\x53\x74" + uuid_keys(1000), 0, "amqp:decode-error"),
        (b"\x00\x53\x77" + uuid_keys(1000), 0, "amqp:decode-error"),
        (encode_message(Message(application={"n" * 1025: 1})), 0, "amqp:invalid-field"),
    ],
)
async def test_a_rejected_delivery_is_not_stored(
    hub: EmbeddedHub, connect: Connect, payload: bytes, message_format: int, condition: str
) -> None:
    peer = await connect()
    out = await peer.sender()
    error = rejection(await peer.send(out, payload, message_format))
    assert error.condition == condition
    assert error.description
    assert last_sequence(hub) == -1
    assert await peer.send(out, event(b"good")) == Accepted()  # the link is still usable


async def test_an_event_above_the_size_limit_is_rejected(
    hub: EmbeddedHub, connect: Connect
) -> None:
    """More than sixteen frames: counted, not buffered."""
    peer = await connect()
    out = await peer.sender()
    limit = hub.namespace.message_bytes_max
    error = rejection(await peer.send(out, bytes(limit + 1)))
    assert error.condition == "amqp:link:message-size-exceeded"
    assert f"(delivery-id:0, size:{limit + 1} bytes)" in str(error.description)
    exact = event(bytes(limit - 8))
    assert len(exact) == limit
    assert await peer.send(out, exact) == Accepted()
    assert last_sequence(hub) == 0
    (connection,) = hub.server.connections
    assert connection.amqp.held_bytes == 0


@pytest.mark.parametrize(
    "key", ["", "k" * 128, "\U0001f3e0" * 128], ids=["none", "long", "longest"]
)
async def test_a_batch_that_grows_too_much_by_its_key_is_rejected(
    hub: EmbeddedHub, connect: Connect, key: str
) -> None:
    """A full batch of empty events is accepted, but not if each repeats the longest key."""
    peer = await connect()
    out = await peer.sender()
    empty = encode_message(Message(data=(b"",)))
    keyed = {Symbol("x-opt-partition-key"): key} if key else {}
    batch = encode_batch([empty] * (hub.namespace.message_bytes_max // 10 - 100), keyed)
    outcome = await peer.send(out, batch, message_format=BATCH_FORMAT)
    if len(key.encode()) < 200:
        assert outcome == Accepted()
    else:
        error = rejection(outcome)
        assert error.condition == "amqp:link:message-size-exceeded"
        assert "use a shorter key" in (error.description or "")
        assert last_sequence(hub) == -1


async def test_a_batch_with_too_many_events_is_rejected(hub: EmbeddedHub, connect: Connect) -> None:
    """Events without any section are small: a batch could have twice as many as of any client."""
    peer = await connect()
    out = await peer.sender()
    count = hub.namespace.message_bytes_max // 8
    assert await peer.send(out, encode_batch([b""] * count), BATCH_FORMAT) == Accepted()
    error = rejection(await peer.send(out, encode_batch([b""] * (count + 1)), BATCH_FORMAT))
    assert error.condition == "amqp:link:message-size-exceeded"
    assert f"{count} are allowed" in (error.description or "")
    assert last_sequence(hub) == count - 1


async def test_events_carry_their_publisher_and_its_key(connect: Connect) -> None:
    peer = await connect()
    out = await peer.sender(f"{HUB}/Publishers/device-7")
    assert await peer.send(out, event(b"a")) == Accepted()
    assert await peer.send(out, event(b"b", x_opt_partition_key="device-7")) == Accepted()
    for payload, kind in (
        (event(b"c", x_opt_partition_key="device-8"), 0),
        (encode_batch([event(b"c"), event(b"d", x_opt_partition_key="x")]), BATCH_FORMAT),
        (
            encode_batch(
                [event(b"e", x_opt_partition_key="x")],
                {Symbol("x-opt-partition-key"): "device-7"},
            ),
            BATCH_FORMAT,
        ),
    ):
        error = rejection(await peer.send(out, payload, kind))
        assert error.condition == "com.microsoft:argument-error"
        assert "must match the publisher 'device-7'" in str(error.description)
    readers = [
        await peer.receiver(f"{HUB}/ConsumerGroups/$Default/Partitions/{n}", f"in {n}", credit=9)
        for n in (0, 1)
    ]
    got = await received(peer, readers, 2)
    assert {message.annotations["x-opt-publisher"] for message in got} == {"device-7"}
    assert [b"".join(message.data) for message in got] == [b"a", b"b"]  # in one partition


async def received(peer: Peer, links: list[ReceiverLink], count: int) -> list[Any]:
    await peer.until(lambda: sum(len(peer.deliveries(link)) for link in links) >= count)
    return [message for link in links for message in peer.messages(link)]
