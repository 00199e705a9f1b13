"""Packed records equal the bytes of the client; the partition hash equals that of the hub."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.messages import encode_batch
from pumphouse.client.batches import encode_event
from pumphouse.homes import schema
from pumphouse.homes.partition_hash import partitions_of
from pumphouse.homes.simulator.reading_faults import ReadingFaults
from pumphouse.homes.simulator.record_encoding import CHUNK, DROP, pack_records, record_template
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.hub.annotations import parse_payload
from pumphouse.hub.routing import partition_for

MINUTE = 20_605 * 1440 + 700
READING_FAULTS = ReadingFaults(malformed=0.05, faults=0.05, duplicates=0.05)


@pytest.mark.parametrize("reading_faults", [ReadingFaults(), READING_FAULTS])
def test_packed_records_are_a_batch_as_the_client_writes_it(reading_faults: ReadingFaults) -> None:
    batch = HomeSimulator(200, 3, reading_faults=reading_faults).minute(MINUTE)
    messages = [encode_event(event) for event in batch.events()]
    assert batch.packed.records(0, len(batch)) == encode_batch(messages)


def test_consecutive_records_are_a_batch() -> None:
    batch = HomeSimulator(20, 3).minute(MINUTE)
    events = list(batch.events())[7:31]
    assert batch.packed.records(7, 31) == encode_batch(map(encode_event, events))


def test_the_hub_finds_the_key_of_every_event() -> None:
    batch = HomeSimulator(20, 3).minute(MINUTE)
    parsed = parse_payload(batch.packed.data, 0x80013700)
    keys = [group.prefix.key for group in parsed.groups for _ in group.bodies]
    assert keys == [schema.home_id(home) for home in batch.columns.home.tolist()]


def test_a_large_batch_is_packed_in_pieces() -> None:
    columns = HomeSimulator(CHUNK // 5 + 10, 3).readings(MINUTE)
    assert len(columns) > CHUNK
    packed = pack_records(columns)
    assert len(packed) == len(columns)
    for i in (0, CHUNK - 1, CHUNK, len(columns) - 1):
        assert schema.decode_reading(packed.body(i)) == columns.reading(i)


def test_the_drop_byte_occurs_only_in_unused_fields() -> None:
    shape = record_template()
    dropped = (shape.rows == DROP[0]).sum(axis=1)
    assert dropped.tolist() == shape.unused.tolist()


@given(st.integers(1, 32), st.lists(st.integers(0, schema.HOMES_MAX - 1), min_size=1))
def test_the_partition_hash_equals_the_routing_of_the_hub(
    partitions: int, numbers: list[int]
) -> None:
    indices = partitions_of(np.array(numbers, np.int32), partitions)
    assert indices.tolist() == [partition_for(schema.home_id(n), partitions) for n in numbers]
