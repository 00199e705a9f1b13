"""Deliveries: addressing a run of stored frames, splitting it, and adding the metric."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from pumphouse.amqp.messages import (
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    SINGLE_FORMAT,
    Header,
    decode_message,
    encode_section,
    scan,
)
from pumphouse.amqp.types import Symbol, Timestamp
from pumphouse.events import NEVER_MS
from pumphouse.hub.annotations import METRIC_KEYS, parse_payload
from pumphouse.hub.links.delivery import (
    address_run,
    count_fitting,
    messages,
    runtime_metric,
    with_metric,
)
from pumphouse.hub.storage.memory_log import MemoryLog
from pumphouse.hub.storage.run import Run
from tests.hub.events import batch_of, bodies_of

T0 = 1_700_000_000_000
EVERYTHING = 1 << 40


def run_of(*bodies: bytes) -> Run:
    log = MemoryLog()
    log.append(batch_of(bodies), T0)
    run = log.read(0, EVERYTHING, EVERYTHING)
    assert run is not None
    return run


def frame_sizes(run: Run) -> list[int]:
    ends = [*run.starts.tolist()[1:], len(run.frames)]
    return [end - start for start, end in zip(run.starts.tolist(), ends, strict=True)]


def test_count_fitting_counts_the_events_that_fit_the_frame_limit() -> None:
    run = run_of(b"a", b"bb", b"c" * 1000, b"d")
    first, second, large, last = frame_sizes(run)
    assert count_fitting(run, EVERYTHING) == 4
    assert count_fitting(run, large) == 4
    assert count_fitting(run, large - 1) == 2
    assert count_fitting(run, second) == 2
    assert count_fitting(run, first) == 1
    assert count_fitting(run, first - 1) == 0
    assert last < large


def test_all_events_of_a_run_of_small_events_fit() -> None:
    run = run_of(b"a", b"b")
    assert count_fitting(run, len(run.frames)) == 2
    assert count_fitting(run, len(run.frames) - 1) == 2  # the run is larger, each event is not


def test_messages_are_frames_without_the_transfer() -> None:
    run = run_of(b"a", b"b" * 400, b"")
    assert [decode_message(message).data for message in messages(run)] == [
        (b"a",),
        (b"b" * 400,),
        (b"",),
    ]


def test_addressing_changes_three_numbers_only() -> None:
    for channel in (0, 1, 255, 256, 65535):
        for handle in (0, 1, 256, 65536, 2**24, 2**32 - 1):
            check_addressing(channel, handle)


def check_addressing(channel: int, handle: int) -> None:
    before = run_of(b"a", b"b")
    plain = bytes(before.frames)
    addressed = bytes(address_run(before, channel, handle, 2**32 - 1))
    for number, start in enumerate(before.starts.tolist()):
        frame = addressed[start:]
        assert frame[6:8] == channel.to_bytes(2, "big"), (channel, handle)
        assert frame[15:19] == handle.to_bytes(4, "big"), (channel, handle)
        assert frame[20:24] == ((2**32 - 1 + number) % 2**32).to_bytes(4, "big")
    expected = {
        start + at
        for start in before.starts.tolist()
        for at in (6, 7, 15, 16, 17, 18, 20, 21, 22, 23)
    }
    changed = {at for at, (a, b) in enumerate(zip(plain, addressed, strict=True)) if a != b}
    assert changed <= expected, (channel, handle)


@pytest.mark.parametrize("with_header", [True, False])
def test_the_metric_is_inserted_after_the_header(with_header: bool) -> None:
    header = encode_section(HEADER, [True, None, None, None, None]) if with_header else b""
    log = MemoryLog()
    log.append(parse_payload(header + encode_section(DATA, b"x"), SINGLE_FORMAT), T0)
    run = log.read(0, 1, EVERYTHING)
    assert run is not None
    (message,) = messages(run)
    message_with_metric = with_metric(message, runtime_metric(log, T0 + 5))
    codes = [code for code, *_ in scan(message_with_metric, 0, len(message_with_metric))]
    expected = [DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, DATA]
    assert codes == ([HEADER] if with_header else []) + expected
    read = decode_message(message_with_metric)
    assert read.header == (Header(durable=True) if with_header else None)
    assert read.delivery_annotations == {
        Symbol("last_enqueued_sequence_number"): 0,
        Symbol("last_enqueued_offset"): "0",
        Symbol("last_enqueued_time_utc"): T0,
        Symbol("runtime_info_retrieval_time_utc"): T0 + 5,
    }
    kinds = {type(value) for value in read.delivery_annotations.values()}
    assert kinds == {int, str, Timestamp}
    assert with_metric(message, b"") == message


def test_the_metric_is_added_to_the_delivery_annotations_of_the_producer() -> None:
    header = encode_section(HEADER, [True, None, None, None, None])
    own = {Symbol(f"way-{number}"): "x" * 50 for number in range(3)}
    payload = header + encode_section(DELIVERY_ANNOTATIONS, own) + encode_section(DATA, b"x")
    log = MemoryLog()
    log.append(parse_payload(payload, SINGLE_FORMAT), T0)
    run = log.read(0, 1, EVERYTHING)
    assert run is not None
    (message,) = messages(run)
    merged = with_metric(message, runtime_metric(log, T0 + 5))
    codes = [code for code, *_ in scan(merged, 0, len(merged))]
    assert codes == [HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, DATA]
    annotations = decode_message(merged).delivery_annotations
    assert annotations.keys() == METRIC_KEYS | own.keys()
    assert annotations["last_enqueued_sequence_number"] == 0


def annotated(count: int) -> bytes:
    """A stored message with this many delivery annotations."""
    own = {Symbol(f"way-{number}"): None for number in range(count)}
    payload = encode_section(DELIVERY_ANNOTATIONS, own) + encode_section(DATA, b"x")
    log = MemoryLog()
    log.append(parse_payload(payload, SINGLE_FORMAT), T0)
    run = log.read(0, 1, EVERYTHING)
    assert run is not None
    (message,) = messages(run)
    return message


def calls_of(function: Callable[[], object]) -> int:
    """The number of functions, of Python and of C, that a call makes."""
    calls: list[str] = []
    sys.setprofile(lambda frame, event, arg: calls.append(event) if "call" in event else None)
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(calls)


def test_adding_the_metric_does_not_decode_the_annotations_of_the_producer() -> None:
    metric = runtime_metric(MemoryLog(), T0)
    small, large = annotated(60), annotated(1000)
    assert len(decode_message(with_metric(large, metric)).delivery_annotations) == 1004
    assert calls_of(lambda: with_metric(large, metric)) == calls_of(
        lambda: with_metric(small, metric)
    )


def test_the_metric_describes_the_end_of_the_partition() -> None:
    log = MemoryLog()
    for number in range(3):
        log.append(batch_of([b"%d" % number]), T0 + number)
    message_with_metric = decode_message(
        with_metric(b"\x00\x53\x77\x40", runtime_metric(log, T0 + 9))
    )
    assert message_with_metric.delivery_annotations["last_enqueued_sequence_number"] == 2
    assert message_with_metric.delivery_annotations["last_enqueued_offset"] == str(log.last_offset)
    assert message_with_metric.delivery_annotations["last_enqueued_time_utc"] == T0 + 2


def test_the_metric_of_an_empty_partition() -> None:
    message_with_metric = decode_message(
        with_metric(b"\x00\x53\x77\x40", runtime_metric(MemoryLog(), T0))
    )
    assert message_with_metric.delivery_annotations["last_enqueued_sequence_number"] == -1
    assert message_with_metric.delivery_annotations["last_enqueued_offset"] == "-1"
    assert message_with_metric.delivery_annotations["last_enqueued_time_utc"] == NEVER_MS


def test_every_reader_gets_its_own_copy_of_a_run() -> None:
    """The stored frames keep their zeros."""
    log = MemoryLog()
    log.append(batch_of([b"a", b"b"]), T0)
    copies = []
    for _ in range(2):
        run = log.read(0, 2, EVERYTHING)
        assert run is not None
        copies.append(bytes(address_run(run, 65535, 2**32 - 1, 77)))
    assert copies[0] == copies[1]
    fresh = log.read(0, 2, EVERYTHING)
    assert fresh is not None
    assert bytes(address_run(fresh, 0, 0, 0)) != copies[0]
    assert bodies_of(fresh) == [b"a", b"b"]
