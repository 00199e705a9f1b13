"""Decoding many payloads at once gives the same events as decoding each."""

from __future__ import annotations

import copy
import pickle
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumphouse.amqp.columnar.layouts import learn_layout
from pumphouse.amqp.columnar.patterns import learn_pattern
from pumphouse.amqp.frames import encode_frame
from pumphouse.amqp.messages import APPLICATION_PROPERTIES, Message, Properties, encode_message
from pumphouse.amqp.performatives import Transfer
from pumphouse.amqp.types import Int, Symbol, Timestamp
from pumphouse.client import event_decoding, layout_decoding
from pumphouse.client.batches import decode_event
from pumphouse.client.event_decoding import (
    CREDIT_MAX,
    LEARN_COST,
    PATTERNS,
    PATTERNS_MAX,
    decode_events,
)
from pumphouse.errors import MalformedBytes, RemoteProtocolError
from pumphouse.events import Event
from tests.amqp.columnar.frame_runs import messages, section, shapes


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_decoding, "ROWS_MIN", 10_000)  # test_layout_decoding.py tests them
    PATTERNS.patterns = ()
    PATTERNS.credit = CREDIT_MAX


def event(number: int, **fields: Any) -> bytes:
    notes = {
        Symbol("x-opt-sequence-number"): 1_000 + number,
        Symbol("x-opt-offset"): str(100_000 + number * 100),
        Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_000 + number),
        Symbol("x-opt-partition-key"): f"key {number % 3}",
    }
    notes |= fields.pop("notes", {})
    fields = {"data": (b"body %d" % number,), "application": {"n": Int(number)}, **fields}
    return encode_message(Message(annotations=notes, **fields))


def alone(payloads: list[bytes]) -> list[Event]:
    return [decode_event(payload, "7") for payload in payloads]


def same(payloads: list[bytes]) -> list[Event]:
    """Decode in both ways and compare, also as text, because UInt(1) == 1."""
    decoded = decode_events(payloads, "7")
    expected = alone(payloads)
    assert list(map(repr, decoded)) == list(map(repr, expected))
    assert {type(decoded_event) for decoded_event in decoded} <= {Event}
    return decoded


# --- Equal to single decoding --------------------------------------------------------------------


@st.composite
def batches(draw: st.DrawFn, rows: int = 24) -> list[bytes]:
    kinds = draw(st.lists(shapes(), min_size=1, max_size=3))
    picks = draw(st.lists(st.integers(0, 2), max_size=rows))
    return [draw(messages(kinds[pick % len(kinds)])) for pick in picks]


def outcome(read: Any, payloads: list[bytes]) -> Any:
    try:
        return list(map(repr, read(payloads)))
    except (RemoteProtocolError, TypeError) as wrong:
        return type(wrong)


@given(batches())
@settings(max_examples=120)
def test_any_messages_decode_as_single_events_do(payloads: list[bytes]) -> None:
    def together(payloads: list[bytes]) -> list[Event]:
        return decode_events(payloads, "7")

    assert outcome(together, payloads) == outcome(alone, payloads)
    # Again, with known patterns.
    assert outcome(together, payloads) == outcome(alone, payloads)


@given(batches(rows=6), st.integers(0, 2**32))
@settings(max_examples=60)
def test_a_damaged_message_is_refused_or_decoded_as_a_single_event(
    payloads: list[bytes], seed: int
) -> None:
    """Ten changes per batch, because drawing a batch costs far more than decoding it."""
    if not payloads or not payloads[-1]:
        return
    valid = [payload for payload in payloads if outcome(alone, [payload]) is not MalformedBytes]
    read_events_quietly(valid)
    rng = Random(seed)
    for _ in range(10):
        damaged = bytearray(payloads[-1])
        position = rng.randrange(min(len(damaged), 300))
        damaged[position] = rng.randrange(256)
        batch = [*payloads[:-1], bytes(damaged), bytes(damaged)]
        decoded = outcome(lambda given: decode_events(given, "7"), batch)
        assert decoded == outcome(alone, batch), f"byte {position} is {damaged[position]:#x}"


def read_events_quietly(payloads: list[bytes]) -> None:
    outcome(lambda given: decode_events(given, "7"), payloads)


def test_uniform_messages_are_not_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [event(number) for number in range(50)]
    expected = alone(payloads)
    monkeypatch.setattr(event_decoding, "decode_event", None)
    assert decode_events(payloads, "7") == expected
    assert repr(PATTERNS.patterns) == (
        "(<Pattern x-opt-sequence-number x-opt-offset x-opt-enqueued-time x-opt-partition-key"
        " n body>,)"
    )


def test_alternating_patterns_are_both_kept() -> None:
    payloads = [event(n, application={"a": n, "b": "x"} if n % 2 else {}) for n in range(40)]
    decoded = same(payloads)
    assert [decoded_event.sequence for decoded_event in decoded] == list(range(1_000, 1_040))
    assert len(PATTERNS.patterns) == 2


def test_zero_and_one_message() -> None:
    assert decode_events([], "7") == []
    assert same([event(1)])[0].partition == "7"


@pytest.mark.parametrize(
    "odd",
    [
        {"data": (b"one", b"two")},
        {"data": (), "value": "text"},
        {"data": (), "sequence": ([1, 2],)},
        {"footer": {"a": 1}},
        {"delivery_annotations": {Symbol("a"): 1}},
        {"application": {"a": [1, 2]}},
        {"application": {1: "a"}},
        {"application": {"n": "x" * 9000}},
        {"notes": {Symbol("x-opt-partition-key"): 5}},
        {"notes": {Symbol("x-opt-offset"): "@latest"}},
        {"notes": {Symbol("x-opt-offset"): 77}},
        {"notes": {Symbol("x-opt-enqueued-time"): 5}},
        {"notes": {Symbol("x-opt-sequence-number"): Timestamp(5)}},
        {"notes": {Symbol("x-opt-sequence-number"): None}},
        {"properties": Properties(message_id="m", correlation_id="c", content_type="text/plain")},
        {"properties": Properties(message_id=5, subject="s", group_sequence=4)},
    ],
)
def test_unusual_messages_among_others_are_decoded(odd: dict[str, Any]) -> None:
    payloads = [event(number) for number in range(30)]
    payloads[7] = event(7, **odd)
    same(payloads)
    same([event(number, **odd) for number in range(30)])


def test_more_patterns_than_the_limit_are_decoded() -> None:
    """More patterns than are learned per batch, and more than are cached."""
    for start in range(0, 4 * PATTERNS_MAX, 8):
        same([event(n, application={f"name {start + n % 8}": n}) for n in range(32)])
    assert len(PATTERNS.patterns) == PATTERNS_MAX


def test_numbers_may_grow_wider() -> None:
    """An offset with one more digit needs another pattern."""
    notes = [{Symbol("x-opt-offset"): str(n)} for n in range(90, 110)]
    same([event(n, notes=note) for n, note in enumerate(notes)])


# --- Malformed messages ---------------------------------------------------------------------------


def test_a_value_that_contains_the_next_literal() -> None:
    """The value is split at the first occurrence of the next name, which is inside it."""
    trap = encode_message(Message(application={"b": 1}))[6:-3].decode("latin-1")
    payloads = [event(n, application={"a": "x", "b": Int(300)}) for n in range(20)]
    payloads[5] = event(5, application={"a": f"x{trap}\xa1\x01b", "b": Int(300)})
    payloads[6] = event(6, application={"a": "\x00Su\xa0\x01", "b": Int(300)})
    same(payloads)


@pytest.mark.parametrize("change", [-1, 1])
def test_wrong_sizes_are_refused(change: int) -> None:
    good = [event(number) for number in range(20)]
    for mark in (b"\x00Sr\xc1", b"\x00St\xc1", b"\x00Su\xa0"):
        bad = bytearray(event(20))
        bad[bad.index(mark) + 4] += change
        with pytest.raises(MalformedBytes):
            decode_events([*good, bytes(bad)], "7")


def test_invalid_text_is_refused() -> None:
    bad = event(20).replace(b"key 2", b"key \xff")
    with pytest.raises(MalformedBytes, match="UTF-8"):
        decode_events([*(event(number) for number in range(20)), bad], "7")


def test_a_duplicate_key_is_refused() -> None:
    entries = b"\xc1\x09\x04\xa1\x01a\x41\xa1\x01a\x41"
    bad = section(APPLICATION_PROPERTIES, entries) + b"\x00Su\xa0\x01x"
    with pytest.raises(MalformedBytes, match="twice"):
        decode_events([bad, bad, bad], "7")


def test_a_repeated_literal_does_not_slow_down_the_pattern() -> None:
    """Values that contain the next name must not cause long backtracking."""
    names = {letter: "x" for letter in "abcdefghij"}
    usual = [event(n, application=names) for n in range(5)]
    hard = {letter: "".join(f"\xa1\x01{other}" for other in names) * 8 for letter in names}
    same([*usual, *(event(n, application=hard) for n in range(5, 10))])


# --- Properties of decoded events ----------------------------------------------------------------


def test_decoded_events_are_ordinary_events() -> None:
    [decoded, _] = decode_events([event(1), event(2)], "7")
    made = Event(b"body 1", {"n": 1}, "key 1", "7", 1_001, "100100", enqueued_ms=1_700_000_000_001)
    assert decoded == made
    assert pickle.loads(pickle.dumps(decoded)) == made
    assert copy.copy(decoded) == made
    assert not hasattr(decoded, "__dict__")
    with pytest.raises(AttributeError):
        decoded.body = b""  # type: ignore[misc]
    with pytest.raises(TypeError, match="unhashable"):
        hash(decoded)  # as for any event with a dict of properties
    assert decoded.enqueued_at == made.enqueued_at


def test_each_event_has_its_own_properties() -> None:
    first, second = decode_events([event(1), event(1)], "7")
    assert isinstance(first.properties, dict)
    first.properties["n"] = 9
    assert second.properties == {"n": 1}


# --- Hostile producers ---------------------------------------------------------------------------


@pytest.mark.parametrize("received", [2, 7, 200])
def test_learning_is_limited_if_each_event_has_other_names(
    monkeypatch: pytest.MonkeyPatch, received: int
) -> None:
    """To learn a pattern takes as long as to decode dozens of events."""
    learned = []
    learn = event_decoding.learn_event_pattern

    def count(payload: bytes) -> Any:
        learned.append(payload)
        return learn(payload)

    monkeypatch.setattr(event_decoding, "learn_event_pattern", count)
    payloads = [event(number, application={f"name {number}": 1}) for number in range(2000)]
    for start in range(0, len(payloads), received):
        same(payloads[start : start + received])
    assert 0 < len(learned) <= (CREDIT_MAX + len(payloads)) // LEARN_COST


@pytest.mark.parametrize(
    "names", [[f"name {number}" for number in range(65)], ["n" * 300]], ids=["many", "long"]
)
def test_a_message_with_many_or_long_names_has_no_pattern_and_no_layout(names: list[str]) -> None:
    payload = event(1, application=dict.fromkeys(names, 1))
    assert learn_pattern(payload) is None
    transfer = Transfer(handle=0, delivery_id=1, settled=True)
    assert learn_layout(encode_frame(transfer, payload=payload)) is None
    same([payload] * 5)
