"""Blocks of payloads are the same sequences as lists of them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.columnar.payload_blocks import (
    ROWS_MIN,
    PayloadBlock,
    block_starts,
    find_block,
    sizes_of,
)
from pumphouse.amqp.columnar.repeated_transfers import take_block, take_run
from tests.amqp.columnar.test_repeated_transfers import frame, learned

FRAMES_MAX = 1 << 16


def frames(payloads: list[bytes]) -> bytes:
    return b"".join(
        frame(payload=payload, delivery_id=1000 + number) for number, payload in enumerate(payloads)
    )


def block(count: int, size: int = 5) -> tuple[PayloadBlock, list[bytes]]:
    payloads = [b"%d" % (10 ** (size - 1) + number) for number in range(count)]
    data = frames(payloads)
    found = take_block(data, 0, learned(data), FRAMES_MAX)
    assert found is not None
    return found, payloads


def test_a_block_is_a_sequence_of_its_payloads() -> None:
    found, payloads = block(100)
    assert (len(found), repr(found)) == (100, "<PayloadBlock 100 of 5 bytes>")
    assert [*found] == payloads
    assert (found[0], found[99], found[-1]) == (payloads[0], payloads[99], payloads[-1])
    for part in (slice(10), slice(90, None), slice(3, 7), slice(5, 5), slice(None, None, 2)):
        assert [*found[part]] == payloads[part]
    assert [*found[20:60][5:]] == payloads[25:60]
    assert found.tails(2) == [payload[2:] for payload in payloads]
    assert found.tails(5) == [b""] * 100
    assert found.heads(3).tobytes() == b"".join(payload[:3] for payload in payloads)
    assert sizes_of(found) == sizes_of(payloads) == (500, 5)
    with pytest.raises(IndexError):
        found[100]


def test_zeros_at_the_end_of_a_payload_are_kept() -> None:
    data = frames([b"\0\0"] * 50)
    assert [*take_run(data, 0, learned(data), FRAMES_MAX)[0]] == [b"\0\0"] * 50


@given(st.lists(st.sampled_from([1, 1, 1, 2, 3]), max_size=12), st.integers(0, 2**32))
def test_blocks_and_lists_contain_all_payloads(sizes: list[int], seed: int) -> None:
    rng = Random(seed)
    payloads = [rng.randbytes(size) for size in sizes for _ in range(rng.choice((1, 60)))]
    data, pos, taken = frames([b"x", *payloads]), 0, list[bytes]()
    like = learned(data)
    while pos < len(data):
        run, pos = take_run(data, pos, like, FRAMES_MAX)
        assert run
        taken += run
    assert taken == [b"x", *payloads]


@pytest.mark.parametrize("odd", [0, 1, 3, 38, 39, 40, 41, 77, 99])
def test_a_block_ends_at_the_first_different_transfer(odd: int) -> None:
    payloads = [b"payload"] * 100
    changed: list[dict[str, Any]] = [
        {"handle": 4},
        {"settled": False},
        {"more": True},
        {"delivery_tag": b"tt"},
    ]
    for changes in changed:
        pieces = [frame(payload=payload) for payload in payloads]
        like = learned(pieces[0])
        pieces[odd] = frame(**changes)
        data, taken, end = b"".join(pieces), list[bytes](), 0
        while run := take_run(data, end, like, FRAMES_MAX)[0]:
            taken += run
            end = sum(map(len, pieces[: len(taken)]))
        assert len(taken) == odd


def test_few_transfers_are_no_block() -> None:
    data = frames([b"payload"] * (ROWS_MIN - 1))
    assert not block_starts(data, 0, 20)
    assert find_block(frames([b"payload"] * 5), 0, learned(data).mask) is None
    run, end = take_run(data, 0, learned(data), FRAMES_MAX)
    assert (run, end) == ([b"payload"] * (ROWS_MIN - 1), len(data))


def test_a_frame_above_the_limit_is_not_taken() -> None:
    data = frames([b"payload" * 10] * 60)
    assert not take_run(data, 0, learned(data), 100)[0]


def test_a_small_part_of_a_buffer_does_not_keep_all_of_it() -> None:
    found, payloads = block(100)
    assert found.compacted() is found
    data = bytes(10_000) + found.data + bytes(10_000)
    part = PayloadBlock(data, found.start + 10_000, 5, found.stride, 100).compacted()
    assert [*part] == payloads
    assert len(part.data) <= len(found.data)
