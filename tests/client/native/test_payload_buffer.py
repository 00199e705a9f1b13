"""The buffer of a reader is a queue of payloads, whatever they arrive in."""

from __future__ import annotations

from itertools import chain
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.columnar.payload_blocks import PayloadBlock, sizes_of
from pumphouse.client.native.payload_buffer import PayloadBuffer


def runs(rng: Random, count: int) -> list[list[bytes] | PayloadBlock]:
    made: list[list[bytes] | PayloadBlock] = []
    for _ in range(count):
        if rng.random() < 0.5:
            made.append([rng.randbytes(rng.randrange(9)) for _ in range(rng.randrange(4))])
        else:
            made.append(PayloadBlock(rng.randbytes(200), 2, 3, 7, rng.randrange(1, 20)))
    return made


@given(st.integers(0, 2**32))
def test_a_buffer_is_a_queue(seed: int) -> None:
    rng, buffer, expected = Random(seed), PayloadBuffer(), list[bytes]()
    for run in runs(rng, 10):
        buffer.append(run, sizes_of(run)[0])
        expected += run
        count = min(rng.randrange(12), len(buffer))
        taken = buffer.first(count)
        assert [*chain(*taken)] == expected[:count]
        if rng.random() < 0.7:
            buffer.drop(taken)
            expected = expected[count:]
        assert (len(buffer), buffer.bytes) == (len(expected), sum(map(len, expected)))
        if expected:
            assert buffer.last == expected[-1]
    buffer.clear()
    assert repr(buffer) == "<PayloadBuffer 0 of 0 bytes>"
