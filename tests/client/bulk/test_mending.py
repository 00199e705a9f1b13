"""A range whose connection breaks: it goes on behind the last row, or there is a clear error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from pumphouse.client.base import RetryOptions
from pumphouse.client.bulk.client import (
    BulkClient,
    EventsGone,
    HubRecreated,
    RangeOptions,
    read_range,
)
from pumphouse.client.native.connection import ConnectionOptions
from pumphouse.clock import now_ms
from pumphouse.errors import AmqpError, ConnectionFailed, HubNotFound, ReaderEvicted
from pumphouse.hub.embedded import EmbeddedHub
from tests.client.bulk.entity import (
    ONCE,
    QUICKLY,
    WAIT_S,
    Entity,
    by,
    eventually,
    numbered,
    rows,
    sequences,
    waiting,
)
from tests.client.ways import WAYS


@pytest.fixture(scope="module")
def house() -> Iterator[EmbeddedHub]:
    with EmbeddedHub(tls_port=0, ws_port=0) as hub:
        yield hub


@pytest.fixture(autouse=True)
def _no_faults(house: EmbeddedHub) -> Iterator[None]:
    yield
    house.faults.clear()


def read_all(house: EmbeddedHub, eh: Entity, way: str, last: int) -> list[int]:
    """The range up to `last`, in small batches, over a connection of small frames."""
    options = RangeOptions(batch_rows=97, batch_bytes=1 << 16, columns=("sequenceNumber",))
    place = by(way, house, eh.name)
    with BulkClient(
        **place, retry=QUICKLY, options=ConnectionOptions(rng=Random(3), frame_bytes_max=4096)
    ) as client:
        return sequences(client.read_range("0", 0, last, options))


# --- It goes on ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_connections_that_drop(house: EmbeddedHub, eh: Entity, way: str) -> None:
    eh.put(numbered(range(3_000), 1_000))
    before = house.faults.struck["drop"]
    house.faults.drop(on="deliver", rate=0.5, times=12, hub=eh.name)
    assert read_all(house, eh, way, 3_000) == list(range(3_000))
    assert house.faults.struck["drop"] > before


@pytest.mark.parametrize("way", ["tcp", "wss"])
def test_a_hub_in_trouble(house: EmbeddedHub, eh: Entity, way: str) -> None:
    """Refused, busy, detached, dropped, and hung up on before the first word."""
    eh.put(numbered(range(3_000), 1_000))
    options = RangeOptions(batch_rows=97, batch_bytes=1 << 16)
    with BulkClient(**by(way, house, eh.name), retry=QUICKLY) as client:
        house.faults.refuse(times=1, hub=eh.name)
        house.faults.refuse("com.microsoft:server-busy", times=1, hub=eh.name)
        house.faults.drop(on="deliver", times=1, hub=eh.name)
        house.faults.drop(on="connect", times=2)
        house.faults.detach(times=2, hub=eh.name)
        assert sequences(client.read_range("0", 0, 3_000, options)) == list(range(3_000))
    assert not house.faults.planned


def test_a_reader_that_is_not_missed_yet(house: EmbeddedHub, eh: Entity) -> None:
    """The hub counts the link that is gone; to one who had it, that passes."""
    reading = waiting(eh, retry=QUICKLY)
    house.faults.refuse("amqp:resource-limit-exceeded", times=2, hub=eh.name)
    house.drop_connections()
    eh.put(numbered(range(5, 20)))
    assert sequences(reading) == list(range(5, 20))
    assert not house.faults.planned


def test_what_was_under_way_comes_once(house: EmbeddedHub, eh: Entity) -> None:
    """The connection is lost while the reader waits, and while it is away events arrive."""
    reading = waiting(eh, retry=QUICKLY)
    house.drop_connections()
    eh.put(numbered(range(5, 20)))
    found = rows(reading)
    assert [row["sequenceNumber"] for row in found] == list(range(5, 20))
    assert [row["body"] for row in found] == [b"%d" % number for number in range(5, 20)]


def test_with_an_epoch_of_its_own(house: EmbeddedHub, eh: Entity) -> None:
    """Who comes back is not kept out by itself."""
    reading = waiting(eh, retry=QUICKLY, epoch=7)
    house.drop_connections()
    eh.put(numbered(range(5, 20)))
    assert sequences(reading) == list(range(5, 20))


def test_several_ranges_after_a_break(house: EmbeddedHub, eh: Entity) -> None:
    eh.put(numbered(range(100)))
    with BulkClient(eh.connection, retry=QUICKLY) as client:
        assert sequences(client.read_range("0", 0, 50)) == list(range(50))
        house.drop_connections()
        assert sequences(client.read_range("0", 50, 100)) == list(range(50, 100))
        assert sequences(client.read_range("0", 0, 100)) == list(range(100))


def test_a_hub_that_comes_back(tmp_path: Path) -> None:
    patience = RetryOptions(attempts=1000, first_s=0.01, most_s=0.2)
    with EmbeddedHub({"eh": 1}, data=tmp_path) as house:
        port, rules = house.port, list(house.namespace.rules)
        Entity.of(house, "eh").put(numbered(range(10)))
        client = BulkClient(house.connection_string("eh"), retry=patience)
        client.__enter__()
        reading = client.read_range("0", 0, 20, RangeOptions(batch_rows=10))
        assert next(reading).num_rows == 10
    found: list[int] = []
    going_on = threading.Thread(target=lambda: found.extend(sequences(reading)))
    going_on.start()
    with EmbeddedHub(data=tmp_path, port=port) as again:
        again._call(lambda: again.namespace.rules.extend(rules))
        Entity.of(again, "eh").put(numbered(range(10, 20)))
        going_on.join(WAIT_S)
        client.__exit__(None, None, None)
    assert found == list(range(10, 20))


# --- It does not ---------------------------------------------------------------------------------


def test_patience_has_an_end(house: EmbeddedHub, eh: Entity) -> None:
    eh.put(numbered(range(5)))
    pauses: list[float] = []
    retry = RetryOptions(attempts=3, first_s=1, most_s=3)
    options = RangeOptions(batch_rows=5)
    with BulkClient(
        eh.connection, retry=retry, options=ConnectionOptions(rng=Random(1), pause=pauses.append)
    ) as client:
        reading = client.read_range("0", 0, 20, options)
        next(reading)
        house.drop_connections()
        house.faults.drop(on="connect")
        with pytest.raises(ConnectionFailed):
            next(reading)
    assert len(pauses) == 3
    assert all(most / 2 <= found <= most for found, most in zip(pauses, (1, 2, 3), strict=True))


def test_without_patience(house: EmbeddedHub, eh: Entity) -> None:
    reading = waiting(eh, retry=ONCE)
    house.drop_connections()
    with pytest.raises(ConnectionFailed, match=r"the connection to .* broke"):
        next(reading)
    eh.put(numbered(range(5, 20)))
    assert sequences(read_range(eh.connection, "0", 5, 20)) == list(range(5, 20))


def test_the_first_connection_is_not_waited_for(house: EmbeddedHub, eh: Entity) -> None:
    house.faults.drop(on="connect", times=1)
    with pytest.raises(ConnectionFailed):
        list(read_range(eh.connection, "0", 0, 5, retry=QUICKLY))


def test_events_that_went_meanwhile(house: EmbeddedHub, eh: Entity) -> None:
    reading = waiting(eh, retry=QUICKLY)
    house.drop_connections()
    eh.put(numbered(range(5, 20)))
    eh.begin_at(9)
    with pytest.raises(EventsGone, match="no longer has event 5; the first available is 9"):
        next(reading)


def test_a_hub_that_was_created_anew(house: EmbeddedHub, eh: Entity) -> None:
    """Its events have the numbers that we want, and are others."""
    reading = waiting(eh, retry=QUICKLY)
    house.drop_connections()
    eventually(lambda: eh.readers == 0)
    recreate(house, eh)
    eh.put(numbered(range(30)))
    with pytest.raises(HubRecreated, match=rf"hub {eh.name} was deleted.*up to event 5;"):
        next(reading)


def test_a_hub_that_was_created_anew_and_is_empty(house: EmbeddedHub, eh: Entity) -> None:
    reading = waiting(eh, retry=QUICKLY, columns=("body",))
    house.drop_connections()
    eventually(lambda: eh.readers == 0)
    recreate(house, eh)
    with pytest.raises(HubRecreated):
        next(reading)


def recreate(house: EmbeddedHub, eh: Entity) -> None:
    """Delete a hub and create it again, later than its last event by the hub's own clock."""
    clock = house.namespace.clock
    last_ms = now_ms(clock)
    house.delete_hub(eh.name)
    eventually(lambda: now_ms(clock) > last_ms)
    house.create_hub(eh.name, 2)


def test_a_hub_that_was_deleted(house: EmbeddedHub, eh: Entity) -> None:
    reading = waiting(eh, retry=QUICKLY)
    house.drop_connections()
    eventually(lambda: eh.readers == 0)
    house.delete_hub(eh.name)
    with pytest.raises(HubNotFound):
        next(reading)


def test_whoever_is_evicted_stays_away(house: EmbeddedHub, eh: Entity) -> None:
    reading = waiting(eh, retry=QUICKLY, epoch=3)
    thief = waiting(eh, epoch=4)
    with pytest.raises(ReaderEvicted) as evicted:
        next(reading)
    assert evicted.value.epoch == 4
    thief.close()  # type: ignore[attr-defined]


def test_a_refusal_that_does_not_pass(house: EmbeddedHub, eh: Entity) -> None:
    eh.put(numbered(range(5)))
    house.faults.refuse("com.microsoft:argument-error", times=1, hub=eh.name)
    with pytest.raises(AmqpError, match="argument-error"):
        list(read_range(eh.connection, "0", 0, 5, retry=QUICKLY))
    assert sequences(read_range(eh.connection, "0", 0, 5)) == list(range(5))


def test_an_error_of_the_consumer_is_its_own(house: EmbeddedHub, eh: Entity) -> None:
    reading = waiting(eh, retry=QUICKLY)
    with pytest.raises(ConnectionFailed, match="mine"):
        reading.throw(ConnectionFailed("mine"))  # type: ignore[attr-defined]
    assert list(reading) == []
    eventually(lambda: eh.readers == 0)
