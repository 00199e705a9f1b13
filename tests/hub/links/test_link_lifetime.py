"""Links that end: with their session, with their connection, or by a detach."""

from __future__ import annotations

from pumphouse.amqp.frames import encode_frame
from pumphouse.amqp.performatives import (
    SENDER,
    Source,
    Target,
    Transfer,
)
from pumphouse.amqp.types import Symbol
from pumphouse.hub.embedded import EmbeddedHub
from tests.hub.conftest import Connect
from tests.hub.links.partitions import fill, last_sequence
from tests.hub.peer import HUB, eventually


async def test_an_ended_session_ends_its_links(hub: EmbeddedHub, connect: Connect) -> None:
    """The official client ends its session without detaching its reader first."""
    peer = await connect()
    await peer.receiver(properties={Symbol("com.microsoft:epoch"): 7})
    await peer.sender()
    entity = hub.namespace.hub(HUB)
    assert (len(entity.senders), len([*entity.readers()])) == (1, 1)
    peer.session.end()
    await peer.until(lambda: peer.session.state == "UNMAPPED")
    assert (len(entity.senders), len([*entity.readers()])) == (0, 0)
    other = await connect()
    await other.receiver()  # without an epoch: refused beside a reader with an epoch


async def test_a_transfer_on_an_unattached_handle_ends_the_session(
    hub: EmbeddedHub, connect: Connect
) -> None:
    peer = await connect()
    await peer.receiver(credit=5)
    peer.session.send(Transfer(handle=77, delivery_id=0))
    await peer.until(lambda: peer.session.state == "UNMAPPED")
    assert [*hub.namespace.hub(HUB).readers()] == []
    fill(hub, b"unread")
    await peer.sync()
    assert peer.amqp.state == "OPENED"


async def test_frames_before_a_protocol_violation_are_handled(
    hub: EmbeddedHub, connect: Connect
) -> None:
    """A detach and garbage in one packet: the reader is gone."""
    peer = await connect()
    into = await peer.receiver(credit=5)
    into.detach()
    peer.writer.write(b"".join(peer.amqp.data_to_send()) + b"\x00\x00\x00\x01garbage")
    assert await peer.until_closed() is not None
    await eventually(lambda: not [*hub.namespace.hub(HUB).readers()])


async def test_a_connection_dropped_in_a_delivery_leaves_nothing(
    hub: EmbeddedHub, connect: Connect
) -> None:
    peer = await connect()
    await peer.sender()
    await peer.receiver()
    part = encode_frame(Transfer(handle=0, delivery_id=0, more=True), payload=bytes(60_000))
    peer.writer.write(part + part[:1000])
    (connection,) = hub.server.connections
    await eventually(lambda: connection.amqp.held_bytes > 60_000, "half a delivery")
    await peer.drop()
    await eventually(lambda: not hub.server.connections)
    entity = hub.namespace.hub(HUB)
    assert not entity.senders
    assert [partition.readers for partition in entity.partitions] == [{}, {}]
    assert last_sequence(hub) == -1


async def test_thousands_of_attaches_and_detaches_leave_nothing(
    hub: EmbeddedHub, connect: Connect
) -> None:
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
    (connection,) = hub.server.connections
    assert connection.amqp.sessions[0].links == {}
    assert connection.links() == []
