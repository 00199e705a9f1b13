"""Runs of single events: the same events and outcomes as if each had arrived alone."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from pumphouse.amqp.events import Disposed
from pumphouse.amqp.links import ReceiverLink, SenderLink
from pumphouse.amqp.messages import BATCH_FORMAT, Message, encode_batch, encode_message
from pumphouse.amqp.performatives import Accepted, Rejected
from pumphouse.errors import AmqpError
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.namespace import Partition
from tests.hub.conftest import Connect
from tests.hub.links.partitions import last_sequence, numbered_bodies
from tests.hub.peer import HUB, Peer, event

# Some events that the hub accepts, and some that it rejects.
EVENTS = [
    *(event(b"%d" % number) for number in range(40)),
    *(event(b"keyed", x_opt_partition_key="k") for _ in range(3)),
    *(event(b"%d" % number, x_opt_partition_key="other") for number in range(3)),
    event(b"odd key", x_opt_partition_key=7),
    *(encode_message(Message(application={"n": number}, data=(b"",))) for number in range(5)),
    b"",
    b"\xff",
    event(b"key too long", x_opt_partition_key="k" * 129),
    b"\x00\x53\x75\xa0\x02x",
    *(event(bytes(2000)) for _ in range(40)),
    encode_message(Message(value="no data")),
    event(b"last"),
]


async def outcomes(
    peer: Peer, out: SenderLink, payloads: list[bytes], together: bool, message_format: int = 0
) -> list[Any]:
    """The condition of each rejection, in order; None for accepted events."""
    ids = []
    for payload in payloads:
        number = out.send(payload, settled=False, message_format=message_format)
        ids.append(number)
        if not together:
            await peer.until(partial(has_outcome, peer, number))
    await peer.until(lambda: all(has_outcome(peer, number) for number in ids))
    return [condition(peer.outcome(number)) for number in ids]


def has_outcome(peer: Peer, number: int) -> bool:
    return peer.outcome(number) is not None


def condition(outcome: object) -> str | None:
    if outcome == Accepted():
        return None
    assert isinstance(outcome, Rejected)
    assert outcome.error is not None
    return outcome.error.condition


async def stored(peer: Peer, hub: EmbeddedHub, partition: int) -> list[Any]:
    """All events of a partition: their bodies, keys and sequence numbers."""
    address = f"{HUB}/ConsumerGroups/$Default/Partitions/{partition}"
    count = last_sequence(hub, partition) + 1
    into = await peer.receiver(address, f"in {partition}", credit=max(1, count))
    await peer.until(lambda: len(peer.deliveries(into)) == count, "all events")
    return [
        (message.data, message.value, message.application, message.header,
         {k: v for k, v in message.annotations.items() if k not in VARYING})
        for message in peer.messages(into)
    ]  # fmt: skip


VARYING = frozenset(("x-opt-enqueued-time",))


async def test_a_run_is_stored_as_single_events_are(hub: EmbeddedHub, connect: Connect) -> None:
    peer = await connect()
    results = []
    for partition, together in ((0, True), (1, False)):
        out = await peer.sender(f"{HUB}/Partitions/{partition}", f"out {partition}")
        results.append(await outcomes(peer, out, EVENTS, together))
    assert results[0] == results[1]
    assert [result for result in results[0] if result] == [
        "amqp:decode-error", "com.microsoft:argument-error", "amqp:decode-error",
    ]  # fmt: skip
    assert await stored(peer, hub, 0) == await stored(peer, hub, 1)


async def test_a_run_to_a_hub_is_shared_out_as_single_events_are(
    hub: EmbeddedHub, connect: Connect
) -> None:
    """Events with a key go to its partition, the others take turns."""
    peer = await connect()
    out = await peer.sender(HUB)
    good = [payload for payload in EVENTS if len(payload) > 6 and b"too long" not in payload]
    partitions = hub.namespace.hub(HUB).partitions
    changes: list[list[Counter[str]]] = []
    for together in (False, True):
        before = [counters(partition) for partition in partitions]
        # An even number without a key, so that both rounds start at the same partition.
        assert not any(await outcomes(peer, out, good, together))
        after = [counters(partition) for partition in partitions]
        changes.append([new - old for new, old in zip(after, before, strict=True)])
    assert changes[0] == changes[1]
    assert all(change["events"] for change in changes[0])


def counters(partition: Partition) -> Counter[str]:
    return Counter(
        events=partition.log.next_sequence,
        received=partition.events_received,
        bytes=partition.bytes_received,
    )


async def test_the_outcomes_of_a_run_are_one_frame(connect: Connect) -> None:
    peer = await connect()
    out = await peer.sender(HUB)
    assert not any(await outcomes(peer, out, [event(b"x")] * 300, together=True))
    assert len(peer.of(Disposed)) < 15


async def test_settled_runs_get_no_disposition(hub: EmbeddedHub, connect: Connect) -> None:
    peer = await connect()
    out = await peer.sender()
    for number in range(100):
        out.send(event(b"%d" % number) if number != 50 else b"\xff", settled=True)
    await peer.sync()
    assert peer.of(Disposed) == []
    assert last_sequence(hub) == 98


async def test_a_partition_that_fails_rejects_its_events_only(
    hub: EmbeddedHub, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await connect()
    out = await peer.sender(HUB)
    failure = AmqpError("amqp:internal-error", "The disk is full.")
    failing = hub.namespace.hub(HUB).partitions[0].log
    monkeypatch.setattr(
        type(failing), "publish", failing_publish(type(failing).publish, failing, failure)
    )
    states = await outcomes(peer, out, [event(b"x")] * 60, together=True)
    assert states.count("amqp:internal-error") == 30
    assert states.count(None) == 30
    assert (last_sequence(hub, 0), last_sequence(hub, 1)) == (-1, 29)


def failing_publish(publish: Any, failing: Any, failure: AmqpError) -> Any:
    def replaced(log: Any, batch: Any, now_ms: int, publisher: Any, committed: Any) -> None:
        if log is failing:
            committed(failure)
        else:
            publish(log, batch, now_ms, publisher, committed)

    return replaced


async def test_credit_is_granted_for_runs(hub: EmbeddedHub, connect: Connect) -> None:
    """Also if all of their events are rejected."""
    peer = await connect()
    out = await peer.sender()
    for payload in (event(b"x"), b"\xff"):
        for _ in range(30):
            await peer.until(lambda: out.credit >= 100, "credit")
            await outcomes(peer, out, [payload] * 100, together=True)
    (connection,) = hub.server.connections
    (link,) = connection.links()
    assert isinstance(link.link, ReceiverLink)
    assert (link.link.pending, link.link.overrun) == (0, 0)


async def test_a_fault_is_injected_into_single_events_of_a_run(
    hub: EmbeddedHub, connect: Connect
) -> None:
    peer = await connect()
    out = await peer.sender()
    await outcomes(peer, out, [event(b"x")] * 20, together=True)  # learns the structure
    hub.faults.throttle(times=3)
    states = await outcomes(peer, out, [event(b"x")] * 20, together=True)
    assert states == ["com.microsoft:server-busy"] * 3 + [None] * 17


async def test_batches_and_single_events_alternate(hub: EmbeddedHub, connect: Connect) -> None:
    peer = await connect()
    out = await peer.sender()
    ids = []
    for number in range(40):
        body = event(b"%d" % number)
        is_batch = number % 10 == 9
        ids.append(
            out.send(
                encode_batch([body]) if is_batch else body,
                message_format=BATCH_FORMAT if is_batch else 0,
                settled=False,
            )
        )
    await peer.until(lambda: all(peer.outcome(number) == Accepted() for number in ids))
    into = await peer.receiver(credit=40)
    await peer.until(lambda: len(peer.deliveries(into)) == 40)
    assert peer.bodies(into) == numbered_bodies(0, 40)
