"""Columns out of runs of frames: read together or alone, they must say the same."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumphouse.amqp.codec import encode
from pumphouse.amqp.columnar.buffer_view import BODY, SLACK, BufferView, ValueId
from pumphouse.amqp.columnar.columns import (
    GUESS_FRAMES,
    LAYOUTS_MAX,
    SCAN_FRAMES,
    ColumnReader,
    Columns,
    FrameIndex,
)
from pumphouse.amqp.columnar.layouts import learn_layout
from pumphouse.amqp.frames import EMPTY_FRAME, HEAD, encode_frame
from pumphouse.amqp.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Message,
    Properties,
    encode_message,
)
from pumphouse.amqp.performatives import Detach, Error, Flow
from pumphouse.amqp.types import Symbol, Timestamp
from pumphouse.errors import MalformedBytes, RemoteProtocolError
from tests.amqp.runs import (
    CHANNEL,
    FRAME_MAX,
    HANDLE,
    Run,
    compound,
    indexed,
    runs,
    section,
    transfer,
    values_of,
)

TOGETHER, ALONE = 0, 1 << 30  # how many rows may be decoded alone before a layout is tried


def read(data: bytearray, singles_max: int = TOGETHER) -> Columns:
    index = indexed(data)
    return ColumnReader(CHANNEL, HANDLE, singles_max=singles_max).read(
        BufferView(data), index.starts, index.ends
    )


def framed(payloads: list[bytes], style: str = "fixed", **fields: Any) -> bytearray:
    frames = [transfer(style, at, payload, **fields) for at, payload in enumerate(payloads)]
    return bytearray(b"".join(frames)) + bytes(SLACK)


def event(number: int, **fields: Any) -> bytes:
    notes = {
        Symbol("x-opt-sequence-number"): number,
        Symbol("x-opt-offset"): str(number * 100),
        Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_000 + number),
    }
    fields = {"data": (b"body %d" % number,), "application": {"n": number}, **fields}
    return encode_message(Message(annotations=notes, **fields))


# --- Together and alone --------------------------------------------------------------------------


@given(runs())
def test_both_ways_say_the_same(run: Run) -> None:
    together, alone = read(run.data), read(run.data, ALONE)
    assert values_of(together) == values_of(alone)
    assert len(together) == len(alone) == len(run.payloads)
    assert not alone.groups
    for columns in (together, alone):
        assert columns.other_frames == run.other_frames
        assert columns.frames == len(run.frames) - len(run.others)
        assert columns.unsettled in ([], list(range(len(run.payloads))))
    assert together.unsettled == alone.unsettled


@given(runs(rows=8), st.data())
@settings(max_examples=300)
def test_both_ways_refuse_the_same(run: Run, data: st.DataObject) -> None:
    """A byte is changed somewhere: what one way cannot read, the other cannot either."""
    damaged = run.data
    ends = np.cumsum([len(frame) for frame in run.frames]).tolist()
    # A heartbeat has nothing to damage, and most of a body is of no interest.
    number = data.draw(st.sampled_from([n for n, one in enumerate(run.frames) if len(one) > 8]))
    size = len(run.frames[number])
    place = ends[number] - size + data.draw(st.integers(8, min(size, 300) - 1))
    damaged[place] = data.draw(st.integers(0, 255))
    outcomes = []
    for way in (TOGETHER, ALONE):
        try:
            outcomes.append(values_of(read(damaged, way)))
        except RemoteProtocolError:
            outcomes.append([])
    assert outcomes[0] == outcomes[1]


def test_rows_alike_are_read_together() -> None:
    columns = read(framed([event(n) for n in range(100)]))
    assert repr(columns) == "<Columns 100 rows | 1 groups, 0 singles>"
    [group] = columns.groups
    assert columns.order() is None
    sequence = group.values[ValueId(MESSAGE_ANNOTATIONS, "x-opt-sequence-number")]
    # Below 128 a long has a short form: one layout for each.
    assert columns.view.integers(sequence).tolist() == list(range(100))
    numbers = group.values[ValueId(APPLICATION_PROPERTIES, "n")]
    assert columns.view.integers(numbers).tolist() == list(range(100))
    body = group.values[BODY]
    starts, ends = body.starts.tolist(), (body.starts + body.lengths).tolist()
    found = [bytes(columns.view.data[a:b]) for a, b in zip(starts, ends, strict=True)]
    assert found == [b"body %d" % n for n in range(100)]


def test_an_order_is_found_again() -> None:
    payloads = [event(n, application={"a" if n % 2 else "b": n}) for n in range(200, 240)]
    columns = read(framed(payloads))
    assert len(columns.groups) == 2
    order = columns.order()
    assert order is not None
    rows = np.concatenate([group.rows for group in columns.groups])
    assert rows[order].tolist() == list(range(40))


def test_a_layout_is_learned_once() -> None:
    reader = ColumnReader(CHANNEL, HANDLE)
    data = framed([event(n) for n in range(200, 240)])
    for _ in range(3):
        index = indexed(data)
        assert len(reader.read(BufferView(data), index.starts, index.ends).groups) == 1
    assert len(reader.layouts) == 1
    assert "x-opt-offset" in repr(reader.layouts[0])


def test_layouts_are_forgotten() -> None:
    reader = ColumnReader(CHANNEL, HANDLE, singles_max=TOGETHER)
    for number in range(3 * LAYOUTS_MAX):
        data = framed([event(n, application={f"name {number}": n}) for n in range(200, 203)])
        index = indexed(data)
        assert len(reader.read(BufferView(data), index.starts, index.ends).groups) == 1
    assert len(reader.layouts) == LAYOUTS_MAX


def test_a_few_rows_are_not_worth_a_layout() -> None:
    reader = ColumnReader(CHANNEL, HANDLE)
    data = framed([event(n) for n in range(3)])
    index = indexed(data)
    assert repr(reader.read(BufferView(data), index.starts, index.ends)) == (
        "<Columns 3 rows | 0 groups, 3 singles>"
    )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"data": (b"one", b"two")}, "two data sections"),
        ({"data": (), "value": "text"}, "a value"),
        ({"data": (), "sequence": ([1, 2],)}, "a sequence"),
        ({"footer": {"a": 1}}, "a footer"),
        ({"application": {"a": [1, 2]}}, "a list as a property"),
        ({"application": {1: "a"}}, "a number as a key"),
    ],
)
def test_what_only_the_decoder_reads(change: dict[str, Any], what: str) -> None:
    payloads = [event(n) for n in range(200, 220)]
    payloads[7] = event(7, **change)
    columns = read(framed(payloads))
    assert list(columns.singles) == [7], what
    assert [len(group.rows) for group in columns.groups] == [19]


def test_an_empty_run() -> None:
    columns = read(bytearray(SLACK))
    assert len(columns) == 0
    assert columns.order() is None


def test_a_buffer_without_slack_is_refused() -> None:
    data = framed([event(1)])[:-SLACK]
    index = FrameIndex(FRAME_MAX)
    index.extend(BufferView(data), len(data))
    with pytest.raises(ValueError, match="16 bytes after its last frame"):
        ColumnReader(CHANNEL, HANDLE).read(BufferView(data), index.starts, index.ends)


# --- What must not pass for a row ----------------------------------------------------------------


def rows_of(frames: list[bytes], way: int = TOGETHER) -> Columns:
    return read(bytearray(b"".join(frames)) + bytes(SLACK), way)


@pytest.mark.parametrize("way", [TOGETHER, ALONE])
def test_a_part_that_looks_like_a_message(way: int) -> None:
    """A body may hold messages, and a frame may begin where one of them does."""
    inner = event(900)
    outer = event(901, data=(inner * 50,))
    cut = outer.index(inner)
    pieces = [outer[:cut], *[inner] * 49, outer[cut + 49 * len(inner) :]]
    assert b"".join(pieces) == outer
    frames = [transfer("fixed", n, event(n)) for n in range(200, 220)]
    for at, piece in enumerate(pieces):
        frames.append(transfer("fixed", 220, piece, more=at < len(pieces) - 1))
    frames += [transfer("fixed", n, event(n)) for n in range(221, 240)]
    columns = rows_of(frames, way)
    assert len(columns) == 40
    assert columns.frames == len(frames)
    assert len(values_of(columns)[20][BODY]) > 50 * len(inner)


@pytest.mark.parametrize("way", [TOGETHER, ALONE])
def test_the_first_part_of_a_delivery_waits_for_the_rest(way: int) -> None:
    frames = [transfer("fixed", n, event(n)) for n in range(200, 220)]
    payload = event(220)
    frames += [transfer("fixed", 220, payload[:50], more=True)]
    columns = rows_of(frames, way)
    assert (len(columns), columns.frames) == (20, 20)
    # Whatever follows it on the link is a part of it, also if it looks like more than that.
    stranger = transfer("compact", 221, event(221), handle=HANDLE + 1)
    columns = rows_of([*frames, stranger], way)
    assert (len(columns), columns.frames, columns.other_frames) == (20, 20, [])


@pytest.mark.parametrize("way", [TOGETHER, ALONE])
def test_a_delivery_in_two_parts(way: int) -> None:
    payload = event(220)
    frames = [transfer("fixed", n, event(n)) for n in range(200, 220)]
    frames += [
        transfer("fixed", 220, payload[:50], more=True),
        transfer("fixed", 220, payload[50:]),
    ]
    columns = rows_of(frames, way)
    assert (len(columns), columns.frames) == (21, 22)


def test_an_aborted_delivery_is_no_row_but_costs_credit() -> None:
    frames = [
        transfer("compact", 0, event(0)),
        transfer("compact", 1, event(1)[:20], more=True),
        transfer("compact", 1, b"", aborted=True),
        transfer("compact", 2, event(2)),
    ]
    columns = rows_of(frames)
    assert (len(columns), columns.aborted, columns.frames) == (2, 1, 4)


def test_a_delivery_that_changes_its_number_is_refused() -> None:
    frames = [
        transfer("compact", 1, event(1)[:20], more=True),
        transfer("compact", 2, event(1)[20:]),
    ]
    with pytest.raises(RemoteProtocolError, match="delivery-id is 2, expected 1"):
        rows_of(frames)


def test_transfers_of_other_links_are_handed_back() -> None:
    stranger = transfer("compact", 5, event(5), handle=HANDLE + 1)
    frames = [transfer("compact", n, event(n)) for n in range(200, 220)]
    columns = rows_of([*frames[:10], stranger, *frames[10:]])
    assert columns.other_frames == [stranger]
    assert len(columns) == 20


@pytest.mark.parametrize("way", [TOGETHER, ALONE])
@pytest.mark.parametrize("code", [MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES])
@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (b"\x56\x01", b"\x56\x02"),  # neither true nor false
        (b"\x73\x00\x00\x00\x41", b"\x73\x00\x11\x00\x00"),  # beyond the last character
        (b"\xa3\x01s", b"\xa3\x01\xff"),  # no ASCII
        (b"\xa3\x02ss", b"\xa3\x02\xc3\xa9"),  # neither, though it is UTF-8
        (b"\xb3\x00\x00\x00\x01s", b"\xb3\x00\x00\x01\x2c" + b"s" * 299 + b"\xe9"),
        (b"\xc1\x03\x02\x40\x40", b"\xc1\x03\x02\x40"),  # a map that ends too soon
        (b"\xb1\x00\x00\x00\x01s", b"\xb1\xff\xff\xff\xffs"),  # beyond all bounds
        (b"\xa1\x01s", b"\xa1\xffs"),
        (b"\x81" + bytes(8), b"\x8f" + bytes(8)),  # no type at all
    ],
)
def test_values_that_are_none(good: bytes, bad: bytes, code: int, way: int) -> None:
    def message(value: bytes) -> bytes:
        entries = compound(0xC1, [encode(Symbol("k")), value], False)
        return section(code, entries) + section(DATA, encode(b"x"))

    assert len(read(framed([message(good)] * 20), way)) == 20
    with pytest.raises(MalformedBytes):
        read(framed([*[message(good)] * 20, message(bad)]), way)


@pytest.mark.parametrize("way", [TOGETHER, ALONE])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_message_must_fill_its_frame(change: int, way: int) -> None:
    frame = bytearray(transfer("fixed", 1, event(200)))
    frame[frame.index(b"\x00\x53\x75\xa0") + 4] += change
    with pytest.raises(MalformedBytes):
        rows_of([*[transfer("fixed", n, event(200)) for n in range(20)], bytes(frame)], way)


@pytest.mark.parametrize("way", [TOGETHER, ALONE])
def test_text_is_checked_by_those_who_want_it(way: int) -> None:
    data = framed([event(200)] * 20)
    at = data.index(b"\xa1\x0520000") + 2
    data[at] = 0xFF
    with pytest.raises(MalformedBytes):
        values_of(read(data, way))


@pytest.mark.parametrize("place", range(40))
def test_near_the_end_of_the_buffer(place: int) -> None:
    """Words are read past the end of a frame, and what stands there must not matter."""
    payloads = [
        event(n, properties=Properties(content_type="text/plain"), data=(b"x" * place,))
        for n in range(200, 220)
    ]
    data = framed(payloads)
    data[-SLACK:] = b"\xff" * SLACK
    assert len(read(data).groups) == 1
    assert values_of(read(data)) == values_of(read(data, ALONE))


def test_sizes_of_maps_must_be_right() -> None:
    frame = bytearray(transfer("fixed", 1, event(200)))
    at = frame.index(b"\x00\x53\x74\xc1") + 4
    frame[at] += 1
    frames = [transfer("fixed", n, event(200)) for n in range(20)]
    with pytest.raises(MalformedBytes):
        rows_of([*frames, bytes(frame)])


def test_a_symbol_stays_a_symbol() -> None:
    """Text that is not in the alphabet of its type is refused; in a string it is fine."""
    for good in ("text/plain", "a" * 300):
        properties = Properties(content_type=Symbol(good))
        data = framed([event(n, properties=properties) for n in range(200, 220)])
        place = ValueId(PROPERTIES, "content-type")
        assert {row[place] for row in values_of(read(data))} == {repr(Symbol(good))}


@pytest.mark.parametrize("way", [TOGETHER, ALONE])
def test_a_string_in_place_of_a_symbol_must_be_ascii(way: int) -> None:
    def message(said: str) -> bytes:
        fields = [b"\x40"] * 6 + [encode(said)]
        return section(PROPERTIES, compound(0xC0, fields, False)) + section(DATA, encode(b"x"))

    assert len(read(framed([message("text/plain")] * 20), way)) == 20
    with pytest.raises(MalformedBytes, match="content-type"):
        read(framed([*[message("text/plain")] * 20, message("täxt/plain")]), way)


# --- Learning ------------------------------------------------------------------------------------


def test_a_layout_says_what_it_has() -> None:
    layout = learn_layout(transfer("fixed", 1, event(200, properties=Properties(message_id="m"))))
    assert repr(layout) == (
        "<Layout x-opt-sequence-number x-opt-offset x-opt-enqueued-time message-id n body>"
    )


def test_nothing_is_learned_from_what_is_wrong() -> None:
    with pytest.raises(MalformedBytes):
        learn_layout(transfer("fixed", 1, event(200) + b"\x00"))
    assert learn_layout(transfer("fixed", 1, event(200), more=True)) is None


# --- Finding frames ------------------------------------------------------------------------------

LENGTHS = st.lists(
    st.tuples(st.integers(60, 64), st.integers(1, 3 * SCAN_FRAMES)), min_size=1, max_size=6
)


@given(LENGTHS, st.lists(st.integers(1, 9000), max_size=8), st.booleans())
def test_frames_are_found_however_they_arrive(
    lengths: list[tuple[int, int]], steps: list[int], others: bool
) -> None:
    frames, expected, wanted = [], [], []
    at = 0
    for size, count in lengths:
        for number in range(count):
            frame = transfer("fixed", number, b"\0" * (size - 43))
            if others and number % 50 == 7:
                frame = EMPTY_FRAME
                wanted.append(frame)
            else:
                expected.append((at, at + len(frame)))
            frames.append(frame)
            at += len(frame)
    data = bytearray(b"".join(frames)) + bytes(SLACK)
    index, found, end = FrameIndex(FRAME_MAX), [], 0
    for step in [*steps, at]:
        end = min(at, end + step)
        found += index.extend(BufferView(data), end)
        assert index.end <= end
    assert list(zip(index.starts.tolist(), index.ends.tolist(), strict=True)) == expected
    assert found == wanted
    assert (len(index), index.end) == (len(expected), at)


def test_what_has_been_read_is_forgotten() -> None:
    data = framed([event(n) for n in range(30)])
    index = indexed(data)
    starts = index.starts.copy()
    until = index.drop(10)
    assert until == starts[10]
    assert index.starts.tolist() == (starts[10:] - until).tolist()
    assert index.drop(20) == len(data) - SLACK - until
    assert repr(index) == "<FrameIndex 0 transfers in 0 bytes>"


def test_other_frames_come_out_at_once() -> None:
    detach = encode_frame(Detach(handle=1, error=Error(condition="amqp:link:stolen")), CHANNEL)
    flow = Flow(next_incoming_id=0, incoming_window=1, next_outgoing_id=0, outgoing_window=1)
    frames = [transfer("fixed", 0, event(0)), EMPTY_FRAME, encode_frame(flow, CHANNEL), detach]
    data = bytearray(b"".join(frames)) + bytes(SLACK)
    index = FrameIndex(FRAME_MAX)
    assert index.extend(BufferView(data), len(data) - SLACK) == frames[1:]
    assert index.starts.tolist() == [0]


def test_a_transfer_in_another_spelling_is_a_transfer() -> None:
    frame = transfer("fixed", 0, event(0))
    long = frame.replace(b"\x00\x53\x14", b"\x00\x80" + bytes(7) + b"\x14", 1)
    far = frame[4:5].replace(b"\x02", b"\x03") + frame[5:8] + b"more" + frame[8:]
    for other in (long, struct.pack(">I", 0) + far):
        spelled = struct.pack(">I", len(other)) + other[4:]
        columns = rows_of([spelled] * 20)
        assert repr(columns) == "<Columns 20 rows | 1 groups, 0 singles>"


@pytest.mark.parametrize("size", [0, 7, FRAME_MAX + 1, 0xFFFFFFFF])
@pytest.mark.parametrize("before", [0, 1, GUESS_FRAMES, 1000])
def test_an_impossible_size_is_refused(size: int, before: int) -> None:
    data = framed([b"\0" * 100] * before)[:-SLACK]
    data += HEAD.pack(size, 2, 0, CHANNEL) + bytes(SLACK)
    with pytest.raises(RemoteProtocolError, match=f"frame of {size} bytes"):
        FrameIndex(FRAME_MAX).extend(BufferView(data), len(data) - SLACK)


def test_a_size_beyond_the_limit_is_refused_when_all_of_it_is_there() -> None:
    data = framed([b"\0" * 100, b"\0" * 3000, b"\0" * 100])
    with pytest.raises(RemoteProtocolError, match="from 8 to 2000 are allowed"):
        FrameIndex(2000).extend(BufferView(data), len(data) - SLACK)


@pytest.mark.parametrize("head", [b"\x02\x01", b"\x01\x00", b"\x90\x00"])
def test_a_frame_that_is_none_of_amqp_is_refused(head: bytes) -> None:
    frame = transfer("fixed", 0, event(0))
    data = bytearray(frame[:4] + head + frame[6:]) + bytes(SLACK)
    with pytest.raises(RemoteProtocolError, match="with its body at byte"):
        FrameIndex(FRAME_MAX).extend(BufferView(data), len(data) - SLACK)


def test_random_sizes() -> None:
    """The usual case of a hub with events of all sizes, in pieces of any size."""
    chance = random.Random(5)
    payloads = [b"\0" * chance.randrange(200) for _ in range(5000)]
    data = framed(payloads)
    index, end = FrameIndex(FRAME_MAX), 0
    while end < len(data) - SLACK:
        end = min(len(data) - SLACK, end + chance.randrange(1, 50_000))
        assert index.extend(BufferView(data), end) == []
    sizes = (index.ends - index.starts).tolist()
    assert sizes == [len(transfer("fixed", 0, payload)) for payload in payloads]


def test_a_heartbeat_where_a_transfer_was_is_none() -> None:
    """What was in the buffer before lies behind it still, and looks like a transfer's beginning."""
    heartbeat = bytes.fromhex("0000000802000000")
    stale = bytes.fromhex("005314d000000010")
    index = FrameIndex(FRAME_MAX)
    others = index.extend(BufferView(bytearray(heartbeat + stale + bytes(SLACK))), len(heartbeat))
    assert (others, len(index)) == ([heartbeat], 0)
