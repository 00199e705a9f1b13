"""Uniform events, which are parsed and built as a matrix, compared with the slow parser."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.messages import (
    BATCH_FORMAT,
    Header,
    Message,
    Properties,
    decode_message,
    encode_batch,
    encode_message,
)
from pumphouse.amqp.types import Symbol
from pumphouse.errors import AmqpError, MalformedBytes
from pumphouse.hub.annotations import (
    KNOWN_BYTES_MAX,
    UNIFORM_MIN,
    Batch,
    EventGroup,
    parse_payload,
)
from pumphouse.hub.frames.building import ROWS_MAX, build_frames
from pumphouse.hub.frames.uniform_bodies import UniformBodies
from pumphouse.hub.frames.uniform_events import layout_of
from pumphouse.hub.limits.sections import SectionShapes
from pumphouse.hub.storage.memory_log import MemoryLog
from pumphouse.hub.storage.segment_format import encode_group
from tests.hub.events import bodies_of
from tests.hub.slow_parsing import events, outcome, parse_fast, parse_slow

COUNTS = st.integers(UNIFORM_MIN - 1, UNIFORM_MIN + 30)
T0 = 1_700_000_000_000


def message(number: int, body_size: int, kind: int) -> bytes:
    """An event of one of several kinds. Its values depend on its number, but its size does not."""
    body = bytes((number + at) % 256 for at in range(body_size))
    n, key = f"{number:04}", Symbol("x-opt-partition-key")
    kinds: list[Message] = [
        Message(data=(body,)),
        Message(header=Header(durable=True), data=(body,)),
        Message(annotations={key: "home-7", Symbol("n"): 1}, data=(body,)),
        Message(application={"kind": "abc", "home": n, "t": 1e9 + number}, data=(body,)),
        Message(properties=Properties(message_id=n, subject="é"), data=(body,)),
        Message(application={"home": "é" * (1 + number % 2)}, data=(body,)),
        Message(data=(body, body)),
        Message(application={"home": "7"}, data=(body,), footer={Symbol("n"): "1"}),
        Message(value="text"),
        Message(application={"home": "x" * 600, "n": n}, data=(body,)),
    ]
    return encode_message(kinds[kind])


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Many events of one kind, then a few of any kind."""
    size = draw(st.sampled_from([0, 1, 100, 248, 255, 256, 300]))
    kind, more = draw(st.integers(0, 9)), draw(st.lists(st.integers(0, 9), max_size=3))
    encoded = [message(number, size, kind) for number in range(draw(COUNTS))]
    encoded += [message(number, size, kind) for number, kind in enumerate(more)]
    outer = draw(st.sampled_from([{}, {Symbol("x-opt-partition-key"): "outer"}]))
    return encode_batch(encoded, outer)


@given(batches())
def test_uniform_events_are_parsed_as_others(payload: bytes) -> None:
    assert outcome(parse_fast, payload) == outcome(parse_slow, payload)


@given(batches(), st.data())
def test_damage_has_the_same_outcome(payload: bytes, data: st.DataObject) -> None:
    damaged = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        other = st.sampled_from([0, 1, 0x53, 0x75, 0xA0, 0xB0, 0xFF, damaged[at] ^ 8])
        damaged[at] = data.draw(other)
    cut = bytes(damaged[: data.draw(st.integers(len(damaged) - 400, len(damaged)))])
    assert outcome(parse_fast, cut) == outcome(parse_slow, cut)


@pytest.mark.parametrize("kind", range(10))
def test_one_deviating_byte_has_the_same_outcome(kind: int) -> None:
    """Any byte of one event in the middle, which is compared as a row."""
    encoded = [message(number, 9, kind) for number in range(UNIFORM_MIN + 4)]
    payload = encode_batch(encoded)
    start, size = len(encode_batch(encoded[: UNIFORM_MIN + 1])), len(encode_batch(encoded[:1]))
    for at in range(start, start + size, 1 + size // 80):
        for by in (1, 8, 128):
            damaged = payload[:at] + bytes([(payload[at] + by) % 256]) + payload[at + 1 :]
            assert outcome(parse_fast, damaged) == outcome(parse_slow, damaged), (at, by)


@pytest.mark.parametrize("kind", range(5))
def test_events_of_usual_kinds_stay_in_the_payload(kind: int) -> None:
    encoded = [message(number, 9, kind) for number in range(UNIFORM_MIN)]
    batch = parse_fast(encode_batch([*encoded, message(0, 10, kind)]))
    assert isinstance(batch.groups[0].bodies, UniformBodies)
    assert [len(group.bodies) for group in batch.groups] == [UNIFORM_MIN, 1]
    few = parse_fast(encode_batch(encoded[1:]))
    assert isinstance(few.groups[0].bodies, list)


def test_a_text_that_is_not_ascii_is_checked() -> None:
    """Rows under the mask have ASCII texts; another text may be invalid UTF-8."""
    encoded = [message(number, 9, 3) for number in range(UNIFORM_MIN + 1)]
    wrong = encoded[-1].replace(b"0040", b"00\xff0")
    assert wrong != encoded[-1]
    payload = encode_batch([*encoded, wrong])
    assert outcome(parse_fast, payload) == outcome(parse_slow, payload)
    assert isinstance(outcome(parse_fast, payload), type)


def test_an_unusual_encoding_is_not_uniform() -> None:
    payload = encode_batch([message(0, 9, 0)])
    assert layout_of(b"\x00" + payload, 0, len(payload) + 1, 9, SectionShapes()) is None


# -- the next batch of a producer -----------------------------------------------------------------


@given(batches(), batches(), st.data())
def test_a_batch_after_another_is_parsed_as_alone(
    first: bytes, second: bytes, data: st.DataObject
) -> None:
    """The structure of a batch is kept. It must not let anything else pass in the next one."""
    shapes = SectionShapes()
    following = data.draw(st.sampled_from([first, second]))
    damaged = bytearray(following)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, min(len(damaged), 200) - 1))
        damaged[at] = data.draw(st.sampled_from([0, 1, 0x53, 0x75, 0xA0, 0xFF, damaged[at] ^ 8]))
    with suppress(AmqpError, MalformedBytes):
        parse_payload(first, BATCH_FORMAT, shapes)

    def parse_next(payload: bytes) -> Batch:
        return parse_payload(payload, BATCH_FORMAT, shapes)

    assert outcome(parse_next, bytes(damaged)) == outcome(parse_slow, bytes(damaged))


@pytest.mark.parametrize("kind", range(5))
def test_the_structure_of_a_batch_is_used_for_the_next_one(kind: int) -> None:
    shapes = SectionShapes()
    payload = encode_batch([message(number, 9, kind) for number in range(UNIFORM_MIN)])
    parse_payload(payload, BATCH_FORMAT, shapes)
    known = shapes.known_batch
    batch = parse_payload(payload, BATCH_FORMAT, shapes)
    assert shapes.known_batch is known is not None
    assert events(batch) == events(parse_slow(payload))
    longer = encode_batch([message(number, 10, kind) for number in range(UNIFORM_MIN)])
    assert outcome(parse_fast, longer) == outcome(parse_slow, longer)


def test_a_long_structure_is_not_kept() -> None:
    shapes = SectionShapes()
    annotated = Message(annotations={Symbol("n"): "x" * KNOWN_BYTES_MAX}, data=(b"",))
    parse_payload(encode_batch([encode_message(annotated)] * 50), BATCH_FORMAT, shapes)
    assert shapes.known_batch is None


# -- frames ---------------------------------------------------------------------------------------


def listed(batch: Batch) -> Batch:
    """The batch with a list of the bodies of each group, which are built one by one."""
    return Batch([EventGroup(prefix, list(bodies)) for prefix, bodies in batch.groups], batch.key)


@given(
    batches(),
    st.sampled_from([0, 8, 95, 999_000, 4_294_960_000, 10**18 - 1500]),
    st.sampled_from([None, "meter-1", "p" * 120]),
)
def test_the_frames_are_the_same_bytes(payload: bytes, offset: int, publisher: str | None) -> None:
    batch = parse_fast(payload)
    origin = min(offset, 90)
    built = build_frames(batch, 2**40, offset, T0, publisher, origin)
    expected = build_frames(listed(batch), 2**40, offset, T0, publisher, origin)
    assert bytes(built.data) == bytes(expected.data)
    assert list(built.starts) == list(expected.starts)
    groups = [
        encode_group(frames.data, frames.starts, 2**40, offset, T0) for frames in (built, expected)
    ]
    assert groups[0] == groups[1]


def test_many_rows_are_built_in_parts() -> None:
    payload = encode_batch(message(number % 256, 3, 0) for number in range(2 * ROWS_MAX + 7))
    batch = parse_fast(payload)
    built, expected = build_frames(batch, 0, 0, T0), build_frames(listed(batch), 0, 0, T0)
    assert (bytes(built.data), list(built.starts)) == (bytes(expected.data), expected.starts)
    assert batch.event_count == 2 * ROWS_MAX + 7


@pytest.mark.parametrize("sequence", [2**16 - 5, 2**32 - 50, 2**63 - 2000])
@pytest.mark.parametrize("offset", [0, 9_900, 99_990_000, 10**12 - 3000])
def test_numbers_that_carry_are_written(sequence: int, offset: int) -> None:
    batch = parse_fast(encode_batch([message(n, 100, 0) for n in range(200)]))
    built = build_frames(batch, sequence, offset, T0)
    expected = build_frames(listed(batch), sequence, offset, T0)
    assert bytes(built.data) == bytes(expected.data)
    assert list(built.starts) == list(expected.starts)


def test_frames_are_written_to_reserved_memory() -> None:
    batch = parse_fast(encode_batch([message(n, 100, 0) for n in range(200)]))
    memory = memoryview(bytearray(1 << 20))
    built = build_frames(batch, 0, 9_990, T0, reserve=lambda size: memory[:size])
    expected = build_frames(listed(batch), 0, 9_990, T0)
    assert built.in_place
    assert bytes(memory[: len(expected.data)]) == bytes(expected.data)
    for more in (batch, listed(batch)):
        mixed = Batch([*batch.groups, *more.groups])
        several = build_frames(mixed, 0, 9_990, T0, reserve=lambda size: memory[:size])
        assert not several.in_place
        assert bytes(several.data) == bytes(build_frames(listed(mixed), 0, 9_990, T0).data)


def test_a_log_reads_back_what_it_got() -> None:
    log = MemoryLog()
    sent = [bytes([number]) * 5 for number in range(UNIFORM_MIN)]
    payload = encode_batch(encode_message(Message(data=(body,))) for body in sent)
    for _ in range(3):
        log.append(parse_payload(payload, BATCH_FORMAT), T0)
    assert bodies_of(log.read(0, 1000, 1 << 20)) == 3 * sent
    assert (log.next_sequence, type(log.last_offset)) == (3 * UNIFORM_MIN, int)


# -- the sequence ---------------------------------------------------------------------------------


def test_the_bodies_are_a_sequence() -> None:
    bodies = UniformBodies(b"..ab..cd..ef", 2, 4, 2, 3)
    assert list(bodies) == [b"ab", b"cd", b"ef"]
    assert (len(bodies), bodies[-1], bodies[1:]) == (3, b"ef", [b"cd", b"ef"])
    with pytest.raises(IndexError):
        bodies[3]


def test_the_events_are_those_of_the_producer() -> None:
    encoded = [message(number, 9, 3) for number in range(UNIFORM_MIN)]
    parsed = events(parse_fast(encode_batch(encoded)))
    read = [decode_message(body).application for _, body in parsed]
    assert [names["home"] for names in read if names] == [f"{n:04}" for n in range(UNIFORM_MIN)]
