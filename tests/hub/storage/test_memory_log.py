"""The log in memory: positions, segments and retention."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumphouse.amqp.messages import (
    BATCH_FORMAT,
    Message,
    decode_message,
    encode_batch,
    encode_message,
)
from pumphouse.errors import AmqpError
from pumphouse.events import EARLIEST, LATEST, NEVER_MS, Position
from pumphouse.hub.annotations import Batch, parse_payload
from pumphouse.hub.links.delivery import messages
from pumphouse.hub.options import Retention
from pumphouse.hub.storage.memory_log import MemoryLog
from pumphouse.hub.storage.run import Run
from tests.hub.events import batch_of, bodies_of

DAY_MS = 24 * 3600 * 1000
T0 = 1_700_000_000_000
EVERYTHING = 1 << 40


def log_of(*batches: int, segment_bytes: int = 1 << 20, step_ms: int = 1000) -> MemoryLog:
    """A log with batches of these sizes, a second apart; an event's body is its number."""
    log = MemoryLog(segment_bytes=segment_bytes)
    for number, count in enumerate(batches):
        first = log.next_sequence
        log.append(batch_of(b"%d" % n for n in range(first, first + count)), T0 + number * step_ms)
    return log


def read_from(log: MemoryLog, sequence: int, count_max: int = EVERYTHING) -> list[int]:
    """The numbers of all events from a sequence number on, run by run."""
    results: list[int] = []
    while (run := log.read(sequence, count_max, EVERYTHING)) is not None:
        assert run.sequence >= sequence
        results += map(int, bodies_of(run))
        sequence = run.sequence + len(run.starts)
    return results


def offsets_of(log: MemoryLog) -> list[int]:
    """The offset of each event, from its annotations."""
    results, sequence = [], log.begin
    while (run := log.read(sequence, EVERYTHING, EVERYTHING)) is not None:
        for message in messages(run):
            results.append(int(decode_message(message).annotations["x-opt-offset"]))
        sequence = run.sequence + len(run.starts)
    return results


# -- positions ------------------------------------------------------------------------------------

# Three batches of 2, 3 and 1 events: 0 1 | 2 3 4 | 5, at T0, T0 + 1000 and T0 + 2000.
POSITIONS = [
    (EARLIEST, 0),
    (LATEST, 6),
    (Position("sequence", "-1"), 0),
    (Position("sequence", "0"), 1),
    (Position("sequence", "0", inclusive=True), 0),
    (Position("sequence", "3"), 4),
    (Position("sequence", "3", inclusive=True), 3),
    (Position("sequence", "5"), 6),
    (Position("sequence", "6", inclusive=True), 6),  # the next one to come
    (Position("time", str(T0 - 1)), 0),
    (Position("time", str(T0)), 2),
    (Position("time", str(T0), inclusive=True), 0),
    (Position("time", str(T0 + 1)), 2),
    (Position("time", str(T0 + 999), inclusive=True), 2),
    (Position("time", str(T0 + 1000)), 5),
    (Position("time", str(T0 + 1000), inclusive=True), 2),
    (Position("time", str(T0 + 2000)), 6),
    (Position("time", str(T0 + 2000), inclusive=True), 5),
    (Position("time", "9" * 19), 6),
    (Position("time", "-" + "9" * 19), 0),
]


@pytest.mark.parametrize("segment_bytes", [1 << 20, 1], ids=["one segment", "many segments"])
def test_a_position_is_located(segment_bytes: int) -> None:
    log = log_of(2, 3, 1, segment_bytes=segment_bytes)
    for position, sequence in POSITIONS:
        assert log.locate(position) == sequence, position
        assert read_from(log, sequence) == list(range(sequence, 6)), position


@pytest.mark.parametrize("segment_bytes", [1 << 20, 1], ids=["one segment", "many segments"])
def test_offsets_are_located(segment_bytes: int) -> None:
    log = log_of(2, 3, 1, segment_bytes=segment_bytes)
    offsets = offsets_of(log)
    assert offsets[0] == 0
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == log.last_offset
    for number, offset in enumerate(offsets):
        assert log.locate(Position("offset", str(offset), inclusive=True)) == number
        assert log.locate(Position("offset", str(offset))) == number + 1
        # For an offset between two events `inclusive` makes no difference.
        if offset < log.last_offset:
            assert log.locate(Position("offset", str(offset + 1), inclusive=True)) == number + 1
            assert log.locate(Position("offset", str(offset + 1))) == number + 1


def test_a_position_after_the_end_is_refused_with_the_last_one() -> None:
    log = log_of(3)
    last = log.last_offset
    refused = {
        Position("offset", str(last + 1)): f"'{last + 1}' is invalid. The last offset .* '{last}'",
        Position("sequence", "3"): "sequence number '3' is invalid. The last .* '2'",
        Position("sequence", "4", inclusive=True): "sequence number '4' is invalid",
    }
    for position, text in refused.items():
        with pytest.raises(AmqpError, match=text) as caught:
            log.locate(position)
        assert caught.value.condition == "com.microsoft:argument-error"


def test_an_empty_log() -> None:
    log = MemoryLog()
    assert log.empty
    assert (log.begin, log.next_sequence, log.last_offset, log.last_ms) == (0, 0, -1, NEVER_MS)
    assert log.read(0, 10, 10) is None
    for position in (EARLIEST, LATEST, Position("sequence", "-1"), Position("time", str(T0))):
        assert log.locate(position) == 0
    with pytest.raises(AmqpError):
        log.locate(Position("offset", "0"))
    log.expire(T0)
    assert repr(log) == "<MemoryLog 0..0 0 bytes>"


def test_a_batch_without_events_changes_nothing() -> None:
    log = log_of(2)
    before = repr(log)
    assert log.append(Batch([]), T0 + 5000) == 2
    assert repr(log) == before
    assert log.last_ms == T0


# -- reading --------------------------------------------------------------------------------------


def events_read(log: MemoryLog, count_max: int, bytes_max: int) -> int:
    run = log.read(2, count_max, bytes_max)
    return 0 if run is None else len(run.starts)


def test_a_run_ends_at_the_count_and_at_the_bytes() -> None:
    log = log_of(10)
    offsets = offsets_of(log)
    one_event, two_events, three_events = (offsets[2 + count] - offsets[2] for count in (1, 2, 3))
    assert [events_read(log, count, EVERYTHING) for count in (1, 3, 8, 99)] == [1, 3, 8, 8]
    assert [events_read(log, 99, b) for b in (0, 1, one_event, two_events - 1, two_events)] == [
        1,
        1,
        1,
        1,
        2,
    ]
    assert [events_read(log, 99, b) for b in (three_events - 1, three_events)] == [2, 3]
    assert [events_read(log, count, EVERYTHING) for count in (0, -1)] == [0, 0]
    assert log.read(10, 5, EVERYTHING) is None


def test_a_run_is_a_copy() -> None:
    log = log_of(3)
    first = log.read(0, 3, EVERYTHING)
    assert first is not None
    first.frames[:] = bytes(len(first.frames))
    log.append(batch_of([b"3"]), T0)  # while the run is held
    assert read_from(log, 0) == [0, 1, 2, 3]


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=12),
    st.integers(1, 3000),
    st.integers(1, 7),
    st.integers(1, 2000),
)
@settings(max_examples=50)
def test_no_event_is_lost_or_duplicated_between_segments(
    batches: list[int], segment_bytes: int, count_max: int, bytes_max: int
) -> None:
    log = log_of(*batches, segment_bytes=segment_bytes)
    total = sum(batches)
    for start in range(total + 1):
        assert read_from(log, start, count_max) == list(range(start, total))
    runs: list[Run] = []
    while (run := log.read(sum(len(r.starts) for r in runs), count_max, bytes_max)) is not None:
        runs.append(run)
        assert len(run.starts) <= count_max
        assert len(run.frames) <= bytes_max or len(run.starts) == 1
    assert [int(body) for run in runs for body in bodies_of(run)] == list(range(total))


# -- retention ------------------------------------------------------------------------------------


def test_retention_by_time_moves_the_beginning_within_a_segment() -> None:
    log = log_of(2, 3, 1)
    log.expire(T0 + DAY_MS)  # an event of exactly a day is kept
    assert (log.begin, read_from(log, 0)) == (0, [0, 1, 2, 3, 4, 5])
    log.expire(T0 + DAY_MS + 1)
    assert (log.begin, read_from(log, 0)) == (2, [2, 3, 4, 5])
    assert log.locate(EARLIEST) == 2
    assert log.locate(Position("sequence", "0", inclusive=True)) == 2
    assert log.locate(Position("offset", "0", inclusive=True)) == 2
    assert log.locate(Position("time", "0", inclusive=True)) == 2


@pytest.mark.parametrize("segment_bytes", [1 << 20, 1])
def test_numbers_continue_after_everything_has_expired(segment_bytes: int) -> None:
    log = log_of(2, 3, 1, segment_bytes=segment_bytes)
    last = log.last_offset
    log.expire(T0 + DAY_MS + 10_000)
    assert (log.empty, log.begin, log.size, log.segments) == (True, 6, 0, [])
    assert (log.last_offset, log.last_ms) == (last, T0 + 2000)
    assert read_from(log, 0) == []
    assert log.locate(Position("offset", str(last))) == 6
    log.append(batch_of([b"6"]), T0 + DAY_MS + 20_000)
    assert read_from(log, 0) == [6]
    assert log.last_offset > last


def test_retention_by_bytes_drops_whole_segments_and_keeps_the_newest() -> None:
    event = log_of(1).size
    log = MemoryLog(Retention(bytes_max=3 * event), segment_bytes=1)
    for number in range(10):
        log.append(batch_of([b"%d" % number]), T0)
        assert log.size <= 3 * (event + 3)
    assert read_from(log, 0)[-1] == 9
    assert len(read_from(log, 0)) in (2, 3)
    tiny = MemoryLog(Retention(bytes_max=0), segment_bytes=1)
    for number in range(3):
        tiny.append(batch_of([b"%d" % number]), T0)
        assert read_from(tiny, 0) == [number]  # the newest segment is never dropped for its size


def test_a_reader_of_expired_events_continues_at_the_beginning() -> None:
    """The next run starts at the beginning of the log, without an error."""
    log = log_of(1, 1, 1, 1, segment_bytes=1)
    run = log.read(0, 1, EVERYTHING)
    assert run is not None
    log.expire(T0 + DAY_MS + 2001)
    assert bodies_of(run) == [b"0"]  # a run that was read stays unchanged
    after = log.read(1, 10, EVERYTHING)
    assert after is not None
    assert (after.sequence, bodies_of(after)) == (3, [b"3"])


def test_infinite_retention_keeps_everything() -> None:
    log = MemoryLog(Retention(seconds=math.inf))
    log.append(batch_of([b"0"]), 0)
    log.expire(T0 * 1000)
    assert read_from(log, 0) == [0]


def test_times_stay_sorted_if_the_clock_is_set_back() -> None:
    log = MemoryLog()
    for number, ms in enumerate([T0, T0 - 5000, T0 - 1, T0 + 1]):
        log.append(batch_of([b"%d" % number]), ms)
    run = log.read(0, 10, EVERYTHING)
    assert run is not None
    times = [decode_message(m).annotations["x-opt-enqueued-time"] for m in messages(run)]
    assert times == [T0, T0, T0, T0 + 1]
    assert log.locate(Position("time", str(T0))) == 3
    assert log.locate(Position("time", str(T0), inclusive=True)) == 0
    log.expire(T0 - DAY_MS)  # retention with an older time changes nothing
    assert read_from(log, 0) == [0, 1, 2, 3]


@pytest.mark.parametrize("segment_bytes", [1, 10_000, 1 << 20])
def test_uniform_and_other_batches_share_segments(segment_bytes: int) -> None:
    """Uniform batches are written to the memory of a segment, others are copied to it."""
    log, expected = MemoryLog(segment_bytes=segment_bytes), list[bytes]()
    for size in (1, 100, 60, 3000, 2, 100, 100):
        for count in (50, 3, 41):
            bodies = [bytes([n]) * size for n in range(count)]
            payload = encode_batch(encode_message(Message(data=(body,))) for body in bodies)
            log.append(parse_payload(payload, BATCH_FORMAT), T0)
            expected += bodies
    results, sequence = list[bytes](), 0
    while (run := log.read(sequence, 70, EVERYTHING)) is not None:
        results += bodies_of(run)
        sequence += len(run.starts)
    assert results == expected
    assert log.size == log.next_offset


def test_a_segment_after_a_full_one_does_not_grow() -> None:
    log = MemoryLog(segment_bytes=100_000)
    payload = encode_batch([encode_message(Message(data=(bytes(100),)))] * 50)
    while len(log.segments) < 3:
        log.append(parse_payload(payload, BATCH_FORMAT), T0)
    assert len(log.segments[1].data) == 125_000
    assert 100_000 <= log.segments[1].end <= 125_000
