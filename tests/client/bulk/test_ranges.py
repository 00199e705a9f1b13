"""Ranges of a partition into Arrow, from an embedded hub: complete, or an exception."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pyarrow as pa
import pytest

from pumphouse.amqp.messages import Message, encode_message
from pumphouse.client.bulk import client as bulk
from pumphouse.client.bulk.client import (
    BulkClient,
    EventsGone,
    RangeOptions,
    RangeTimeout,
    read_range,
)
from pumphouse.client.bulk.streams import Stream, open_stream
from pumphouse.client.connection_string import parse_connection_string
from pumphouse.client.native.connection import ConnectionOptions
from pumphouse.client.routes import Route
from pumphouse.errors import (
    AmqpError,
    ConnectionFailed,
    OptionError,
)
from pumphouse.hub.embedded import EmbeddedHub
from tests.client.bulk.hub_entity import (
    NO_RETRIES,
    SHORT_DEADLINE,
    Entity,
    TamperedStream,
    connect_tampered,
    eventually,
    filled_entity,
    numbered_messages,
    rows,
    sequences,
)

# --- Whole ranges --------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_rows", [1, 7, 100, 8192])
@pytest.mark.parametrize(
    ("first", "last"), [(0, 300), (0, 1), (299, 300), (1, 299), (100, 200), (7, 14)]
)
def test_a_range_is_read(server: EmbeddedHub, first: int, last: int, batch_rows: int) -> None:
    eh = filled_entity(server)
    batches = list(read_range(eh.connection, "0", first, last, RangeOptions(batch_rows=batch_rows)))
    assert sequences(iter(batches)) == list(range(first, last))
    bodies = [row["body"] for row in rows(iter(batches))]
    assert bodies == [b"%d" % n for n in range(first, last)]
    assert max(batch.num_rows for batch in batches) <= batch_rows


def test_an_empty_range_opens_no_connection() -> None:
    def connect(route: Route, timeout_s: float) -> Stream:
        raise AssertionError

    nobody = "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=k;EntityPath=e"
    assert list(read_range(nobody, "0", 5, 5, connect=connect)) == []


def test_columns_are_chosen(server: EmbeddedHub) -> None:
    options = RangeOptions(columns=("sequenceNumber", "properties"))
    [batch] = read_range(filled_entity(server).connection, "0", 40, 60, options)
    assert batch.schema.names == ["sequenceNumber", "properties"]
    assert batch.to_pylist()[0] == {"sequenceNumber": 40, "properties": [("n", "40")]}


def test_many_events_are_read(eh: Entity) -> None:
    """More than a window of credit, so that credit is granted again."""
    message = encode_message(Message(data=(b"x" * 20,)))
    eh.put([message] * (bulk.CREDIT_WINDOW + 30_000))
    last = bulk.CREDIT_WINDOW + 29_000
    batches = read_range(eh.connection, "0", 500, last, RangeOptions(columns=("sequenceNumber",)))
    numbers = pa.concat_batches(list(batches))["sequenceNumber"].to_numpy()
    assert (numbers == range(500, last)).all()


def test_batches_respect_their_size(eh: Entity) -> None:
    eh.put(numbered_messages(range(40), 50_000))
    options = RangeOptions(batch_bytes=1 << 20)
    batches = list(read_range(eh.connection, "0", 0, 40, options))
    assert sum(batch.num_rows for batch in batches) == 40
    assert all(batch.nbytes <= 1 << 20 for batch in batches)
    assert len(batches) <= 4


@pytest.mark.parametrize("frame_bytes_max", [512, 65536, 1 << 20])
def test_large_events_in_many_frames_are_read(eh: Entity, frame_bytes_max: int) -> None:
    sizes = [0, 700_000, 10, 400, 1_048_000, 70_000, 5, 500, 600]
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)] * 2
    eh.put([encode_message(Message(data=(body,))) for body in bodies])
    with BulkClient(
        eh.connection, options=ConnectionOptions(frame_bytes_max=frame_bytes_max)
    ) as client:
        for _ in range(2):
            received = rows(client.read_range("0", 0, len(bodies)))
            assert [row["body"] for row in received] == bodies


@pytest.mark.parametrize("size", [1, 3, 100, 5000])
def test_a_range_is_read_in_any_pieces(server: EmbeddedHub, size: int) -> None:
    """A stream may return any number of bytes, as TLS and WebSocket do."""
    connect = connect_tampered(lambda stream, buffer: stream.recv_into(buffer[:size]))
    last = 300 if size > 10 else 30
    batches = read_range(filled_entity(server).connection, "0", 0, last, connect=connect)
    assert sequences(batches) == list(range(last))


@pytest.mark.parametrize(
    ("sent_bytes", "why"),
    [
        (b"\x00\x00\x00\x03\x02\x00\x00\x00", "frame of 3 bytes"),
        (b"\x00\x00\x00\x08\x02\x05\x00\x00", "frame of type 5"),
        (b"\x00\x00\x00\x09\x02\x00\x00\x00\xff", "sent invalid AMQP"),
    ],
)
def test_invalid_bytes_of_a_hub_are_reported(eh: Entity, sent_bytes: bytes, why: str) -> None:
    mad = False
    words = bytearray(sent_bytes * 100)

    def receive(stream: Stream, buffer: memoryview) -> int:
        if not mad:
            return stream.recv_into(buffer)
        spoken = bytes(words[: len(buffer)])
        buffer[: len(spoken)] = spoken
        del words[: len(spoken)]
        return len(spoken)

    eh.put(numbered_messages(range(5)))
    options = RangeOptions(batch_rows=5)
    batches = read_range(
        eh.connection, "0", 0, 20, options, connect=connect_tampered(receive), retry=NO_RETRIES
    )
    assert next(batches).num_rows == 5
    mad = True
    with pytest.raises(ConnectionFailed, match=why):
        next(batches)


def test_several_ranges_over_one_connection(server: EmbeddedHub) -> None:
    eh = filled_entity(server)
    with BulkClient(eh.connection) as client:
        assert repr(client).endswith(f"{eh.name} open>")
        for first in range(0, 300, 50):
            assert sequences(client.read_range("0", first, first + 50)) == list(
                range(first, first + 50)
            )
        assert list(client.read_range("0", 5, 5)) == []
        assert len(server.server.connections) == 1
    eventually(lambda: not server.server.connections)
    assert repr(client).endswith(f"{eh.name} closed>")


def test_the_link_is_detached_after_a_range(server: EmbeddedHub) -> None:
    eh = filled_entity(server)
    with BulkClient(eh.connection) as client:
        for _ in range(7):  # more than the limit of readers
            assert len(sequences(client.read_range("0", 0, 10))) == 10
            assert eh.readers == 0


def test_a_small_range_takes_one_round_trip(server: EmbeddedHub) -> None:
    """The credit is sent together with the attach. With an epoch, no response to the detach is
    awaited."""
    eh, sent = filled_entity(server), list[bytes]()

    class RecordingStream(TamperedStream):
        def sendall(self, data: bytes, /) -> None:
            sent.append(data)
            super().sendall(data)

    def connect(route: Route, timeout_s: float) -> Stream:
        return RecordingStream(open_stream(route, timeout_s), lambda s, room: s.recv_into(room))

    with BulkClient(eh.connection, connect=connect) as client:
        for first in (0, 10):
            sent.clear()
            options = RangeOptions(epoch=first)
            assert sequences(client.read_range("0", first, first + 10, options)) == list(
                range(first, first + 10)
            )
            assert len(sent) == 2  # the request, and the detach


def test_several_ranges_are_requested_before_the_first_is_read(server: EmbeddedHub) -> None:
    eh = filled_entity(server)
    with BulkClient(eh.connection) as one, BulkClient(eh.connection) as other:
        for _ in range(3):
            for client, first in ((one, 0), (other, 10)):
                client.request_range("0", first, first + 10)
            eventually(lambda: eh.readers == 2)
            assert sequences(one.read_requested()) == list(range(10))
            assert sequences(other.read_requested()) == list(range(10, 20))
            assert eh.readers == 0


def test_a_range_must_be_requested_before_it_is_read(server: EmbeddedHub) -> None:
    eh = filled_entity(server)
    client = BulkClient(eh.connection)
    with pytest.raises(OptionError, match="cannot read now"):
        client.request_range("0", 0, 10)
    with client, pytest.raises(OptionError, match="cannot read now"):
        client.read_requested()


def test_an_empty_range_that_was_requested_leaves_no_link(server: EmbeddedHub) -> None:
    eh = filled_entity(server)
    with BulkClient(eh.connection) as client:
        client.request_range("0", 5, 5)
        assert list(client.read_requested()) == []
        assert sequences(client.read_range("0", 20, 25)) == list(range(20, 25))
        assert eh.readers == 0


def test_a_range_is_read_though_its_connection_broke_after_the_request(
    server: EmbeddedHub,
) -> None:
    eh = filled_entity(server)
    with BulkClient(eh.connection) as client:
        client.request_range("0", 0, 10)
        eventually(lambda: eh.readers == 1)
        stream: Any = client.connection.stream
        stream.shutdown(socket.SHUT_RDWR)
        assert sequences(client.read_requested()) == list(range(10))


def test_the_layouts_of_events_are_kept_for_later_ranges(server: EmbeddedHub) -> None:
    eh = filled_entity(server)
    for epoch in (None, 1):  # with an epoch the client does not wait for the detach
        with BulkClient(eh.connection) as client:
            for first in range(0, 100, 10):
                options = RangeOptions(epoch=epoch)
                assert len(sequences(client.read_range("0", first, first + 10, options))) == 10
            readers = client.connection._columns.values()
            assert len(readers) <= 2
            assert all(len(reader.layouts) == 1 for reader in readers)


def test_the_hub_may_be_named_separately(server: EmbeddedHub) -> None:
    eh = filled_entity(server)
    namespace = server.connection_string()
    assert sequences(read_range(namespace, "0", 0, 3, hub=eh.name)) == [0, 1, 2]
    assert sequences(read_range(parse_connection_string(namespace), "0", 0, 3, hub=eh.name)) == [
        0,
        1,
        2,
    ]
    with pytest.raises(OptionError, match="no hub is named"):
        read_range(namespace, "0", 0, 3)


# --- Missing events ------------------------------------------------------------------------------


def test_a_future_range_is_waited_for(eh: Entity) -> None:
    eh.put(numbered_messages(range(10)))
    later = threading.Timer(0.3, eh.put, [numbered_messages(range(10, 20))])
    later.start()
    assert sequences(read_range(eh.connection, "0", 0, 20)) == list(range(20))
    later.join()


def test_a_missing_range_raises_range_timeout(eh: Entity) -> None:
    eh.put(numbered_messages(range(10)))
    began = time.monotonic()
    with pytest.raises(RangeTimeout, match=r"event 10 of partition 0 did not arrive within 0\.3 s"):
        list(read_range(eh.connection, "0", 5, 20, SHORT_DEADLINE))
    assert 0.3 <= time.monotonic() - began < 5


def test_events_before_the_timeout_are_returned(eh: Entity) -> None:
    eh.put(numbered_messages(range(10)))
    options = RangeOptions(deadline_s=0.3, batch_rows=5)
    batches = read_range(eh.connection, "0", 0, 20, options)
    assert next(batches).num_rows == 5
    assert next(batches).num_rows == 5
    with pytest.raises(RangeTimeout, match="event 10 of"):
        next(batches)
    assert list(batches) == []


def test_each_event_restarts_the_deadline(eh: Entity) -> None:
    """The deadline limits the wait for the next event, not for the range."""

    def trickle() -> None:
        for number in range(5):
            time.sleep(0.4)
            eh.put(numbered_messages(range(number, number + 1)))

    eh.put(numbered_messages(range(1)))
    sending = threading.Thread(target=trickle)
    sending.start()
    assert len(sequences(read_range(eh.connection, "0", 0, 6, RangeOptions(deadline_s=1.5)))) == 6
    sending.join()


def test_a_start_beyond_the_end_is_refused(eh: Entity) -> None:
    eh.put(numbered_messages(range(10)))
    with pytest.raises(AmqpError, match="The last sequence number in the system is '9'") as failed:
        list(read_range(eh.connection, "0", 11, 20))
    assert failed.value.condition == "com.microsoft:argument-error"


def test_expired_events_raise_events_gone(eh: Entity) -> None:
    eh.put(numbered_messages(range(20)))
    eh.expire_before(7)
    with pytest.raises(EventsGone, match="no longer has event 5; the first available is 7") as gone:
        list(read_range(eh.connection, "0", 5, 10))
    assert (gone.value.partition, gone.value.wanted, gone.value.available) == ("0", 5, 7)
    assert sequences(read_range(eh.connection, "0", gone.value.available, 10)) == [7, 8, 9]
    # The whole range has expired: later events arrive.
    with pytest.raises(EventsGone, match="no longer has event 3; the first available is 7"):
        list(read_range(eh.connection, "0", 3, 5))


def test_a_fully_expired_range_raises_events_gone(eh: Entity) -> None:
    """The properties of the partition are checked well before the deadline."""
    eh.put(numbered_messages(range(20)))
    eh.expire_before(20)
    began = time.monotonic()
    with pytest.raises(EventsGone, match="no longer has event 5; the first available is 20"):
        list(read_range(eh.connection, "0", 5, 10, RangeOptions(deadline_s=30)))
    assert time.monotonic() - began < 10


def test_events_that_expire_during_the_read_raise_events_gone(eh: Entity) -> None:
    eh.put(numbered_messages(range(300), 200_000))
    options = RangeOptions(batch_rows=5, batch_bytes=1 << 20)
    batches = read_range(eh.connection, "0", 0, 300, options)
    assert next(batches).num_rows == 5
    eh.expire_before(290)
    with pytest.raises(EventsGone, match="the first available is 290"):
        list(batches)
