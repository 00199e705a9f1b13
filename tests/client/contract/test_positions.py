"""Start positions: resolved before the first event, and unchanged by a reconnect."""

from __future__ import annotations

import pytest

from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.clock import MovableClock
from pumphouse.errors import AmqpError, OptionError
from pumphouse.events import EARLIEST, LATEST, Event, Position, to_ms
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.options import Retention
from tests.client.contract.support import DriverTarget, fill, read, running, sequences, take


async def send_one_per_second(client: HubClient, clock: MovableClock) -> list[Event]:
    """Six events in partition 0, one second apart."""
    sender = await client.sender("0")
    for number in range(6):
        await sender.send([Event(b"%d" % number)])
        clock.advance(1.0)
    return await read(client, "0", 6)


async def test_all_kinds_of_positions(client: HubClient, clock: MovableClock) -> None:
    stored = await send_one_per_second(client, clock)
    third = stored[2]
    assert third.offset is not None
    assert third.enqueued_ms is not None
    values = {"sequence": "2", "offset": third.offset, "time": str(third.enqueued_ms)}
    for kind, value in values.items():
        for inclusive, first in ((True, 2), (False, 3)):
            position = Position(kind, value, inclusive)
            events = await read(client, "0", 6 - first, position=position)
            assert sequences(events) == list(range(first, 6)), position
    assert sequences(await read(client, "0", 6, position=EARLIEST)) == list(range(6))
    between = Position("time", str(third.enqueued_ms + 500))
    assert sequences(await read(client, "0", 3, position=between)) == [3, 4, 5]
    long_ago = Position("time", str(to_ms(third.enqueued_at) - 10**9))  # type: ignore[arg-type]
    assert sequences(await read(client, "0", 6, position=long_ago)) == list(range(6))


@pytest.mark.parametrize("earlier", [0, 7])
async def test_latest_is_resolved_before_reader_returns(client: HubClient, earlier: int) -> None:
    if earlier:
        await fill(client, "0", earlier)
    reader = await client.reader(ReaderOptions("0", position=LATEST))
    await fill(client, "0", 3)
    assert sequences(await take(reader, 3)) == [earlier, earlier + 1, earlier + 2]


@pytest.mark.parametrize("earlier", [0, 7])
async def test_latest_is_not_resolved_again_after_a_reconnect(
    client: HubClient, target: DriverTarget, earlier: int
) -> None:
    if earlier:
        await fill(client, "0", earlier)
    reader = await client.reader(ReaderOptions("0", position=LATEST))
    target.hub.faults.refuse(
        hub=target.name, group="$default", times=3
    )  # the reconnect takes a while
    target.hub.drop_connections()
    await target.empty()
    async with target.client() as other_client:
        await fill(other_client, "0", 3)
    assert sequences(await take(reader, 3)) == [earlier, earlier + 1, earlier + 2]


async def test_an_inclusive_position_is_exclusive_after_a_reconnect(
    client: HubClient, target: DriverTarget
) -> None:
    await fill(client, "0", 6)
    position = Position("sequence", "2", inclusive=True)
    reader = await client.reader(ReaderOptions("0", position=position, prefetch=1))
    assert sequences(await take(reader, 1, at_once=1)) == [2]
    target.hub.drop_connections()
    assert sequences(await take(reader, 3)) == [3, 4, 5]


async def test_the_position_after_the_last_event_is_valid(client: HubClient) -> None:
    await fill(client, "0", 3)
    reader = await client.reader(ReaderOptions("0", position=Position("sequence", "2")))
    await fill(client, "0", 1)
    assert sequences(await take(reader, 1)) == [3]


@pytest.mark.parametrize("kind", ["offset", "sequence"])
async def test_a_position_beyond_the_end_is_refused(client: HubClient, kind: str) -> None:
    await fill(client, "0", 3)
    with pytest.raises(AmqpError, match=r"The supplied .* '100000' is invalid") as refused:
        await client.reader(ReaderOptions("0", position=Position(kind, "100000")))
    assert refused.value.condition == "com.microsoft:argument-error"


async def test_an_unknown_kind_is_an_error(client: HubClient) -> None:
    with pytest.raises(OptionError, match="invalid kind of position 'yesterday'"):
        await client.reader(ReaderOptions("0", position=Position("yesterday")))


async def test_expired_events_are_skipped(driver: str) -> None:
    clock = MovableClock()
    server = EmbeddedHub({"eh": 1}, clock=clock, retention=Retention(seconds=60))
    async with running(server) as hub, DriverTarget(hub, "eh", driver).client() as client:
        await fill(client, "0", 5)
        reader = await client.reader(ReaderOptions("0", prefetch=1))
        assert sequences(await take(reader, 1, at_once=1)) == [0]
        clock.advance(61)
        hub.tick()
        await fill(client, "0", 2)
        received = [*sequences(await take(reader, 2)), *sequences(await reader.receive(1, 0.5))]
        # One more event may have been in flight.
        assert received in ([5, 6], [1, 5, 6])
        old = Position("sequence", "1")
        assert sequences(await read(client, "0", 2, position=old)) == [5, 6]
