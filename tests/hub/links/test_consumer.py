"""Consumer links on a real socket: credit, drain, windows, frames and start positions."""

from __future__ import annotations

import pytest

from pumphouse.amqp.links import ReceiverLink
from pumphouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    SETTLED,
    Attach,
    Flow,
    Source,
    Target,
)
from pumphouse.amqp.types import Symbol
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.links.delivery import RUNTIME_METRIC
from tests.hub.conftest import Connect
from tests.hub.links.partitions import fill, numbered_bodies
from tests.hub.peer import READ_FROM, Peer, Refused


async def test_credit_is_used_exactly(hub: EmbeddedHub, connect: Connect) -> None:
    fill(hub, *numbered_bodies(0, 100))
    peer = await connect()
    into = await peer.receiver()
    total = 0
    for grant in (1, 2, 30, 1, 16):
        into.grant(grant)
        total += grant
        await peer.until(lambda: len(peer.deliveries(into)) >= total)  # noqa: B023
        await peer.sync()
        await peer.sync()
        assert len(peer.deliveries(into)) == total
    assert peer.bodies(into) == numbered_bodies(0, 50)
    assert into.credit == 0


async def test_credit_may_arrive_together_with_the_attach(
    hub: EmbeddedHub, connect: Connect
) -> None:
    """Both in one packet, before the response of the hub, as some clients send them."""
    fill(hub, *numbered_bodies(0, 5))
    peer = await connect()
    link = peer.session.attach(
        "eager", RECEIVER, source=Source(address=READ_FROM), target=Target(address="here")
    )
    peer.session.send_flow(link.handle, None, 3)
    await peer.until(lambda: len(peer.deliveries(link)) == 3)
    await peer.sync()
    assert peer.bodies(link) == numbered_bodies(0, 3)


async def test_new_events_wake_a_waiting_reader(hub: EmbeddedHub, connect: Connect) -> None:
    peer = await connect()
    into = await peer.receiver(credit=5)
    await peer.sync()
    fill(hub, b"0")
    await peer.until(lambda: peer.bodies(into) == [b"0"])
    fill(hub, b"1", b"2")
    await peer.until(lambda: peer.bodies(into) == numbered_bodies(0, 3))


@pytest.mark.parametrize("available", [0, 3, 10, 20])
async def test_a_drain_sends_the_available_events_and_uses_up_the_credit(
    hub: EmbeddedHub, connect: Connect, available: int
) -> None:
    """The available events are sent; the rest of the credit is returned."""
    if available:
        fill(hub, *numbered_bodies(0, available))
    peer = await connect()
    into = await peer.receiver()
    into.grant(10, drain=True)
    await peer.until(lambda: into.credit == 0, "the drain")
    assert peer.bodies(into) == numbered_bodies(0, min(available, 10))
    assert into.delivery_count == 10
    fill(hub, b"later")
    await peer.sync()
    assert len(peer.deliveries(into)) == min(available, 10)
    into.grant(1)
    await peer.until(lambda: len(peer.deliveries(into)) == min(available, 10) + 1)


async def frames_through(peer: Peer, link: ReceiverLink, window: int, credit: int) -> int:
    """Set the window and grant credit; returns how many frames arrived."""
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


async def test_the_session_window_limits_the_frames(hub: EmbeddedHub, connect: Connect) -> None:
    fill(hub, *numbered_bodies(0, 23))
    peer = await connect()
    into = await peer.receiver()
    counts = [await frames_through(peer, into, window, 100) for window in (5, 5, 0, 1, 5, 5, 5)]
    assert counts == [5, 5, 0, 1, 5, 5, 2]
    assert peer.bodies(into) == numbered_bodies(0, 23)


@pytest.mark.parametrize("metric", [True, False])
async def test_large_events_are_split_by_small_frames_and_a_small_window(
    hub: EmbeddedHub, connect: Connect, metric: bool
) -> None:
    """Deliveries of many frames, interrupted by the window and continued."""
    bodies = [b"a", b"b" * 3000, b"c" * 100, b"d" * 10_000, b"e"]
    fill(hub, *bodies)
    peer = await connect(max_frame_size=512)
    capabilities = (RUNTIME_METRIC,) if metric else ()
    into = await peer.receiver(desired_capabilities=capabilities)
    counts = []
    while len(peer.deliveries(into)) < len(bodies):
        left = len(bodies) - len(peer.deliveries(into))
        counts.append(await frames_through(peer, into, 3, left))
        assert counts[-1] == 3 or len(peer.deliveries(into)) == len(bodies)
    assert sum(counts) > 30
    assert peer.bodies(into) == bodies
    for message in peer.messages(into):
        assert ("last_enqueued_offset" in message.delivery_annotations) is metric


async def test_large_events_are_split_by_small_frames(hub: EmbeddedHub, connect: Connect) -> None:
    fill(hub, *numbered_bodies(0, 3), b"x" * 100_000, *numbered_bodies(3, 6))
    peer = await connect(max_frame_size=512)
    into = await peer.receiver(credit=100)
    await peer.until(lambda: len(peer.deliveries(into)) == 7)
    assert peer.bodies(into) == [*numbered_bodies(0, 3), b"x" * 100_000, *numbered_bodies(3, 6)]
    stamps = [message.annotations["x-opt-sequence-number"] for message in peer.messages(into)]
    assert stamps == [*range(7)]


async def test_the_attach_of_the_hub_echoes_the_supported_fields(connect: Connect) -> None:
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
    attach = next(e.attach for e in peer.events if getattr(e, "link", None) is into)  # type: ignore[union-attr]
    assert isinstance(attach, Attach)
    assert (attach.role, attach.initial_delivery_count) == (SENDER, 0)
    assert attach.snd_settle_mode == SETTLED
    assert attach.offered_capabilities == (RUNTIME_METRIC,)
    assert attach.source.address == READ_FROM
    assert attach.source.outcomes == ("amqp:accepted:list",)
    assert attach.properties == {"com.microsoft:epoch": 4}


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
async def test_a_reader_starts_at_its_selector(
    hub: EmbeddedHub, connect: Connect, selector: str | None, first: bytes
) -> None:
    fill(hub, *numbered_bodies(0, 5))
    peer = await connect()
    into = await peer.receiver(credit=1, selector=selector)
    await peer.sync()
    fill(hub, b"later")
    await peer.until(lambda: peer.bodies(into) == [first])


@pytest.mark.parametrize("selector", ["nonsense", "amqp.annotation.x-opt-offset > '99999'"])
async def test_an_invalid_start_position_is_refused(
    hub: EmbeddedHub, connect: Connect, selector: str
) -> None:
    peer = await connect()
    with pytest.raises(Refused) as refused:
        await peer.receiver(selector=selector)
    assert refused.value.error.condition == "com.microsoft:argument-error"
