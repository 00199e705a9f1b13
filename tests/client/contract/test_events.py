"""Sent events are received unchanged: bodies, keys, and properties of every type."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from pumphouse.amqp.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
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
from pumphouse.client.base import HubClient
from pumphouse.client.native.client import NativeClient
from pumphouse.errors import PumphouseError
from pumphouse.events import Event
from pumphouse.hub.routing import partition_for
from tests.client.contract.support import DriverTarget, read

BODIES = [
    b"",
    b"\x00",
    bytes(range(256)),
    "Straße 😀 \x00 温度".encode(),
    b"\x00\x53\x75\xa0\x01x",  # looks like an AMQP section
    b"x" * 70_000,  # longer than a frame
    b"y" * 700_000,
]
BOTH_CAN_SEND: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "ubyte": UByte(255),
    "ushort": UShort(65535),
    "uint": UInt(2**32 - 1),
    "ulong": ULong(2**64 - 1),
    "byte": Byte(-128),
    "short": Short(-(2**15)),
    "int": Int(-(2**31)),
    "long": -(2**63),
    "small": 7,
    "large": 2**40,
    "float": Float(struct.unpack(">f", struct.pack(">f", 0.1))[0]),
    "double": 0.1,
    "infinite": float("-inf"),
    "time": Timestamp(1_700_000_000_123),
    "uuid": UUID(int=2**127 + 5),
    "binary": bytes(range(256)),
    "binary that is text": b"text",
    "no bytes": b"",
    "string": "Straße 😀",
    "no text": "",
    "symbol": Symbol("amqp:link:stolen"),
    "long text": "z" * 3000,
    "ключ 😀": "a name that is not ASCII",
    "": "no name",
}
ONLY_NATIVE_SENDS: dict[str, Any] = {
    "char": Char("😀"),
    "decimal32": Decimal32.from_decimal(Decimal("1.5")),
    "decimal64": Decimal64.from_decimal(Decimal("-2.25")),
    "decimal128": Decimal128.from_decimal(Decimal("12345678901234567890.5")),
}


def typed(properties: Any) -> dict[str, tuple[type, Any]]:
    """A value with its type, because 5 == UInt(5)."""
    return {name: (type(value), value) for name, value in properties.items()}


async def test_bodies_round_trip(client: HubClient) -> None:
    sender = await client.sender("0")
    assert await sender.send(map(Event, BODIES)) == len(BODIES)
    assert [event.body for event in await read(client, "0", len(BODIES))] == BODIES


async def test_properties_of_every_type_round_trip(client: HubClient) -> None:
    sender = await client.sender("0")
    await sender.send(
        [Event(b"x", BOTH_CAN_SEND), Event(b"without"), Event(b"y" * 90_000, {"n": 1})]
    )
    full, without, long = await read(client, "0", 3)
    assert typed(full.properties) == typed(BOTH_CAN_SEND)
    assert without.properties == {}
    assert typed(long.properties) == {"n": (int, 1)}


async def test_events_of_other_clients_can_be_read(client: HubClient, target: DriverTarget) -> None:
    properties = BOTH_CAN_SEND | ONLY_NATIVE_SENDS
    async with NativeClient(target.hub.connection_string(target.name)) as other:
        await (await other.sender("0")).send([Event(b"x", properties)])
    [event] = await read(client, "0", 1)
    assert typed(event.properties) == typed(properties)


@pytest.mark.parametrize(
    "value", [UByte(-1), UByte(256), Int(2**31), 2**63, object()], ids=lambda value: repr(value)[:9]
)
async def test_a_property_out_of_range_is_refused(
    client: HubClient, target: DriverTarget, value: Any
) -> None:
    sender = await client.sender("0")
    with pytest.raises(PumphouseError):
        await sender.send([Event(b"x", {"n": value})])
    assert await sender.send([Event(b"next")]) == 1
    assert target.count() == 1


@pytest.mark.parametrize("key", ["k", "Straße 😀", "x" * 128])
async def test_partition_keys_round_trip(client: HubClient, target: DriverTarget, key: str) -> None:
    sender = await client.sender()
    await sender.send([Event(b"1", partition_key=key), Event(b"2", partition_key=key), Event(b"3")])
    where = partition_for(key, 4)
    events = await read(client, str(where), target.count(where))
    assert [event.body for event in events if event.partition_key == key] == [b"1", b"2"]


async def test_a_received_event_has_sequence_offset_and_time(client: HubClient) -> None:
    sender = await client.sender("3")
    await sender.send([Event(b"x")])
    [event] = await read(client, "3", 1)
    properties = await client.partition_properties("3")
    assert (event.partition, event.sequence) == ("3", properties.last_sequence)
    assert event.offset == properties.last_offset
    assert event.enqueued_ms == properties.last_enqueued_ms
    assert [type(value) for value in (event.sequence, event.enqueued_ms)] == [int, int]


async def test_a_received_event_can_be_sent_again(client: HubClient) -> None:
    sender = await client.sender("0")
    await sender.send([Event(b"x", {"n": 1, "s": "t"}, partition_key="k")])
    [event] = await read(client, "0", 1)
    await (await client.sender("1")).send([event])
    [again] = await read(client, "1", 1)
    assert (again.body, again.properties, again.partition_key) == (b"x", {"n": 1, "s": "t"}, "k")
    assert (again.partition, again.sequence) == ("1", 0)
