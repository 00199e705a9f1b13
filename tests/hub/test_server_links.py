"""The hub on a real socket: sending and receiving, to the last frame and the last credit."""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.amqp.events import Disposed
from pumphouse.amqp.frames import encode_frame
from pumphouse.amqp.links import ReceiverLink
from pumphouse.amqp.messages import BATCH_FORMAT, Message, encode_batch, encode_message
from pumphouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    SETTLED,
    Accepted,
    Attach,
    Flow,
    Source,
    Target,
    Transfer,
)
from pumphouse.amqp.types import Symbol
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.links.delivery import RUNTIME_METRIC
from tests.hub.conftest import Connect
from tests.hub.events import batch_of
from tests.hub.peer import HUB, READ_FROM, Clock, Peer, Refused, event, eventually, rejection


def fill(hub: EmbeddedHub, *bodies: bytes, partition: int = 0) -> None:
    """Put events into a partition, as if they had been sent."""
    namespace = hub.namespace
    where = namespace.hub(HUB).partitions[partition]
    namespace.publish(where, batch_of(bodies), None, lambda failed: None)


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def last_sequence(hub: EmbeddedHub, partition: int = 0) -> int:
    return hub.namespace.hub(HUB).partitions[partition].log.next_sequence - 1


# -- sending --------------------------------------------------------------------------------------


async def test_sent_events_are_accepted_and_read(connect: Connect, clock: Clock) -> None:
    peer = await connect()
    out = await peer.sender()
    for number in range(3):
        assert await peer.send(out, event(b"%d" % number)) == Accepted()
    batch = encode_batch([event(b"3"), event(b"4")])
    assert await peer.send(out, batch, BATCH_FORMAT) == Accepted()
    into = await peer.receiver(credit=10)
    await peer.until(lambda: len(peer.deliveries(into)) == 5)
    assert peer.bodies(into) == numbers(0, 5)
    stamps = [message.annotations for message in peer.messages(into)]
    assert [stamp["x-opt-sequence-number"] for stamp in stamps] == [*range(5)]
    assert {stamp["x-opt-enqueued-time"] for stamp in stamps} == {clock.time * 1000}
    assert all(delivery.settled for delivery in peer.deliveries(into))


async def test_many_outcomes_come_in_few_frames(connect: Connect) -> None:
    peer = await connect()
    out = await peer.sender()
    for number in range(100):
        out.send(event(b"%d" % number), settled=False)
    await peer.until(lambda: peer.outcome(99) is not None)
    assert sum(said.last - said.first + 1 for said in peer.of(Disposed)) == 100
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
    ],
)
async def test_what_is_refused_is_not_stored(
    hub: EmbeddedHub, connect: Connect, payload: bytes, message_format: int, condition: str
) -> None:
    peer = await connect()
    out = await peer.sender()
    error = rejection(await peer.send(out, payload, message_format))
    assert error.condition == condition
    assert error.description
    assert last_sequence(hub) == -1
    assert await peer.send(out, event(b"good")) == Accepted()  # and the link lives on


async def test_an_event_too_large_is_rejected_by_its_size(
    hub: EmbeddedHub, connect: Connect
) -> None:
    """Sixteen frames and more: counted, not kept."""
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
    (talk,) = hub.server.connections
    assert talk.amqp.held_bytes == 0


@pytest.mark.parametrize(
    "key", ["", "k" * 128, "\U0001f3e0" * 128], ids=["none", "long", "longest"]
)
async def test_annotations_may_not_make_a_mountain_of_a_batch(
    hub: EmbeddedHub, connect: Connect, key: str
) -> None:
    """A full batch of empty events is taken; not if each of them is to repeat the longest key."""
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


async def test_a_publisher_signs_its_events(connect: Connect) -> None:
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


# -- receiving ------------------------------------------------------------------------------------


async def test_credit_is_used_exactly(hub: EmbeddedHub, connect: Connect) -> None:
    fill(hub, *numbers(0, 100))
    peer = await connect()
    into = await peer.receiver()
    seen = 0
    for grant in (1, 2, 30, 1, 16):
        into.grant(grant)
        seen += grant
        await peer.until(lambda: len(peer.deliveries(into)) >= seen)  # noqa: B023
        await peer.sync()
        await peer.sync()
        assert len(peer.deliveries(into)) == seen
    assert peer.bodies(into) == numbers(0, 50)
    assert into.credit == 0


async def test_credit_that_came_with_the_attach(hub: EmbeddedHub, connect: Connect) -> None:
    """Both in one packet, before the hub has answered, as some clients do."""
    fill(hub, *numbers(0, 5))
    peer = await connect()
    link = peer.session.attach(
        "eager", RECEIVER, source=Source(address=READ_FROM), target=Target(address="here")
    )
    peer.session.send_flow(link.handle, None, 3)
    await peer.until(lambda: len(peer.deliveries(link)) == 3)
    await peer.sync()
    assert peer.bodies(link) == numbers(0, 3)


async def test_new_events_wake_a_waiting_reader(hub: EmbeddedHub, connect: Connect) -> None:
    peer = await connect()
    into = await peer.receiver(credit=5)
    await peer.sync()
    fill(hub, b"0")
    await peer.until(lambda: peer.bodies(into) == [b"0"])
    fill(hub, b"1", b"2")
    await peer.until(lambda: peer.bodies(into) == numbers(0, 3))


@pytest.mark.parametrize("there", [0, 3, 10, 20])
async def test_drain(hub: EmbeddedHub, connect: Connect, there: int) -> None:
    """What is there comes, then the credit is gone: either used or taken back."""
    if there:
        fill(hub, *numbers(0, there))
    peer = await connect()
    into = await peer.receiver()
    into.grant(10, drain=True)
    await peer.until(lambda: into.credit == 0, "the drain")
    assert peer.bodies(into) == numbers(0, min(there, 10))
    assert into.delivery_count == 10
    fill(hub, b"later")
    await peer.sync()
    assert len(peer.deliveries(into)) == min(there, 10)
    into.grant(1)
    await peer.until(lambda: len(peer.deliveries(into)) == min(there, 10) + 1)


async def frames_through(peer: Peer, link: ReceiverLink, window: int, credit: int) -> int:
    """Open the window for so many frames, and give credit; how many frames then came."""
    session = peer.session
    before = session.next_incoming_id
    session.send(
        Flow(
            next_incoming_id=before,
            incoming_window=window,
            next_outgoing_id=session.next_outgoing_id,
            outgoing_window=100,
            handle=link.handle,
            delivery_count=link.delivery_count,
            link_credit=credit,
        )
    )
    await peer.sync()
    await peer.sync()
    assert before is not None
    assert session.next_incoming_id is not None
    return session.next_incoming_id - before


async def test_a_window_of_five_frames(hub: EmbeddedHub, connect: Connect) -> None:
    fill(hub, *numbers(0, 23))
    peer = await connect()
    into = await peer.receiver()
    came = [await frames_through(peer, into, window, 100) for window in (5, 5, 0, 1, 5, 5, 5)]
    assert came == [5, 5, 0, 1, 5, 5, 2]
    assert peer.bodies(into) == numbers(0, 23)


@pytest.mark.parametrize("metric", [True, False])
async def test_a_reader_of_small_frames_and_a_small_window(
    hub: EmbeddedHub, connect: Connect, metric: bool
) -> None:
    """Deliveries of many frames, cut by the window and taken up again."""
    bodies = [b"a", b"b" * 3000, b"c" * 100, b"d" * 10_000, b"e"]
    fill(hub, *bodies)
    peer = await connect(max_frame_size=512)
    wanted = (RUNTIME_METRIC,) if metric else ()
    into = await peer.receiver(desired_capabilities=wanted)
    came = []
    while len(peer.deliveries(into)) < len(bodies):
        left = len(bodies) - len(peer.deliveries(into))
        came.append(await frames_through(peer, into, 3, left))
        assert came[-1] == 3 or len(peer.deliveries(into)) == len(bodies)
    assert sum(came) > 30
    assert peer.bodies(into) == bodies
    for message in peer.messages(into):
        assert ("last_enqueued_offset" in message.delivery_annotations) is metric


async def test_small_frames_without_a_small_window(hub: EmbeddedHub, connect: Connect) -> None:
    fill(hub, *numbers(0, 3), b"x" * 100_000, *numbers(3, 6))
    peer = await connect(max_frame_size=512)
    into = await peer.receiver(credit=100)
    await peer.until(lambda: len(peer.deliveries(into)) == 7)
    assert peer.bodies(into) == [*numbers(0, 3), b"x" * 100_000, *numbers(3, 6)]
    stamps = [message.annotations["x-opt-sequence-number"] for message in peer.messages(into)]
    assert stamps == [*range(7)]


async def test_how_the_hub_answers_a_reader(connect: Connect) -> None:
    peer = await connect()
    into = peer.session.attach(
        "in",
        RECEIVER,
        source=Source(address=READ_FROM, outcomes=("amqp:accepted:list",)),
        target=Target(address="here"),
        desired_capabilities=(RUNTIME_METRIC, "com.microsoft:georeplication"),
        properties={Symbol("com.microsoft:epoch"): 4},
    )
    await peer.until(lambda: into.attached)
    answer = next(e.attach for e in peer.events if getattr(e, "link", None) is into)  # type: ignore[union-attr]
    assert isinstance(answer, Attach)
    assert (answer.role, answer.initial_delivery_count) == (SENDER, 0)
    assert answer.snd_settle_mode == SETTLED
    assert answer.offered_capabilities == (RUNTIME_METRIC,)
    assert answer.source.address == READ_FROM
    assert answer.source.outcomes == ("amqp:accepted:list",)
    assert answer.properties == {"com.microsoft:epoch": 4}


@pytest.mark.parametrize(
    ("selector", "first"),
    [
        (None, b"0"),
        ("amqp.annotation.x-opt-offset > '-1'", b"0"),
        ("amqp.annotation.x-opt-sequence-number > '2'", b"3"),
        ("amqp.annotation.x-opt-sequence-number >= '2'", b"2"),
        ("amqp.annotation.x-opt-offset > '@latest'", b"later"),
    ],
)
async def test_where_a_reader_starts(
    hub: EmbeddedHub, connect: Connect, selector: str | None, first: bytes
) -> None:
    fill(hub, *numbers(0, 5))
    peer = await connect()
    into = await peer.receiver(credit=1, selector=selector)
    await peer.sync()
    fill(hub, b"later")
    await peer.until(lambda: peer.bodies(into) == [first])


@pytest.mark.parametrize("selector", ["nonsense", "amqp.annotation.x-opt-offset > '99999'"])
async def test_a_start_that_is_none(hub: EmbeddedHub, connect: Connect, selector: str) -> None:
    peer = await connect()
    with pytest.raises(Refused) as refused:
        await peer.receiver(selector=selector)
    assert refused.value.error.condition == "com.microsoft:argument-error"


# -- coming and going -----------------------------------------------------------------------------


async def test_an_ended_session_takes_its_links_along(hub: EmbeddedHub, connect: Connect) -> None:
    """The official client ends its session without detaching the reader before it."""
    peer = await connect()
    await peer.receiver(properties={Symbol("com.microsoft:epoch"): 7})
    await peer.sender()
    entity = hub.namespace.hub(HUB)
    assert (len(entity.senders), len([*entity.readers()])) == (1, 1)
    peer.session.end()
    await peer.until(lambda: peer.session.state == "UNMAPPED")
    assert (len(entity.senders), len([*entity.readers()])) == (0, 0)
    other = await connect()
    await other.receiver()  # without an epoch: refused if the old reader were still there


async def test_a_session_ended_for_an_unattached_handle(hub: EmbeddedHub, connect: Connect) -> None:
    peer = await connect()
    await peer.receiver(credit=5)
    peer.session.send(Transfer(handle=77, delivery_id=0))
    await peer.until(lambda: peer.session.state == "UNMAPPED")
    assert [*hub.namespace.hub(HUB).readers()] == []
    fill(hub, b"nobody reads this")
    await peer.sync()
    assert peer.amqp.state == "OPENED"


async def test_what_happened_before_the_protocol_was_broken_counts(
    hub: EmbeddedHub, connect: Connect
) -> None:
    """A detach and garbage in one packet: the reader is gone all the same."""
    peer = await connect()
    into = await peer.receiver(credit=5)
    into.detach()
    peer.writer.write(b"".join(peer.amqp.data_to_send()) + b"\x00\x00\x00\x01garbage")
    assert await peer.until_gone() is not None
    await eventually(lambda: not [*hub.namespace.hub(HUB).readers()])


async def test_dropped_in_the_midst_of_a_delivery(hub: EmbeddedHub, connect: Connect) -> None:
    peer = await connect()
    await peer.sender()
    await peer.receiver()
    part = encode_frame(Transfer(handle=0, delivery_id=0, more=True), payload=bytes(60_000))
    peer.writer.write(part + part[:1000])
    (talk,) = hub.server.connections
    await eventually(lambda: talk.amqp.held_bytes > 60_000, "half a delivery")
    await peer.drop()
    await eventually(lambda: not hub.server.connections)
    entity = hub.namespace.hub(HUB)
    assert not entity.senders
    assert [partition.readers for partition in entity.partitions] == [{}, {}]
    assert last_sequence(hub) == -1


async def test_thousands_of_attaches_and_detaches(hub: EmbeddedHub, connect: Connect) -> None:
    peer = await connect()
    entity = hub.namespace.hub(HUB)
    for round_number in range(20):
        links = [
            peer.session.attach(
                f"{round_number}-{number}",
                SENDER,
                source=Source(address="here"),
                target=Target(address=HUB),
                initial_delivery_count=0,
            )
            for number in range(150)
        ]
        await peer.until(lambda: all(link.attached for link in links))  # noqa: B023
        assert len(entity.senders) == 150
        for link in links:
            link.detach()
        await peer.until(lambda: not peer.session.links)
        assert not entity.senders
    (talk,) = hub.server.connections
    assert talk.amqp.sessions[0].links == {}
    assert talk.links() == []
