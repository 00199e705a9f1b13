"""ColumnReader: groups of rows and single messages give the same columns."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumphouse.amqp.codec import encode
from pumphouse.amqp.columnar.buffer_view import BODY, SLACK, BufferView, ValueId
from pumphouse.amqp.columnar.columns import (
    LAYOUTS_MAX,
    ColumnReader,
    Columns,
    FrameIndex,
)
from pumphouse.amqp.columnar.layouts import learn_layout
from pumphouse.amqp.columnar.patterns import learn_pattern
from pumphouse.amqp.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Message,
    Properties,
    encode_message,
)
from pumphouse.amqp.types import Symbol, Timestamp
from pumphouse.errors import MalformedBytes, RemoteProtocolError
from tests.amqp.columnar.frame_runs import (
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
from tests.growth import assert_linear

GROUPED, SINGLE = 0, 1 << 30  # rows that are decoded without trying a layout


def read(data: bytearray, singles_max: int = GROUPED) -> Columns:
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


# --- Groups and single messages ------------------------------------------------------------------


@given(runs())
def test_groups_and_single_messages_give_the_same_rows(run: Run) -> None:
    together, alone = read(run.data), read(run.data, SINGLE)
    assert values_of(together) == values_of(alone)
    assert len(together) == len(alone) == len(run.payloads)
    assert not alone.groups
    for columns in (together, alone):
        assert columns.other_frames == run.other_frames
        assert columns.frames == len(run.frames) - len(run.others)
        assert columns.unsettled in ([], list(range(len(run.payloads))))
    assert together.unsettled == alone.unsettled


@given(runs(rows=8), st.integers(0, 2**32))
@settings(max_examples=60)
def test_groups_and_single_messages_refuse_the_same_bytes(run: Run, seed: int) -> None:
    """One byte is changed. Both ways of reading refuse the same frames.

    Ten changes per run, because drawing a run costs far more than reading it.
    """
    rng = Random(seed)
    ends = np.cumsum([len(frame) for frame in run.frames]).tolist()
    # A heartbeat has no body, and changes late in a body have no effect.
    bodies = [number for number, frame in enumerate(run.frames) if len(frame) > 8]
    for _ in range(10):
        damaged, number = bytearray(run.data), rng.choice(bodies)
        size = len(run.frames[number])
        position = ends[number] - size + rng.randrange(8, min(size, 300))
        damaged[position] = rng.randrange(256)
        change = f"byte {position} is {damaged[position]:#x}"
        assert outcome_of(damaged, GROUPED) == outcome_of(damaged, SINGLE), change


def outcome_of(data: bytearray, singles_max: int) -> list[Any]:
    try:
        return values_of(read(data, singles_max))
    except RemoteProtocolError:
        return []


def test_rows_with_one_layout_form_one_group() -> None:
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
    bodies = [bytes(columns.view.data[a:b]) for a, b in zip(starts, ends, strict=True)]
    assert bodies == [b"body %d" % n for n in range(100)]


def test_rows_of_two_layouts_can_be_sorted_by_arrival() -> None:
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


def test_the_number_of_layouts_is_limited() -> None:
    reader = ColumnReader(CHANNEL, HANDLE, singles_max=GROUPED)
    for number in range(3 * LAYOUTS_MAX):
        data = framed([event(n, application={f"name {number}": n}) for n in range(200, 203)])
        index = indexed(data)
        assert len(reader.read(BufferView(data), index.starts, index.ends).groups) == 1
    assert len(reader.layouts) == LAYOUTS_MAX


def test_few_rows_are_decoded_one_by_one() -> None:
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
def test_a_message_that_only_the_decoder_reads_has_no_layout(
    change: dict[str, Any], what: str
) -> None:
    payloads = [event(n) for n in range(200, 220)]
    payloads[7] = event(7, **change)
    columns = read(framed(payloads))
    assert list(columns.singles) == [7], what
    assert [len(group.rows) for group in columns.groups] == [19]


def test_no_frames_give_no_rows() -> None:
    columns = read(bytearray(SLACK))
    assert len(columns) == 0
    assert columns.order() is None


def test_a_buffer_without_slack_is_refused() -> None:
    data = framed([event(1)])[:-SLACK]
    index = FrameIndex(FRAME_MAX)
    index.extend(BufferView(data), len(data))
    with pytest.raises(ValueError, match="16 bytes after its last frame"):
        ColumnReader(CHANNEL, HANDLE).read(BufferView(data), index.starts, index.ends)


# --- Frames that are not rows --------------------------------------------------------------------


def rows_of(frames: list[bytes], singles_max: int = GROUPED) -> Columns:
    return read(bytearray(b"".join(frames)) + bytes(SLACK), singles_max)


@pytest.mark.parametrize("singles_max", [GROUPED, SINGLE])
def test_a_later_frame_that_looks_like_a_message_is_not_a_row(singles_max: int) -> None:
    """A body may contain messages, and a frame may begin where one of them does."""
    inner = event(900)
    outer = event(901, data=(inner * 50,))
    cut = outer.index(inner)
    pieces = [outer[:cut], *[inner] * 49, outer[cut + 49 * len(inner) :]]
    assert b"".join(pieces) == outer
    frames = [transfer("fixed", n, event(n)) for n in range(200, 220)]
    for at, piece in enumerate(pieces):
        frames.append(transfer("fixed", 220, piece, more=at < len(pieces) - 1))
    frames += [transfer("fixed", n, event(n)) for n in range(221, 240)]
    columns = rows_of(frames, singles_max)
    assert len(columns) == 40
    assert columns.frames == len(frames)
    assert len(values_of(columns)[20][BODY]) > 50 * len(inner)


@pytest.mark.parametrize("singles_max", [GROUPED, SINGLE])
def test_an_incomplete_delivery_is_not_read(singles_max: int) -> None:
    frames = [transfer("fixed", n, event(n)) for n in range(200, 220)]
    payload = event(220)
    frames += [transfer("fixed", 220, payload[:50], more=True)]
    columns = rows_of(frames, singles_max)
    assert (len(columns), columns.frames) == (20, 20)
    # All following frames of the link belong to it, also if they look like messages.
    stranger = transfer("compact", 221, event(221), handle=HANDLE + 1)
    columns = rows_of([*frames, stranger], singles_max)
    assert (len(columns), columns.frames, columns.other_frames) == (20, 20, [])


@pytest.mark.parametrize("singles_max", [GROUPED, SINGLE])
def test_a_delivery_of_two_frames_is_one_row(singles_max: int) -> None:
    payload = event(220)
    frames = [transfer("fixed", n, event(n)) for n in range(200, 220)]
    frames += [
        transfer("fixed", 220, payload[:50], more=True),
        transfer("fixed", 220, payload[50:]),
    ]
    columns = rows_of(frames, singles_max)
    assert (len(columns), columns.frames) == (21, 22)


def test_an_aborted_delivery_uses_credit_and_is_not_a_row() -> None:
    frames = [
        transfer("compact", 0, event(0)),
        transfer("compact", 1, event(1)[:20], more=True),
        transfer("compact", 1, b"", aborted=True),
        transfer("compact", 2, event(2)),
    ]
    columns = rows_of(frames)
    assert (len(columns), columns.aborted, columns.frames) == (2, 1, 4)


def test_a_delivery_that_changes_its_id_is_refused() -> None:
    frames = [
        transfer("compact", 1, event(1)[:20], more=True),
        transfer("compact", 2, event(1)[20:]),
    ]
    with pytest.raises(RemoteProtocolError, match="delivery-id is 2, expected 1"):
        rows_of(frames)


def test_transfers_of_other_links_are_returned() -> None:
    stranger = transfer("compact", 5, event(5), handle=HANDLE + 1)
    frames = [transfer("compact", n, event(n)) for n in range(200, 220)]
    columns = rows_of([*frames[:10], stranger, *frames[10:]])
    assert columns.other_frames == [stranger]
    assert len(columns) == 20


@pytest.mark.parametrize("singles_max", [GROUPED, SINGLE])
@pytest.mark.parametrize("code", [MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES])
@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (b"\x56\x01", b"\x56\x02"),  # neither true nor false
        (b"\x73\x00\x00\x00\x41", b"\x73\x00\x11\x00\x00"),  # above the last code point
        (b"\xa3\x01s", b"\xa3\x01\xff"),  # not ASCII
        (b"\xa3\x02ss", b"\xa3\x02\xc3\xa9"),  # UTF-8, but not ASCII
        (b"\xb3\x00\x00\x00\x01s", b"\xb3\x00\x00\x01\x2c" + b"s" * 299 + b"\xe9"),
        (b"\xc1\x03\x02\x40\x40", b"\xc1\x03\x02\x40"),  # a map that ends too soon
        (b"\xb1\x00\x00\x00\x01s", b"\xb1\xff\xff\xff\xffs"),  # far too long
        (b"\xa1\x01s", b"\xa1\xffs"),
        (b"\x81" + bytes(8), b"\x8f" + bytes(8)),  # not a constructor
    ],
)
def test_an_invalid_value_is_refused(good: bytes, bad: bytes, code: int, singles_max: int) -> None:
    def message(value: bytes) -> bytes:
        entries = compound(0xC1, [encode(Symbol("k")), value], False)
        return section(code, entries) + section(DATA, encode(b"x"))

    assert len(read(framed([message(good)] * 20), singles_max)) == 20
    with pytest.raises(MalformedBytes):
        read(framed([*[message(good)] * 20, message(bad)]), singles_max)


@pytest.mark.parametrize("singles_max", [GROUPED, SINGLE])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_message_must_fill_its_frame(change: int, singles_max: int) -> None:
    frame = bytearray(transfer("fixed", 1, event(200)))
    frame[frame.index(b"\x00\x53\x75\xa0") + 4] += change
    with pytest.raises(MalformedBytes):
        rows_of([*[transfer("fixed", n, event(200)) for n in range(20)], bytes(frame)], singles_max)


@pytest.mark.parametrize("singles_max", [GROUPED, SINGLE])
def test_invalid_text_is_refused_on_conversion(singles_max: int) -> None:
    data = framed([event(200)] * 20)
    at = data.index(b"\xa1\x0520000") + 2
    data[at] = 0xFF
    with pytest.raises(MalformedBytes):
        values_of(read(data, singles_max))


def test_bytes_after_the_last_frame_do_not_matter() -> None:
    """Words are read past the end of a frame, so the bytes there must not matter."""
    for size in range(40):
        payloads = [
            event(n, properties=Properties(content_type="text/plain"), data=(b"x" * size,))
            for n in range(200, 220)
        ]
        data = framed(payloads)
        data[-SLACK:] = b"\xff" * SLACK
        assert len(read(data).groups) == 1, f"body of {size} bytes"
        assert values_of(read(data)) == values_of(read(data, SINGLE)), f"body of {size} bytes"


def test_a_map_with_a_wrong_size_is_refused() -> None:
    frame = bytearray(transfer("fixed", 1, event(200)))
    at = frame.index(b"\x00\x53\x74\xc1") + 4
    frame[at] += 1
    frames = [transfer("fixed", n, event(200)) for n in range(20)]
    with pytest.raises(MalformedBytes):
        rows_of([*frames, bytes(frame)])


def test_a_string_is_not_read_as_a_symbol() -> None:
    """A symbol must be ASCII; a string need not."""
    for good in ("text/plain", "a" * 300):
        properties = Properties(content_type=Symbol(good))
        data = framed([event(n, properties=properties) for n in range(200, 220)])
        value_id = ValueId(PROPERTIES, "content-type")
        assert {row[value_id] for row in values_of(read(data))} == {repr(Symbol(good))}


@pytest.mark.parametrize("singles_max", [GROUPED, SINGLE])
def test_a_string_in_place_of_a_symbol_must_be_ascii(singles_max: int) -> None:
    def message(text: str) -> bytes:
        fields = [b"\x40"] * 6 + [encode(text)]
        return section(PROPERTIES, compound(0xC0, fields, False)) + section(DATA, encode(b"x"))

    assert len(read(framed([message("text/plain")] * 20), singles_max)) == 20
    with pytest.raises(MalformedBytes, match="content-type"):
        read(framed([*[message("text/plain")] * 20, message("täxt/plain")]), singles_max)


# --- Learning ------------------------------------------------------------------------------------


def test_the_repr_of_a_layout_names_its_values() -> None:
    layout = learn_layout(transfer("fixed", 1, event(200, properties=Properties(message_id="m"))))
    assert repr(layout) == (
        "<Layout x-opt-sequence-number x-opt-offset x-opt-enqueued-time message-id n body>"
    )


@pytest.mark.parametrize("filler", ["a", "ab", "aaaab"])
def test_a_message_is_cut_in_linear_time(filler: str) -> None:
    """The values of a message resemble the names that follow them in its layout."""

    def message(size: int) -> bytes:
        text = filler * (size // len(filler))
        application = {name: text for name in ("a" * 100 + "b", "a" * 200 + "b", "aab")}
        return encode_message(Message(application=application, data=(b"x",)))

    pattern = learn_pattern(message(1000))
    assert pattern is not None
    assert pattern.cut(message(2000)) is not None
    assert_linear(pattern.cut, message, 20_000)
    assert_linear(pattern.cut, lambda size: message(size)[:-3], 20_000)


def test_an_invalid_frame_has_no_layout() -> None:
    with pytest.raises(MalformedBytes):
        learn_layout(transfer("fixed", 1, event(200) + b"\x00"))
    assert learn_layout(transfer("fixed", 1, event(200), more=True)) is None
