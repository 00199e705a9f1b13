"""`check_value` accepts what `decode` accepts, and nothing else."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.codec import check_value, decode, encode
from pumphouse.amqp.constructors import MAX_DEPTH
from pumphouse.amqp.types import Int
from pumphouse.errors import MalformedBytes
from tests.amqp.codec.codec_tables import TABLE, WIDE_FORMS
from tests.amqp.codec.test_codec_refused import MALFORMED, arrays, descriptors, lists, values
from tests.fuzz.corpus import VALUES
from tests.fuzz.test_mutations import mutate

VALID = [bytes.fromhex(text) for _, text in TABLE + WIDE_FORMS] + [encode(v) for v in VALUES]


def outcome(read: Any, data: bytes) -> int | None:
    """The position after the value; None if it is refused."""
    try:
        result = read(data)
    except MalformedBytes:
        return None
    return result if isinstance(result, int) else int(result[1])


def assert_same(data: bytes) -> None:
    assert outcome(check_value, data) == outcome(decode, data), data.hex()


def test_valid_and_malformed_values() -> None:
    for data in VALID:
        assert check_value(data) == len(data)
        assert_same(b"\xd0" + struct.pack(">II", len(data) + 4, 1) + data)
    for text, _, _ in MALFORMED:
        assert outcome(check_value, bytes.fromhex(text)) is None, text


@pytest.mark.parametrize("seed", range(4))
def test_mutated_values(seed: int) -> None:
    random = Random(seed)
    for _ in range(4000):
        assert_same(mutate(random.choice(VALID), random, VALID))


@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    for start in (b"", b"\xc0", b"\xc1", b"\xe0", b"\x00"):
        assert_same(start + data)


@pytest.mark.parametrize("nest", [lists, arrays, values, descriptors])
def test_nesting_has_the_same_limit(nest: Any) -> None:
    assert check_value(nest(MAX_DEPTH)) == len(nest(MAX_DEPTH))
    for depth in (MAX_DEPTH + 1, 1000):
        with pytest.raises(MalformedBytes, match="more than 32 deep"):
            check_value(nest(depth))
    with pytest.raises(MalformedBytes, match="more than 32 deep"):
        check_value(nest(MAX_DEPTH), depth=1)


def traced_peak(call: Callable[[bytes], object], data: bytes) -> int:
    """The least of three: other threads of the process allocate meanwhile."""
    return min(traced_peak_once(call, data) for _ in range(3))


def traced_peak_once(call: Callable[[bytes], object], data: bytes) -> int:
    tracemalloc.start()
    try:
        call(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("value", "per_byte"),
    [([[]] * 100_000, 0.1), ({str(number): None for number in range(60_000)}, 3.0)],
    ids=["lists", "keys"],
)
def test_checking_needs_little_memory(value: Any, per_byte: float) -> None:
    data = encode(value)
    check_value(encode([{"a": 1}] * 3))  # what is imported at first use
    # The smallest of three: threads of earlier tests allocate memory, too.
    assert min(traced_peak(check_value, data) for _ in range(3)) < per_byte * len(data)
    assert traced_peak(decode, data) > 10 * len(data)


@pytest.mark.parametrize("others", [0, 2000])
def test_a_few_keys_with_the_same_hash_are_compared(others: int) -> None:
    """-1 and -2 have the same hash; 1 and UInt(1) are equal too."""
    names = {str(number): None for number in range(others)}
    assert check_value(encode(names | {-1: 1, -2: 2})) == len(encode(names | {-1: 1, -2: 2}))
    for repeated in (-1, -2):
        with pytest.raises(MalformedBytes, match="twice"):
            check_value(with_key(encode(names | {-1: 1, -2: 2}), Int(repeated)))


def with_key(data: bytes, key: Any) -> bytes:
    """An encoded map with one more key."""
    width = 1 if data[0] == 0xC1 else 4
    count = int.from_bytes(data[1 + width : 1 + 2 * width], "big")
    content = data[1 + 2 * width :] + encode(key) + b"@"
    return b"\xd1" + struct.pack(">II", len(content) + 4, count + 2) + content
