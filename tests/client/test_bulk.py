"""Ranges of a partition into Arrow, from a real hub: whole, or not at all."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, pairwise
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from azure.eventhub import EventData, EventHubConsumerClient

from pumphouse.amqp.messages import SINGLE_FORMAT, Message, Properties, encode_message
from pumphouse.amqp.types import (
    Byte,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from pumphouse.client import bulk
from pumphouse.client.blocking import Connect, Stream, connect_plain
from pumphouse.client.bulk import (
    BATCH_ROWS_MAX,
    BulkClient,
    EventsGone,
    RangeOptions,
    RangeTimeout,
    read_range,
)
from pumphouse.client.connection_string import ConnectionString, parse
from pumphouse.client.sas import sign
from pumphouse.client.texts import text_of
from pumphouse.client.tokens import RENEW_S
from pumphouse.client.wire import WireOptions
from pumphouse.clock import MovableClock, SystemClock, now_ms
from pumphouse.errors import (
    AmqpError,
    AuthError,
    ConnectionFailed,
    HubNotFound,
    OptionError,
    PumphouseError,
)
from pumphouse.hub.annotations import parse_payload
from pumphouse.hub.auth import Claim
from pumphouse.hub.conversation import ServerOptions
from pumphouse.hub.embedded import EmbeddedHub

SOON = RangeOptions(deadline_s=0.3)
WAIT_S = 10.0
names = count(1)


class Entity:
    """One event hub with two partitions, and a way to put events into it."""

    def __init__(self, house: EmbeddedHub) -> None:
        self.house = house
        self.name = f"bulk-{next(names)}"
        house.create_hub(self.name, 2)
        self.connection = house.connection_string(self.name)

    def put(self, payloads: list[bytes], partition: int = 0) -> None:
        """Publish messages, one by one."""

        def publish() -> None:
            place = self.house.namespace.hub(self.name).partitions[partition]
            for payload in payloads:
                batch = parse_payload(payload, SINGLE_FORMAT)
                place.log.publish(batch, now_ms(SystemClock()), None, lambda failed: None)
            place.wake()

        self.house._call(publish)

    def begin_at(self, sequence: int) -> None:
        """Let retention pass everything before this event."""

        def move() -> None:
            log: Any = self.house.namespace.hub(self.name).partitions[0].log
            log.begin = sequence

        self.house._call(move)

    @property
    def readers(self) -> int:
        group = self.house.namespace.hub(self.name).partitions[0].readers.get("$default", [])
        return len(group)


@pytest.fixture(scope="module")
def house() -> Iterator[EmbeddedHub]:
    with EmbeddedHub() as hub:
        yield hub


@pytest.fixture
def eh(house: EmbeddedHub) -> Entity:
    return Entity(house)


def numbered(numbers: range, size: int = 0) -> list[bytes]:
    return [
        encode_message(Message(application={"n": n}, data=(b"%d" % n + bytes(size),)))
        for n in numbers
    ]


def rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def sequences(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [row["sequenceNumber"] for row in rows(batches)]


def eventually(condition: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


# --- Whole ranges --------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_rows", [1, 7, 100, 8192])
@pytest.mark.parametrize(
    ("first", "last"), [(0, 300), (0, 1), (299, 300), (1, 299), (100, 200), (7, 14)]
)
def test_a_range(house: EmbeddedHub, first: int, last: int, batch_rows: int) -> None:
    eh = filled(house)
    batches = list(read_range(eh.connection, "0", first, last, RangeOptions(batch_rows=batch_rows)))
    assert sequences(iter(batches)) == list(range(first, last))
    found = [row["body"] for row in rows(iter(batches))]
    assert found == [b"%d" % n for n in range(first, last)]
    assert max(batch.num_rows for batch in batches) <= batch_rows


def filled(house: EmbeddedHub) -> Entity:
    """An event hub with 300 events, made once."""
    found: Entity | None = getattr(house, "_filled", None)
    if found is None:
        found = Entity(house)
        found.put(numbered(range(300)))
        house._filled = found  # type: ignore[attr-defined]
    return found


def test_an_empty_range_asks_nobody() -> None:
    def connect(connection: ConnectionString, timeout_s: float) -> Stream:
        raise AssertionError

    nobody = "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=k;EntityPath=e"
    assert list(read_range(nobody, "0", 5, 5, connect=connect)) == []


def test_columns_are_chosen(house: EmbeddedHub) -> None:
    options = RangeOptions(columns=("sequenceNumber", "properties"))
    [batch] = read_range(filled(house).connection, "0", 40, 60, options)
    assert batch.schema.names == ["sequenceNumber", "properties"]
    assert batch.to_pylist()[0] == {"sequenceNumber": 40, "properties": [("n", "40")]}


def test_many_events(eh: Entity) -> None:
    """More than a window of credit, so that it is topped up on the way."""
    message = encode_message(Message(data=(b"x" * 20,)))
    eh.put([message] * (bulk.CREDIT_WINDOW + 30_000))
    last = bulk.CREDIT_WINDOW + 29_000
    batches = read_range(eh.connection, "0", 500, last, RangeOptions(columns=("sequenceNumber",)))
    found = pa.concat_batches(list(batches))["sequenceNumber"].to_numpy()
    assert (found == range(500, last)).all()


def test_batches_end_at_their_size(eh: Entity) -> None:
    eh.put(numbered(range(40), 50_000))
    options = RangeOptions(batch_bytes=1 << 20)
    batches = list(read_range(eh.connection, "0", 0, 40, options))
    assert sum(batch.num_rows for batch in batches) == 40
    assert all(batch.nbytes <= 1 << 20 for batch in batches)
    assert len(batches) <= 4


@pytest.mark.parametrize("frame_bytes_max", [512, 65536, 1 << 20])
def test_large_events_in_many_frames(eh: Entity, frame_bytes_max: int) -> None:
    sizes = [0, 700_000, 10, 400, 1_048_000, 70_000, 5, 500, 600]
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)] * 2
    eh.put([encode_message(Message(data=(body,))) for body in bodies])
    with BulkClient(eh.connection, frame_bytes_max=frame_bytes_max) as client:
        for _ in range(2):
            found = rows(client.read_range("0", 0, len(bodies)))
            assert [row["body"] for row in found] == bodies


class Tampered:
    """A stream, with a hand on what it receives."""

    def __init__(self, stream: Stream, receive: Callable[[Stream, memoryview], int]) -> None:
        self.stream = stream
        self.receive = receive

    def settimeout(self, seconds: float, /) -> None:
        self.stream.settimeout(seconds)

    def recv_into(self, buffer: memoryview, /) -> int:
        return self.receive(self.stream, buffer)

    def sendall(self, data: bytes, /) -> None:
        self.stream.sendall(data)

    def close(self) -> None:
        self.stream.close()


def tampering(receive: Callable[[Stream, memoryview], int]) -> Connect:
    return lambda connection, timeout_s: Tampered(connect_plain(connection, timeout_s), receive)


@pytest.mark.parametrize("size", [1, 3, 100, 5000])
def test_however_the_bytes_arrive(house: EmbeddedHub, size: int) -> None:
    """A stream may hand over as little as it likes: TLS and WebSocket do."""
    connect = tampering(lambda stream, buffer: stream.recv_into(buffer[:size]))
    last = 300 if size > 10 else 30
    found = read_range(filled(house).connection, "0", 0, last, connect=connect)
    assert sequences(found) == list(range(last))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"\x00\x00\x00\x03\x02\x00\x00\x00", "frame of 3 bytes"),
        (b"\x00\x00\x00\x08\x02\x05\x00\x00", "frame of type 5"),
        (b"\x00\x00\x00\x09\x02\x00\x00\x00\xff", "is no event hub we understand"),
    ],
)
def test_a_hub_that_goes_mad(eh: Entity, said: bytes, why: str) -> None:
    mad = False
    words = bytearray(said * 100)

    def receive(stream: Stream, buffer: memoryview) -> int:
        if not mad:
            return stream.recv_into(buffer)
        spoken = bytes(words[: len(buffer)])
        buffer[: len(spoken)] = spoken
        del words[: len(spoken)]
        return len(spoken)

    eh.put(numbered(range(5)))
    options = RangeOptions(batch_rows=5)
    batches = read_range(eh.connection, "0", 0, 20, options, connect=tampering(receive))
    assert next(batches).num_rows == 5
    mad = True
    with pytest.raises(ConnectionFailed, match=why):
        next(batches)


def test_over_tls() -> None:
    with EmbeddedHub(tls_port=0) as house:
        eh = Entity(house)
        eh.put(numbered(range(500), 500))
        trusted = ssl.create_default_context(cafile=str(house.ca_file))

        def connect(connection: ConnectionString, timeout_s: float) -> Stream:
            plain = socket.create_connection((connection.host, house.need_tls_port()), timeout_s)
            return trusted.wrap_socket(plain, server_hostname="localhost")

        found = read_range(eh.connection, "0", 0, 500, connect=connect)
        assert sequences(found) == list(range(500))


def test_several_ranges_over_one_connection(house: EmbeddedHub) -> None:
    eh = filled(house)
    with BulkClient(eh.connection) as client:
        assert repr(client).endswith(f"{eh.name} open>")
        for first in range(0, 300, 50):
            assert sequences(client.read_range("0", first, first + 50)) == list(
                range(first, first + 50)
            )
        assert list(client.read_range("0", 5, 5)) == []
        assert len(house.server.conversations) == 1
    eventually(lambda: not house.server.conversations)
    assert repr(client).endswith(f"{eh.name} closed>")


def test_the_hub_has_let_go_when_the_range_has_ended(house: EmbeddedHub) -> None:
    eh = filled(house)
    with BulkClient(eh.connection) as client:
        for _ in range(7):  # more than may read at once
            assert len(sequences(client.read_range("0", 0, 10))) == 10
            assert eh.readers == 0


def test_a_name_given_apart(house: EmbeddedHub) -> None:
    eh = filled(house)
    namespace = house.connection_string()
    assert sequences(read_range(namespace, "0", 0, 3, hub=eh.name)) == [0, 1, 2]
    assert sequences(read_range(parse(namespace), "0", 0, 3, hub=eh.name)) == [0, 1, 2]
    with pytest.raises(OptionError, match="no hub is named"):
        read_range(namespace, "0", 0, 3)


# --- What is not there ---------------------------------------------------------------------------


def test_a_range_that_is_not_there_yet_is_waited_for(eh: Entity) -> None:
    eh.put(numbered(range(10)))
    later = threading.Timer(0.3, eh.put, [numbered(range(10, 20))])
    later.start()
    assert sequences(read_range(eh.connection, "0", 0, 20)) == list(range(20))
    later.join()


def test_a_range_that_does_not_come(eh: Entity) -> None:
    eh.put(numbered(range(10)))
    began = time.monotonic()
    with pytest.raises(RangeTimeout, match=r"event 10 of partition 0 did not come within 0\.3 s"):
        list(read_range(eh.connection, "0", 5, 20, SOON))
    assert 0.3 <= time.monotonic() - began < 5


def test_what_came_before_the_time_is_handed_over(eh: Entity) -> None:
    eh.put(numbered(range(10)))
    options = RangeOptions(deadline_s=0.3, batch_rows=5)
    batches = read_range(eh.connection, "0", 0, 20, options)
    assert next(batches).num_rows == 5
    assert next(batches).num_rows == 5
    with pytest.raises(RangeTimeout, match="event 10 of"):
        next(batches)
    assert list(batches) == []


def test_each_event_gives_new_time(eh: Entity) -> None:
    """The deadline is for the next event, not for the range."""

    def trickle() -> None:
        for number in range(5):
            time.sleep(0.4)
            eh.put(numbered(range(number, number + 1)))

    eh.put(numbered(range(1)))
    sending = threading.Thread(target=trickle)
    sending.start()
    assert len(sequences(read_range(eh.connection, "0", 0, 6, RangeOptions(deadline_s=1.5)))) == 6
    sending.join()


def test_a_start_beyond_the_end_is_refused(eh: Entity) -> None:
    eh.put(numbered(range(10)))
    with pytest.raises(AmqpError, match="The last sequence number in the system is '9'") as failed:
        list(read_range(eh.connection, "0", 11, 20))
    assert failed.value.condition == "com.microsoft:argument-error"


def test_events_that_are_gone(eh: Entity) -> None:
    eh.put(numbered(range(20)))
    eh.begin_at(7)
    with pytest.raises(EventsGone, match="no longer has event 5; the first available is 7") as gone:
        list(read_range(eh.connection, "0", 5, 10))
    assert (gone.value.partition, gone.value.wanted, gone.value.available) == ("0", 5, 7)
    assert sequences(read_range(eh.connection, "0", gone.value.available, 10)) == [7, 8, 9]
    # All of the range is gone: what comes is beyond it.
    with pytest.raises(EventsGone, match="no longer has event 3; the first available is 7"):
        list(read_range(eh.connection, "0", 3, 5))


def test_all_events_are_gone(eh: Entity) -> None:
    """Nothing comes, so the hub is asked, well before the deadline."""
    eh.put(numbered(range(20)))
    eh.begin_at(20)
    began = time.monotonic()
    with pytest.raises(EventsGone, match="no longer has event 5; the first available is 20"):
        list(read_range(eh.connection, "0", 5, 10, RangeOptions(deadline_s=30)))
    assert time.monotonic() - began < 10


def test_events_that_go_while_they_are_read(eh: Entity) -> None:
    eh.put(numbered(range(300), 200_000))
    options = RangeOptions(batch_rows=5, batch_bytes=1 << 20)
    batches = read_range(eh.connection, "0", 0, 300, options)
    assert next(batches).num_rows == 5
    eh.begin_at(290)
    with pytest.raises(EventsGone, match="the first available is 290"):
        list(batches)


# --- Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "last"), [(-1, 5), (5, 4), (-2, -1)])
def test_ranges_that_are_none(house: EmbeddedHub, first: int, last: int) -> None:
    with pytest.raises(OptionError, match=f"it goes from {first} to {last}"):
        read_range(filled(house).connection, "0", first, last)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"batch_rows": 0}, f"batch_rows must be from 1 to {BATCH_ROWS_MAX} \\(got 0\\)"),
        ({"batch_rows": BATCH_ROWS_MAX + 1}, "batch_rows"),
        ({"batch_bytes": 10}, "batch_bytes must be from 65536"),
        ({"batch_bytes": 1 << 40}, "batch_bytes"),
        ({"deadline_s": 0.0}, "deadline_s must be above zero"),
        ({"columns": ("mine",)}, "'mine' is none of them"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        RangeOptions(**options)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    connection = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey=secret;"
    connection += "EntityPath=e;UseDevelopmentEmulator=true"
    with pytest.raises(ConnectionFailed, match=f"no hub answers at 127.0.0.1:{port}") as failed:
        list(read_range(connection, "0", 0, 1))
    assert "secret" not in str(failed.value)


def test_tls_needs_a_stream_that_speaks_it() -> None:
    connection = "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=secret;EntityPath=e"
    with pytest.raises(OptionError, match="needs TLS: pass `connect=`") as failed:
        list(read_range(connection, "0", 0, 1))
    assert "secret" not in str(failed.value)


def test_the_wrong_key(house: EmbeddedHub) -> None:
    connection = filled(house).connection
    key = connection.partition("SharedAccessKey=")[2].partition(";")[0]
    wrong = connection.replace(key, "bm90IHRoZSBrZXk=")
    with pytest.raises(AuthError) as failed:
        list(read_range(wrong, "0", 0, 1))
    assert "bm90IHRoZSBrZXk=" not in str(failed.value)


def test_a_key_that_may_only_send(house: EmbeddedHub) -> None:
    eh = filled(house)
    house.create_rule("bulk-sender", [Claim.SEND])
    with pytest.raises(AuthError, match="Listen"):
        list(read_range(house.connection_string(eh.name, "bulk-sender"), "0", 0, 1))


@pytest.mark.parametrize(
    ("partition", "options", "kind"),
    [
        ("0", RangeOptions(group="nobody"), HubNotFound),
        ("7", RangeOptions(), AmqpError),
        ("0", RangeOptions(epoch=-1), AmqpError),
    ],
)
def test_what_the_hub_does_not_have(
    house: EmbeddedHub, partition: str, options: RangeOptions, kind: type[PumphouseError]
) -> None:
    with pytest.raises(kind):
        list(read_range(filled(house).connection, partition, 0, 1, options))


def test_a_hub_that_does_not_exist(house: EmbeddedHub) -> None:
    with pytest.raises(PumphouseError):
        list(read_range(house.connection_string(), "0", 0, 1, hub="nothing"))


# --- Epochs and other readers --------------------------------------------------------------------


def waiting(eh: Entity, **options: Any) -> Iterator[pa.RecordBatch]:
    """A reader that has had its first batch and waits for events that are not there."""
    eh.put(numbered(range(5)))
    chosen = RangeOptions(batch_rows=5, deadline_s=30, **options)
    batches = read_range(eh.connection, "0", 0, 20, chosen)
    assert next(batches).num_rows == 5
    return batches


def test_a_lower_epoch_is_refused(eh: Entity) -> None:
    reading = waiting(eh, epoch=7, receiver_name="first")
    with pytest.raises(AmqpError, match="Receiver 'first' with a higher epoch '7'") as refused:
        list(read_range(eh.connection, "0", 0, 5, RangeOptions(epoch=6, receiver_name="second")))
    assert refused.value.condition == "amqp:link:stolen"
    with pytest.raises(AmqpError, match="non-epoch receiver is not allowed"):
        list(read_range(eh.connection, "0", 0, 5))
    reading.close()  # type: ignore[attr-defined]


def test_a_higher_epoch_evicts(eh: Entity) -> None:
    reading = waiting(eh, epoch=7)
    began = time.monotonic()
    taking = RangeOptions(epoch=8, receiver_name="thief")
    assert sequences(read_range(eh.connection, "0", 0, 5, taking)) == [0, 1, 2, 3, 4]
    with pytest.raises(AmqpError, match="with higher epoch of '8' is created") as evicted:
        next(reading)
    assert evicted.value.condition == "amqp:link:stolen"
    assert time.monotonic() - began < 10
    assert list(reading) == []


def test_too_many_readers(eh: Entity) -> None:
    reading = [waiting(eh) for _ in range(5)]
    with pytest.raises(AmqpError) as refused:
        list(read_range(eh.connection, "0", 0, 5))
    assert refused.value.condition == "amqp:resource-limit-exceeded"
    for one in reading:
        one.close()  # type: ignore[attr-defined]
    eventually(lambda: eh.readers == 0)


# --- Ends before the end -------------------------------------------------------------------------


def test_whoever_stops_reading_hangs_up(eh: Entity, house: EmbeddedHub) -> None:
    reading = waiting(eh)
    assert eh.readers == 1
    reading.close()  # type: ignore[attr-defined]
    eventually(lambda: eh.readers == 0 and not house.server.conversations)


def test_a_client_is_of_no_use_after_a_range_not_read_to_its_end(eh: Entity) -> None:
    eh.put(numbered(range(10)))
    with BulkClient(eh.connection) as client:
        reading = client.read_range("0", 0, 10, RangeOptions(batch_rows=5))
        next(reading)
        with pytest.raises(OptionError, match="one range at a time"):
            client.read_range("0", 0, 10)
        reading.close()  # type: ignore[attr-defined]
        with pytest.raises(OptionError, match="closed> cannot read now"):
            client.read_range("0", 0, 10)


def test_a_dropped_connection_may_be_tried_again(eh: Entity, house: EmbeddedHub) -> None:
    reading = waiting(eh)
    house.drop_connections()
    with pytest.raises(ConnectionFailed, match=r"the connection to .* broke"):
        next(reading)
    eh.put(numbered(range(5, 20)))
    assert sequences(read_range(eh.connection, "0", 5, 20)) == list(range(5, 20))


def test_a_hub_that_is_deleted(eh: Entity, house: EmbeddedHub) -> None:
    reading = waiting(eh)
    house.delete_hub(eh.name)
    with pytest.raises(PumphouseError, match=r"deleted|not be found|detach"):
        next(reading)


def test_a_hub_that_stops() -> None:
    with EmbeddedHub() as house:
        reading = waiting(Entity(house))
    with pytest.raises(ConnectionFailed, match="closed the connection: The hub is shutting down"):
        next(reading)


# --- Time ----------------------------------------------------------------------------------------


def test_both_sides_hear_that_the_other_lives() -> None:
    """The hub drops whoever is silent for 0.8 s, and a heartbeat comes from it every 0.1 s."""
    options = ServerOptions(idle_timeout_s=0.8, enforce_idle=True)
    with EmbeddedHub(options=options) as house:
        eh = Entity(house)
        eh.put(numbered(range(3)))
        later = threading.Timer(2.0, eh.put, [numbered(range(3, 6))])
        later.start()
        with BulkClient(eh.connection, options=WireOptions(idle_s=0.2)) as client:
            assert sequences(client.read_range("0", 0, 6)) == list(range(6))
        later.join()


def test_a_token_is_renewed_while_a_range_is_read(eh: Entity) -> None:
    eh.put(numbered(range(100)))
    clock = MovableClock()
    with BulkClient(eh.connection, clock=clock) as client:
        reading = client.read_range("0", 0, 100, RangeOptions(batch_rows=10))
        next(reading)
        put = client._token_s
        clock.advance(RENEW_S + 1)
        rest = list(reading)
        assert client._token_s > put
        assert sum(batch.num_rows for batch in rest) == 90
        # The answer has come by now, or does when the next range is read.
        assert len(sequences(client.read_range("0", 0, 100))) == 100
        assert client._renewal is None


def test_a_token_that_is_refused_later() -> None:
    clock = MovableClock()
    with EmbeddedHub() as house:
        eh = Entity(house)
        eh.put(numbered(range(5)))
        with BulkClient(eh.connection, clock=clock) as client:
            reading = client.read_range("0", 0, 20, RangeOptions(batch_rows=5, deadline_s=30))
            next(reading)
            house._call(house.namespace.rules.clear)
            clock.advance(RENEW_S + 1)
            with pytest.raises(AuthError, match="No access rule"):
                next(reading)


def test_a_token_made_by_someone_else_is_not_renewed(eh: Entity, house: EmbeddedHub) -> None:
    eh.put(numbered(range(20)))
    clock = MovableClock()
    given = parse(eh.connection)
    resource = given.resource(eh.name)
    signature = sign(resource, given.key_name, given.key, int(time.time()) + 100)
    lent = replace(given, key="", key_name="", signature=signature)
    with BulkClient(lent, clock=clock) as client:
        reading = client.read_range("0", 0, 20, RangeOptions(batch_rows=10))
        next(reading)
        put = client._token_s
        clock.advance(RENEW_S + 1)
        assert len(list(reading)) == 1
        assert client._token_s == put


class Peer:
    """A server that takes one connection and says what it is told to."""

    def __init__(self, said: bytes) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        port = self.listening.getsockname()[1]
        self.connection = (
            f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey=k;"
            "EntityPath=e;UseDevelopmentEmulator=true"
        )
        self.said = said
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        talking, _ = self.listening.accept()
        with talking:
            talking.sendall(self.said)
            while talking.recv(1000):
                pass

    def close(self) -> None:
        self.thread.join(WAIT_S)
        self.listening.close()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "did not open the connection in 0.3 s"),
        (b"AMQP\x03\x01\x00\x00", "did not open the connection in 0.3 s"),
        (b"HTTP/1.1 400 Bad Request\r\n", "is no event hub we understand"),
        (b"AMQP\x03\x01\x00\x00\x00\x00\x00\x01\x02\x01\x00\x00", "frame of 1 bytes"),
        (b"AMQP\x03\x01\x00\x00\x7f\x00\x00\x00\x02\x01\x00\x00", "the limit is 1048576"),
    ],
)
def test_a_peer_that_is_no_hub(said: bytes, why: str) -> None:
    peer = Peer(said)
    options = WireOptions(connect_s=0.3)
    with pytest.raises(ConnectionFailed, match=why), BulkClient(peer.connection, options=options):
        pass
    peer.close()


# --- As the official client sees it --------------------------------------------------------------


def varied() -> list[bytes]:
    """Events of all sorts."""
    values: list[Any] = [
        None, True, False, 0, -1, 127, 128, -(1 << 63), (1 << 63) - 1, UByte(200), UShort(60000),
        UInt(0), UInt(4_000_000_000), ULong(0), ULong((1 << 64) - 1), Byte(-5), Short(-300),
        Int(-70000), 0.0, 1.5, -2.25e-7, 1e300, Float(0.5), "", "text", "ünïcödé", "x" * 300,
        Symbol("symbol"), b"", b"\x00\xff", Timestamp(1_700_000_000_123),
        UUID("00112233-4455-6677-8899-aabbccddeeff"),
    ]  # fmt: skip
    sizes = [0, 1, 12, 13, 254, 255, 256, 1000, 70_000]
    keys = [None, "key", "schlüssel", "鍵", "k" * 128]
    properties = [
        None,
        Properties(message_id="m", correlation_id="c", content_type="text/plain"),
        Properties(message_id=UUID(int=7), subject="s", group_sequence=5, user_id=b"u"),
        Properties(message_id=ULong(9), creation_time=Timestamp(5), reply_to="r", to="t"),
    ]
    sent = []
    for number in range(600):
        key = keys[number % len(keys)]
        notes: dict[Any, Any] = {} if key is None else {Symbol("x-opt-partition-key"): key}
        if number % 11 == 0:
            notes[Symbol("x-mine")] = values[number % len(values)]
        value = values[number % len(values)]
        sent.append(
            Message(
                annotations=notes,
                properties=properties[number % len(properties)],
                application={"n": number, "value": value} if number % 3 else {},
                data=(bytes([number % 256]) * sizes[number % len(sizes)],),
            )
        )
    sent += [
        Message(value="text"),
        Message(value=b"binary"),
        Message(data=(b"one", b"two")),
        Message(data=(b"",), application={f"key {n}": "x" * n for n in range(60)}),
    ]
    return [encode_message(message) for message in sent]


def read_officially(connection: str, wanted: int) -> list[EventData]:
    client = EventHubConsumerClient.from_connection_string(connection, "$Default")
    events: list[EventData] = []
    done = threading.Event()

    def on_batch(_: Any, batch: list[EventData]) -> None:
        events.extend(batch)
        if len(events) >= wanted:
            done.set()

    options = {"partition_id": "0", "starting_position": "-1", "prefetch": 3000}
    reading = threading.Thread(target=client.receive_batch, args=(on_batch,), kwargs=options)
    with client:
        reading.start()
        assert done.wait(60)
    reading.join()
    return events


def official(row: dict[str, Any], event: EventData) -> None:
    """Compare an event with what the official client says of it."""
    assert row["sequenceNumber"] == event.sequence_number
    assert row["offset"] == event.offset
    assert row["enqueuedTime"] == event.enqueued_time
    assert row["partitionKey"] == official_text(event.partition_key)
    body: Any = event.body
    assert row["body"] == (body if isinstance(body, bytes) else b"".join(body))
    compare(dict(row["properties"]), event.properties or {})
    theirs = dict(event.system_properties)
    for ours in ("x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time"):
        theirs.pop(ours.encode(), None)
    compare(dict(row["systemProperties"]), {name: theirs[name] for name in theirs})


def compare(ours: dict[str, str], theirs: dict[Any, Any]) -> None:
    """Names and values, as far as the official client tells the kinds of values apart."""
    named = {official_text(name): value for name, value in theirs.items() if value is not None}
    present = {name: text for name, text in ours.items() if text != "null"}
    assert present.keys() == named.keys()
    for name, text in present.items():
        value = named[name]
        if isinstance(value, bytes):
            # It hands over binaries, strings and symbols as bytes.
            assert text in (text_of(value), value.decode(errors="replace"))
        elif not text.startswith('"'):  # and a time as a number
            assert text == text_of(value), name


def official_text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def test_the_official_client_reads_the_same(eh: Entity) -> None:
    sent = varied()
    eh.put(sent)
    ours = rows(read_range(eh.connection, "0", 0, len(sent), RangeOptions(batch_rows=250)))
    theirs = read_officially(eh.connection, len(sent))
    assert len(ours) == len(theirs) == len(sent)
    for row, event in zip(ours, theirs, strict=True):
        official(row, event)


def test_sequence_numbers_follow_each_other(house: EmbeddedHub) -> None:
    found = sequences(read_range(filled(house).connection, "0", 0, 300))
    assert all(after - before == 1 for before, after in pairwise(found))
