"""A range whose connection breaks: it resumes after the last row, or raises a clear error."""

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
from tests.client.bulk.hub_entity import (
    FAST_RETRIES,
    NO_RETRIES,
    WAIT_S,
    Entity,
    client_arguments,
    eventually,
    numbered_messages,
    rows,
    sequences,
    start_waiting_range,
)
from tests.client.native.transports import TRANSPORTS


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedHub]:
    with EmbeddedHub(tls_port=0, ws_port=0) as hub:
        yield hub


@pytest.fixture(autouse=True)
def _no_faults(server: EmbeddedHub) -> Iterator[None]:
    yield
    server.faults.clear()


def read_all(server: EmbeddedHub, eh: Entity, transport: str, last: int) -> list[int]:
    """Read a range in small batches, over a connection with small frames."""
    options = RangeOptions(batch_rows=97, batch_bytes=1 << 16, columns=("sequenceNumber",))
    arguments = client_arguments(transport, server, eh.name)
    with BulkClient(
        **arguments,
        retry=FAST_RETRIES,
        options=ConnectionOptions(rng=Random(3), frame_bytes_max=4096),
    ) as client:
        return sequences(client.read_range("0", 0, last, options))


# --- Retried failures ----------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_range_survives_dropped_connections(
    server: EmbeddedHub, eh: Entity, transport: str
) -> None:
    eh.put(numbered_messages(range(3_000), 1_000))
    before = server.faults.struck["drop"]
    server.faults.drop(on="deliver", rate=0.5, times=12, hub=eh.name)
    assert read_all(server, eh, transport, 3_000) == list(range(3_000))
    assert server.faults.struck["drop"] > before


@pytest.mark.parametrize("transport", ["tcp", "wss"])
def test_a_range_survives_faults_of_the_hub(
    server: EmbeddedHub, eh: Entity, transport: str
) -> None:
    """Refused, busy, detached, dropped, and closed before the first frame."""
    eh.put(numbered_messages(range(3_000), 1_000))
    options = RangeOptions(batch_rows=97, batch_bytes=1 << 16)
    with BulkClient(**client_arguments(transport, server, eh.name), retry=FAST_RETRIES) as client:
        server.faults.refuse(times=1, hub=eh.name)
        server.faults.refuse("com.microsoft:server-busy", times=1, hub=eh.name)
        server.faults.drop(on="deliver", times=1, hub=eh.name)
        server.faults.drop(on="connect", times=2)
        server.faults.detach(times=2, hub=eh.name)
        assert sequences(client.read_range("0", 0, 3_000, options)) == list(range(3_000))
    assert not server.faults.planned


def test_a_range_survives_a_reader_limit_of_its_old_link(server: EmbeddedHub, eh: Entity) -> None:
    """The hub still counts the broken link; for a resumed range that is transient."""
    reading = start_waiting_range(eh, retry=FAST_RETRIES)
    server.faults.refuse("amqp:resource-limit-exceeded", times=2, hub=eh.name)
    server.drop_connections()
    eh.put(numbered_messages(range(5, 20)))
    assert sequences(reading) == list(range(5, 20))
    assert not server.faults.planned


def test_events_in_flight_are_returned_once(server: EmbeddedHub, eh: Entity) -> None:
    """Events arrive while the connection is broken."""
    reading = start_waiting_range(eh, retry=FAST_RETRIES)
    server.drop_connections()
    eh.put(numbered_messages(range(5, 20)))
    received = rows(reading)
    assert [row["sequenceNumber"] for row in received] == list(range(5, 20))
    assert [row["body"] for row in received] == [b"%d" % number for number in range(5, 20)]


def test_a_range_with_an_epoch_survives_a_reconnect(server: EmbeddedHub, eh: Entity) -> None:
    """The reader is not excluded by its own old link."""
    reading = start_waiting_range(eh, retry=FAST_RETRIES, epoch=7)
    server.drop_connections()
    eh.put(numbered_messages(range(5, 20)))
    assert sequences(reading) == list(range(5, 20))


def test_several_ranges_after_a_reconnect(server: EmbeddedHub, eh: Entity) -> None:
    eh.put(numbered_messages(range(100)))
    with BulkClient(eh.connection, retry=FAST_RETRIES) as client:
        assert sequences(client.read_range("0", 0, 50)) == list(range(50))
        server.drop_connections()
        assert sequences(client.read_range("0", 50, 100)) == list(range(50, 100))
        assert sequences(client.read_range("0", 0, 100)) == list(range(100))


def test_a_range_waits_for_a_restarted_hub(tmp_path: Path) -> None:
    patience = RetryOptions(attempts=1000, first_s=0.01, most_s=0.2)
    with EmbeddedHub({"eh": 1}, data=tmp_path) as server:
        port, rules = server.port, list(server.namespace.rules)
        Entity.of(server, "eh").put(numbered_messages(range(10)))
        client = BulkClient(server.connection_string("eh"), retry=patience)
        client.__enter__()
        reading = client.read_range("0", 0, 20, RangeOptions(batch_rows=10))
        assert next(reading).num_rows == 10
    received: list[int] = []
    going_on = threading.Thread(target=lambda: received.extend(sequences(reading)))
    going_on.start()
    with EmbeddedHub(data=tmp_path, port=port) as again:
        again._call(lambda: again.namespace.rules.extend(rules))
        Entity.of(again, "eh").put(numbered_messages(range(10, 20)))
        going_on.join(WAIT_S)
        client.__exit__(None, None, None)
    assert received == list(range(10, 20))


# --- Raised failures -----------------------------------------------------------------------------


def test_retries_are_exhausted(server: EmbeddedHub, eh: Entity) -> None:
    eh.put(numbered_messages(range(5)))
    pauses: list[float] = []
    retry = RetryOptions(attempts=3, first_s=1, most_s=3)
    options = RangeOptions(batch_rows=5)
    with BulkClient(
        eh.connection, retry=retry, options=ConnectionOptions(rng=Random(1), pause=pauses.append)
    ) as client:
        reading = client.read_range("0", 0, 20, options)
        next(reading)
        server.drop_connections()
        server.faults.drop(on="connect")
        with pytest.raises(ConnectionFailed):
            next(reading)
    assert len(pauses) == 3
    assert all(most / 2 <= pause_s <= most for pause_s, most in zip(pauses, (1, 2, 3), strict=True))


def test_without_retries_a_break_is_raised(server: EmbeddedHub, eh: Entity) -> None:
    reading = start_waiting_range(eh, retry=NO_RETRIES)
    server.drop_connections()
    with pytest.raises(ConnectionFailed, match=r"the connection to .* broke"):
        next(reading)
    eh.put(numbered_messages(range(5, 20)))
    assert sequences(read_range(eh.connection, "0", 5, 20)) == list(range(5, 20))


def test_the_first_connection_is_not_retried(server: EmbeddedHub, eh: Entity) -> None:
    server.faults.drop(on="connect", times=1)
    with pytest.raises(ConnectionFailed):
        list(read_range(eh.connection, "0", 0, 5, retry=FAST_RETRIES))


def test_events_that_expired_during_a_break_are_reported(server: EmbeddedHub, eh: Entity) -> None:
    reading = start_waiting_range(eh, retry=FAST_RETRIES)
    server.drop_connections()
    eh.put(numbered_messages(range(5, 20)))
    eh.expire_before(9)
    with pytest.raises(EventsGone, match="no longer has event 5; the first available is 9"):
        next(reading)


def test_a_recreated_hub_is_reported(server: EmbeddedHub, eh: Entity) -> None:
    """Its events have the expected sequence numbers, but are different ones."""
    reading = start_waiting_range(eh, retry=FAST_RETRIES)
    server.drop_connections()
    eventually(lambda: eh.readers == 0)
    recreate(server, eh)
    eh.put(numbered_messages(range(30)))
    with pytest.raises(HubRecreated, match=rf"hub {eh.name} was deleted.*up to event 5;"):
        next(reading)


def test_a_recreated_empty_hub_is_reported(server: EmbeddedHub, eh: Entity) -> None:
    reading = start_waiting_range(eh, retry=FAST_RETRIES, columns=("body",))
    server.drop_connections()
    eventually(lambda: eh.readers == 0)
    recreate(server, eh)
    with pytest.raises(HubRecreated):
        next(reading)


def recreate(server: EmbeddedHub, eh: Entity) -> None:
    """Delete a hub and create it again, after its last event by the clock of the hub."""
    clock = server.namespace.clock
    last_ms = now_ms(clock)
    server.delete_hub(eh.name)
    eventually(lambda: now_ms(clock) > last_ms)
    server.create_hub(eh.name, 2)


def test_a_deleted_hub_is_reported(server: EmbeddedHub, eh: Entity) -> None:
    reading = start_waiting_range(eh, retry=FAST_RETRIES)
    server.drop_connections()
    eventually(lambda: eh.readers == 0)
    server.delete_hub(eh.name)
    with pytest.raises(HubNotFound):
        next(reading)


def test_an_eviction_is_not_retried(server: EmbeddedHub, eh: Entity) -> None:
    reading = start_waiting_range(eh, retry=FAST_RETRIES, epoch=3)
    thief = start_waiting_range(eh, epoch=4)
    with pytest.raises(ReaderEvicted) as evicted:
        next(reading)
    assert evicted.value.epoch == 4
    thief.close()  # type: ignore[attr-defined]


def test_a_permanent_refusal_is_raised(server: EmbeddedHub, eh: Entity) -> None:
    eh.put(numbered_messages(range(5)))
    server.faults.refuse("com.microsoft:argument-error", times=1, hub=eh.name)
    with pytest.raises(AmqpError, match="argument-error"):
        list(read_range(eh.connection, "0", 0, 5, retry=FAST_RETRIES))
    assert sequences(read_range(eh.connection, "0", 0, 5)) == list(range(5))


def test_an_exception_of_the_consumer_is_not_retried(server: EmbeddedHub, eh: Entity) -> None:
    reading = start_waiting_range(eh, retry=FAST_RETRIES)
    with pytest.raises(ConnectionFailed, match="mine"):
        reading.throw(ConnectionFailed("mine"))  # type: ignore[attr-defined]
    assert list(reading) == []
    eventually(lambda: eh.readers == 0)
