"""Ranges return the same events as the official client."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.eventhub._pyamqp.types import TYPE, VALUE, AMQPTypes
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pumphouse.amqp.columnar.columns import ColumnReader
from pumphouse.amqp.messages import Message, Properties, encode_message
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
from pumphouse.client.base import ReaderOptions
from pumphouse.client.bulk import blocking_connection
from pumphouse.client.bulk.client import (
    BulkClient,
    RangeOptions,
    read_range,
)
from pumphouse.client.bulk.texts import text_of
from pumphouse.client.event_decoding import PATTERNS
from pumphouse.client.native.client import NativeClient
from pumphouse.client.native.connection import ConnectionOptions
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from tests.client.bulk.hub_entity import (
    WAIT_S,
    Entity,
    filled_entity,
    rows,
    sequences,
)

# --- Events of many kinds ------------------------------------------------------------------------


def varied() -> list[bytes]:
    """Events of many kinds."""
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
                delivery_annotations={} if number % 7 else {Symbol("x-way"): value},
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


def read_officially(connection: str, count: int) -> list[EventData]:
    client = EventHubConsumerClient.from_connection_string(connection, "$Default")
    events: list[EventData] = []
    done = threading.Event()

    def on_batch(_: Any, batch: list[EventData]) -> None:
        events.extend(batch)
        if len(events) >= count:
            done.set()

    options = {"partition_id": "0", "starting_position": "-1", "prefetch": 3000}
    reading = threading.Thread(target=client.receive_batch, args=(on_batch,), kwargs=options)
    with client:
        reading.start()
        assert done.wait(60)
    reading.join()
    return events


def official(row: dict[str, Any], event: EventData) -> None:
    """Compare a row with an event of the official client."""
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


EMPTY, EMPTY_TEXTS = (None, "", b""), ("null", "", "[]")


def compare(ours: dict[str, str], theirs: dict[Any, Any]) -> None:
    """Compare names and values, as far as the official client keeps their types."""
    # The SDK omits some empty values.
    named = {official_text(name): value for name, value in theirs.items() if value not in EMPTY}
    present = {name: text for name, text in ours.items() if text not in EMPTY_TEXTS}
    assert present.keys() == named.keys()
    for name, text in present.items():
        value = named[name]
        if isinstance(value, bytes):
            # The SDK returns binaries, strings and symbols as bytes.
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


# --- Any events of the official client -----------------------------------------------------------

TEXTS = st.text(max_size=12) | st.integers(250, 300).map(lambda size: "é" * size)


def typed(kind: str, chosen: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A value of an AMQP type without a Python type, as the official client writes it."""
    return chosen.map(lambda value: {TYPE: getattr(AMQPTypes, kind), VALUE: value})


VALUES = {
    "text": TEXTS,
    "binary": st.binary(max_size=12),
    "small": st.integers(-200, 200),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "double": st.floats(allow_nan=False),
    "boolean": st.booleans(),
    "uuid": st.uuids(),
    "long": typed("long", st.integers(-(1 << 63), (1 << 63) - 1)),
    "ulong": typed("ulong", st.integers(0, (1 << 64) - 1) | st.integers(0, 300)),
    "uint": typed("uint", st.integers(0, (1 << 32) - 1) | st.integers(0, 300)),
    "ushort": typed("ushort", st.integers(0, 65535)),
    "ubyte": typed("ubyte", st.integers(0, 255)),
    "short": typed("short", st.integers(-32768, 32767)),
    "byte": typed("byte", st.integers(-128, 127)),
    "float": typed("float", st.floats(width=32, allow_nan=False)),
    "symbol": typed("symbol", st.binary(max_size=9).map(lambda raw: raw.hex().encode())),
    "time": typed("timestamp", st.integers(0, 1 << 42)),
    "null": st.none(),
}
NAMES = st.text(min_size=1, max_size=6)
SIZES = st.sampled_from([0, 1, 100, 255, 256, 1000, 66_000])


IRREGULAR = [
    encode_message(Message(value="text")),
    encode_message(Message(data=(b"one", b"two"))),
    encode_message(Message(data=(b"x",), footer={"a": 1})),
    encode_message(Message(data=(b"x" * 400_000,), application={"large": "y" * 100_000})),
]


@dataclass(frozen=True)
class Producer:
    """The common structure of the events of one producer."""

    key: str | None
    properties: dict[str, str]  # names and types
    dressed: bool  # with ids and a content type


@st.composite
def producers(draw: st.DrawFn) -> Producer:
    kinds = st.dictionaries(NAMES, st.sampled_from(list(VALUES)), max_size=4)
    key = st.none() | st.text(min_size=1, max_size=9)
    return Producer(draw(key), draw(kinds), draw(st.booleans()))


class Load:
    """The events to send. Its repr is short, because bodies are long."""

    def __init__(
        self, batches: list[tuple[Producer, list[EventData]]], irregular: list[bytes]
    ) -> None:
        self.batches = batches
        self.irregular = irregular

    def __len__(self) -> int:
        return sum(len(events) for _, events in self.batches) + len(self.irregular)

    def __repr__(self) -> str:
        producers = ", ".join(str(producer) for producer, _ in self.batches)
        return f"<Load {len(self)} events of {producers}>"


@st.composite
def loads(draw: st.DrawFn) -> Load:
    """Batches of a few producers in turn, then some unique events."""
    known = draw(st.lists(producers(), min_size=1, max_size=3))
    turns = draw(st.lists(st.sampled_from(known), min_size=1, max_size=5))
    counts = st.integers(1, 12)
    odd = draw(st.lists(st.sampled_from(IRREGULAR), max_size=3))
    sent = [(turn, [draw(events(turn)) for _ in range(draw(counts))]) for turn in turns]
    return Load(sent, odd)


@st.composite
def events(draw: st.DrawFn, producer: Producer) -> EventData:
    event = EventData(draw(st.binary(min_size=1, max_size=1)) * draw(SIZES))
    event.properties = {name: draw(VALUES[kind]) for name, kind in producer.properties.items()}
    if producer.dressed:
        event.message_id = draw(TEXTS)
        event.correlation_id = "c" * draw(st.integers(0, 3))
        event.content_type = draw(st.sampled_from(["text/plain", "application/json"]))
    return event


@given(loads(), st.sampled_from([512, 1 << 20]))
@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # shrinking would take minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_all_readers_return_the_same_events(
    server: EmbeddedHub, load: Load, frame_bytes_max: int
) -> None:
    """The official client, columns, single messages, and the asyncio client."""
    eh = Entity(server, partitions=1)
    send_officially(eh.connection, load)
    eh.put(load.irregular)
    count = len(load)
    columns = read_columns(eh, count, frame_bytes_max)
    assert read_columns(eh, count, frame_bytes_max, singles_max=count) == columns
    theirs = read_officially(eh.connection, count)
    ours = read_one_by_one(eh, count)
    for row, event, our_event in zip(columns, theirs, ours, strict=True):
        official(row, event)
        agree(our_event, row)


def send_officially(connection: str, load: Load) -> None:
    with EventHubProducerClient.from_connection_string(connection) as client:
        for producer, events in load.batches:
            client.send_batch(list(events), partition_key=producer.key)


def read_columns(
    eh: Entity, count: int, frame_bytes_max: int, singles_max: int = 0
) -> list[dict[str, Any]]:
    """Read as columns: in groups, or each message on its own."""
    reader = partial(ColumnReader, singles_max=singles_max)
    with (
        pytest.MonkeyPatch.context() as patch,
        BulkClient(
            eh.connection, options=ConnectionOptions(frame_bytes_max=frame_bytes_max)
        ) as client,
    ):
        patch.setattr(blocking_connection, "ColumnReader", reader)
        return rows(client.read_range("0", 0, count))


def read_one_by_one(eh: Entity, count: int) -> list[Event]:
    """Read as events with the asyncio client, with new and with known patterns."""

    async def read() -> list[Event]:
        received: list[Event] = []
        async with NativeClient(eh.connection) as client, asyncio.timeout(WAIT_S):
            reader = await client.reader(ReaderOptions("0"))
            while len(received) < count:
                received += await reader.receive(count - len(received), 5.0)
        return received

    PATTERNS.patterns = ()
    learned, known = asyncio.run(read()), asyncio.run(read())
    assert list(map(repr, learned)) == list(map(repr, known))
    return learned


def agree(event: Event, row: dict[str, Any]) -> None:
    """Check that an event equals its row."""
    assert event.body == row["body"]
    assert (event.sequence, event.offset) == (row["sequenceNumber"], row["offset"])
    assert event.enqueued_at == row["enqueuedTime"]
    assert event.partition_key == row["partitionKey"]
    texts = {text_of(name): text_of(value) for name, value in event.properties.items()}
    assert texts == dict(row["properties"])


def test_sequence_numbers_are_consecutive(server: EmbeddedHub) -> None:
    numbers = sequences(read_range(filled_entity(server).connection, "0", 0, 300))
    assert all(after - before == 1 for before, after in pairwise(numbers))
