"""Maps: keys with equal hashes, too many keys, and keys of a type that the protocol excludes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import pytest

from pumphouse.amqp.codec import check_value, decode, encode
from pumphouse.amqp.composites import VALUES_MAX, decode_performative, encode_performative
from pumphouse.amqp.constructors import MAX_EQUAL_HASHES, MAX_KEYS
from pumphouse.amqp.performatives import Attach, Error, Open, Source
from pumphouse.amqp.types import Array, Described, Symbol, UInt, ULong
from pumphouse.errors import MalformedBytes
from tests.growth import assert_linear

MODULUS = 2**61 - 1  # Python's hash of a number is the number modulo this prime

Read = Callable[[bytes], object]
both = pytest.mark.parametrize("read", [decode, check_value])


def encoded_map(keys: Iterable[Any]) -> bytes:
    items = [encode(key) + b"@" for key in keys]
    content = b"".join(items)
    return b"\xd1" + struct.pack(">II", len(content) + 4, 2 * len(items)) + content


def uuid_keys(count: int) -> bytes:
    return encoded_map(UUID(int=7 + number * MODULUS) for number in range(count))


def array_keys(count: int) -> bytes:
    """Arrays of numbers, each of which has the hash 7 in one of eight ways."""
    numbers = [ULong(7 + way * MODULUS) for way in range(8)]
    return encoded_map(
        Array(0x80, tuple(numbers[number >> 3 * digit & 7] for digit in range(6)))
        for number in range(count)
    )


def described_keys(count: int) -> bytes:
    return encoded_map(
        Described(ULong(1), UUID(int=7 + number * MODULUS)) for number in range(count)
    )


@both
@pytest.mark.parametrize("make", [uuid_keys, array_keys, described_keys])
def test_keys_with_equal_hashes_are_refused(read: Read, make: Callable[[int], bytes]) -> None:
    read(make(MAX_EQUAL_HASHES + 1))
    with pytest.raises(MalformedBytes, match="that repeat another one or have the same hash"):
        read(make(MAX_EQUAL_HASHES + 2))


@both
@pytest.mark.parametrize("make", [uuid_keys, array_keys, described_keys])
def test_keys_with_equal_hashes_take_linear_time(read: Read, make: Callable[[int], bytes]) -> None:
    assert_linear(read, make, 1000, MalformedBytes)


def different_numbers(count: int) -> bytes:
    return encoded_map(range(count))


def different_texts(count: int) -> bytes:
    return encoded_map(map(str, range(count)))


def numbers_with_equal_low_bits(count: int) -> bytes:
    """Their places in the table of a dict are the same at first, and differ after a few probes."""
    return encoded_map(number << 40 for number in range(count))


@both
@pytest.mark.parametrize("make", [different_numbers, different_texts, numbers_with_equal_low_bits])
def test_other_keys_take_linear_time(read: Read, make: Callable[[int], bytes]) -> None:
    read(make(4000))
    assert_linear(read, make, 4000)


@both
def test_the_keys_of_a_map_are_limited(read: Read) -> None:
    read(different_numbers(MAX_KEYS))
    with pytest.raises(MalformedBytes, match="map has 65537 keys, at most 65536 are allowed"):
        read(different_numbers(MAX_KEYS + 1))


@both
def test_a_repeated_key_is_refused(read: Read) -> None:
    with pytest.raises(MalformedBytes, match=r"map has the key UInt\(3\) twice"):
        read(encoded_map([*range(1000), UInt(3)]))


# --- Performatives -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "performative",
    [
        Open(container_id="c", properties={UUID(int=1): None}),
        Open(container_id="c", properties={1: None}),
        Attach(name="n", handle=0, role=True, properties={b"binary": None}),
        Attach(name="n", handle=0, role=True, unsettled={"text": None}),
        Attach(name="n", handle=0, role=True, source=Source(filter={ULong(1): "x"})),
        Error(condition="amqp:x", info={True: None}),
    ],
)
def test_maps_of_performatives_have_names_as_keys(performative: Any) -> None:
    data = encode_performative(performative)
    with pytest.raises(MalformedBytes, match="as the key of a map, found"):
        decode_performative(data, 0, len(data))


def test_strings_symbols_and_tags_are_accepted_as_keys() -> None:
    for performative in (
        Open(container_id="c", properties={Symbol("a"): 1, "b": 2}),
        Attach(name="n", handle=0, role=True, unsettled={b"tag": None}),
    ):
        data = encode_performative(performative)
        assert decode_performative(data, 0, len(data)) == (performative, len(data))


@pytest.mark.parametrize(
    "value",
    [
        [[]] * VALUES_MAX,
        [None] * VALUES_MAX,
        [[1] * 63] * 64,
        Array(0x70, tuple(range(VALUES_MAX))),
        Array(0x45, ([],) * VALUES_MAX),
        [Described(1, 1)] * (VALUES_MAX // 3),
        {str(number): None for number in range(VALUES_MAX // 2)},
    ],
    ids=["lists", "nulls", "nested", "array", "empty items", "described", "map"],
)
def test_the_values_of_a_performative_are_limited(value: Any) -> None:
    """A frame of 64 KiB could otherwise contain empty lists that need four megabytes."""
    data = encode_performative(Open(container_id="c", properties={Symbol("p"): value}))
    with pytest.raises(MalformedBytes, match=r"more values than are allowed here|take no bytes"):
        decode_performative(data, 0, len(data))
    assert check_value(data) == len(data)
