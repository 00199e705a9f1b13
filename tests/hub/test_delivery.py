"""From the log to a link: what goes out as it is stored, what is taken apart, what is added."""

from __future__ import annotations

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
from pumphouse.hub.annotations import parse_payload
from pumphouse.hub.links.delivery import (
    address_run,
    messages,
    runtime_metric,
    sendable_whole,
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


def test_how_many_fit_as_they_are() -> None:
    run = run_of(b"a", b"bb", b"c" * 1000, b"d")
    first, second, large, last = frame_sizes(run)
    assert sendable_whole(run, EVERYTHING) == 4
    assert sendable_whole(run, large) == 4
    assert sendable_whole(run, large - 1) == 2
    assert sendable_whole(run, second) == 2
    assert sendable_whole(run, first) == 1
    assert sendable_whole(run, first - 1) == 0
    assert last < large


def test_a_run_that_is_small_as_a_whole_fits() -> None:
    run = run_of(b"a", b"b")
    assert sendable_whole(run, len(run.frames)) == 2
    assert sendable_whole(run, len(run.frames) - 1) == 2  # the whole is larger, each of them is not


def test_messages_are_frames_without_their_heads() -> None:
    run = run_of(b"a", b"b" * 400, b"")
    assert [decode_message(message).data for message in messages(run)] == [
        (b"a",),
        (b"b" * 400,),
        (b"",),
    ]


@pytest.mark.parametrize("channel", [0, 1, 255, 256, 65535])
@pytest.mark.parametrize("handle", [0, 1, 256, 65536, 2**24, 2**32 - 1])
def test_patching_touches_three_numbers_and_nothing_else(channel: int, handle: int) -> None:
    before = run_of(b"a", b"b")
    plain = bytes(before.frames)
    patched = bytes(address_run(before, channel, handle, 2**32 - 1))
    for number, start in enumerate(before.starts.tolist()):
        frame = patched[start:]
        assert frame[6:8] == channel.to_bytes(2, "big")
        assert frame[15:19] == handle.to_bytes(4, "big")
        assert frame[20:24] == ((2**32 - 1 + number) % 2**32).to_bytes(4, "big")
    touched = {
        start + at
        for start in before.starts.tolist()
        for at in (6, 7, 15, 16, 17, 18, 20, 21, 22, 23)
    }
    changed = {at for at, (a, b) in enumerate(zip(plain, patched, strict=True)) if a != b}
    assert changed <= touched


@pytest.mark.parametrize("with_header", [True, False])
def test_the_metric_stands_behind_the_header(with_header: bool) -> None:
    header = encode_section(HEADER, [True, None, None, None, None]) if with_header else b""
    log = MemoryLog()
    log.append(parse_payload(header + encode_section(DATA, b"x"), SINGLE_FORMAT), T0)
    run = log.read(0, 1, EVERYTHING)
    assert run is not None
    (message,) = messages(run)
    told = with_metric(message, runtime_metric(log, T0 + 5))
    codes = [code for code, *_ in scan(told, 0, len(told))]
    expected = [DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, DATA]
    assert codes == ([HEADER] if with_header else []) + expected
    read = decode_message(told)
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


def test_the_metric_tells_of_the_end_and_not_of_the_event() -> None:
    log = MemoryLog()
    for number in range(3):
        log.append(batch_of([b"%d" % number]), T0 + number)
    told = decode_message(with_metric(b"\x00\x53\x77\x40", runtime_metric(log, T0 + 9)))
    assert told.delivery_annotations["last_enqueued_sequence_number"] == 2
    assert told.delivery_annotations["last_enqueued_offset"] == str(log.last_offset)
    assert told.delivery_annotations["last_enqueued_time_utc"] == T0 + 2


def test_the_metric_of_an_empty_partition() -> None:
    told = decode_message(with_metric(b"\x00\x53\x77\x40", runtime_metric(MemoryLog(), T0)))
    assert told.delivery_annotations["last_enqueued_sequence_number"] == -1
    assert told.delivery_annotations["last_enqueued_offset"] == "-1"
    assert told.delivery_annotations["last_enqueued_time_utc"] == NEVER_MS


def test_a_run_may_be_read_and_patched_twice() -> None:
    """Each reader patches a copy of its own: the stored frames stay zero."""
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
