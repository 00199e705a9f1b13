"""FrameIndex: finds the frames of a buffer, however they arrive."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.columnar.buffer_view import SLACK, BufferView
from pumphouse.amqp.columnar.columns import (
    GUESS_FRAMES,
    SCAN_FRAMES,
    FrameIndex,
)
from pumphouse.amqp.frames import EMPTY_FRAME, HEAD, encode_frame
from pumphouse.amqp.performatives import Detach, Error, Flow
from pumphouse.errors import RemoteProtocolError
from tests.amqp.columnar.frame_runs import (
    CHANNEL,
    FRAME_MAX,
    indexed,
    transfer,
)
from tests.amqp.columnar.test_columns import event, framed, rows_of

LENGTHS = st.lists(
    st.tuples(st.integers(60, 64), st.integers(1, 3 * SCAN_FRAMES)), min_size=1, max_size=6
)


@given(LENGTHS, st.lists(st.integers(1, 9000), max_size=8), st.booleans())
def test_frames_are_found_in_any_pieces(
    lengths: list[tuple[int, int]], steps: list[int], others: bool
) -> None:
    frames, expected, expected_others = [], [], []
    at = 0
    for size, count in lengths:
        for number in range(count):
            frame = transfer("fixed", number, b"\0" * (size - 43))
            if others and number % 50 == 7:
                frame = EMPTY_FRAME
                expected_others.append(frame)
            else:
                expected.append((at, at + len(frame)))
            frames.append(frame)
            at += len(frame)
    data = bytearray(b"".join(frames)) + bytes(SLACK)
    index, other_frames, end = FrameIndex(FRAME_MAX), [], 0
    for step in [*steps, at]:
        end = min(at, end + step)
        other_frames += index.extend(BufferView(data), end)
        assert index.end <= end
    assert list(zip(index.starts.tolist(), index.ends.tolist(), strict=True)) == expected
    assert other_frames == expected_others
    assert (len(index), index.end) == (len(expected), at)


def test_dropped_frames_leave_the_index() -> None:
    data = framed([event(n) for n in range(30)])
    index = indexed(data)
    starts = index.starts.copy()
    until = index.drop(10)
    assert until == starts[10]
    assert index.starts.tolist() == (starts[10:] - until).tolist()
    assert index.drop(20) == len(data) - SLACK - until
    assert repr(index) == "<FrameIndex 0 transfers in 0 bytes>"


def test_frames_that_are_not_transfers_are_returned_at_once() -> None:
    detach = encode_frame(Detach(handle=1, error=Error(condition="amqp:link:stolen")), CHANNEL)
    flow = Flow(next_incoming_id=0, incoming_window=1, next_outgoing_id=0, outgoing_window=1)
    frames = [transfer("fixed", 0, event(0)), EMPTY_FRAME, encode_frame(flow, CHANNEL), detach]
    data = bytearray(b"".join(frames)) + bytes(SLACK)
    index = FrameIndex(FRAME_MAX)
    assert index.extend(BufferView(data), len(data) - SLACK) == frames[1:]
    assert index.starts.tolist() == [0]


def test_a_transfer_with_an_unusual_descriptor_is_indexed() -> None:
    frame = transfer("fixed", 0, event(0))
    long = frame.replace(b"\x00\x53\x14", b"\x00\x80" + bytes(7) + b"\x14", 1)
    far = frame[4:5].replace(b"\x02", b"\x03") + frame[5:8] + b"more" + frame[8:]
    for other in (long, struct.pack(">I", 0) + far):
        spelled = struct.pack(">I", len(other)) + other[4:]
        columns = rows_of([spelled] * 20)
        assert repr(columns) == "<Columns 20 rows | 1 groups, 0 singles>"


@pytest.mark.parametrize("size", [0, 7, FRAME_MAX + 1, 0xFFFFFFFF])
@pytest.mark.parametrize("before", [0, 1, GUESS_FRAMES, 1000])
def test_an_invalid_frame_size_is_refused(size: int, before: int) -> None:
    data = framed([b"\0" * 100] * before)[:-SLACK]
    data += HEAD.pack(size, 2, 0, CHANNEL) + bytes(SLACK)
    with pytest.raises(RemoteProtocolError, match=f"frame of {size} bytes"):
        FrameIndex(FRAME_MAX).extend(BufferView(data), len(data) - SLACK)


def test_a_complete_frame_above_the_limit_is_refused() -> None:
    data = framed([b"\0" * 100, b"\0" * 3000, b"\0" * 100])
    with pytest.raises(RemoteProtocolError, match="from 8 to 2000 are allowed"):
        FrameIndex(2000).extend(BufferView(data), len(data) - SLACK)


@pytest.mark.parametrize("head", [b"\x02\x01", b"\x01\x00", b"\x90\x00"])
def test_a_frame_of_another_type_is_refused(head: bytes) -> None:
    frame = transfer("fixed", 0, event(0))
    data = bytearray(frame[:4] + head + frame[6:]) + bytes(SLACK)
    with pytest.raises(RemoteProtocolError, match="with its body at byte"):
        FrameIndex(FRAME_MAX).extend(BufferView(data), len(data) - SLACK)


def test_frames_of_random_sizes_are_found() -> None:
    """Events of all sizes, received in pieces of any size."""
    chance = random.Random(5)
    payloads = [b"\0" * chance.randrange(200) for _ in range(5000)]
    data = framed(payloads)
    index, end = FrameIndex(FRAME_MAX), 0
    while end < len(data) - SLACK:
        end = min(len(data) - SLACK, end + chance.randrange(1, 50_000))
        assert index.extend(BufferView(data), end) == []
    sizes = (index.ends - index.starts).tolist()
    assert sizes == [len(transfer("fixed", 0, payload)) for payload in payloads]


def test_a_heartbeat_over_an_old_transfer_is_not_a_transfer() -> None:
    """Old bytes after the heartbeat still look like the start of a transfer."""
    heartbeat = bytes.fromhex("0000000802000000")
    stale = bytes.fromhex("005314d000000010")
    index = FrameIndex(FRAME_MAX)
    others = index.extend(BufferView(bytearray(heartbeat + stale + bytes(SLACK))), len(heartbeat))
    assert (others, len(index)) == ([heartbeat], 0)
