"""Decoding payloads by their layouts gives the same events as decoding each."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings

from pumphouse.amqp.columnar.payload_blocks import PayloadBlock
from pumphouse.amqp.messages import Properties
from pumphouse.amqp.types import Int, Symbol, Timestamp
from pumphouse.client import event_decoding, layout_decoding
from pumphouse.client.event_decoding import decode_events
from pumphouse.client.layout_decoding import CREDIT_MAX, LAYOUTS, LAYOUTS_MAX, LEARN_COST, USES_MIN
from pumphouse.errors import MalformedBytes
from pumphouse.events import Event
from tests.client.test_event_decoding import alone, batches, event, outcome, same


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_decoding, "ROWS_MIN", 2)
    LAYOUTS.layouts = ()
    LAYOUTS.credit = CREDIT_MAX


def only_by_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("decode_uniform", "decode_mixed"):
        monkeypatch.setattr(event_decoding, other, None)


def together(payloads: list[bytes]) -> list[Event]:
    return decode_events(payloads, "7")


@given(batches())
@settings(max_examples=120)
def test_any_messages_decode_as_single_events_do(payloads: list[bytes]) -> None:
    LAYOUTS.credit = CREDIT_MAX
    assert outcome(together, payloads) == outcome(alone, payloads)
    # Again, with known layouts.
    assert outcome(together, payloads) == outcome(alone, payloads)


@given(batches(rows=6))
@settings(max_examples=60)
def test_a_damaged_message_is_refused_or_decoded_as_a_single_event(payloads: list[bytes]) -> None:
    """Each byte is changed in turn, up to a number of them."""
    if not payloads or outcome(alone, payloads[-1:]) is MalformedBytes:
        return
    rng = Random(len(payloads[-1]))
    for _ in range(10):
        damaged = bytearray(payloads[-1])
        position = rng.randrange(min(len(damaged), 300))
        damaged[position] = rng.randrange(256)
        LAYOUTS.layouts, LAYOUTS.credit = (), CREDIT_MAX
        batch = [payloads[-1], payloads[-1], bytes(damaged), bytes(damaged)]
        text = f"byte {position} is {damaged[position]:#x}"
        assert outcome(together, batch) == outcome(alone, batch), text


def test_events_with_values_of_the_same_sizes_are_decoded_by_their_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payloads = [event(number) for number in range(1000, 1600)]
    expected = alone(payloads)
    only_by_layout(monkeypatch)
    assert decode_events(payloads, "7") == expected
    assert repr([known.layout for known in LAYOUTS.layouts]) == (
        "[<FixedLayout x-opt-sequence-number x-opt-offset x-opt-enqueued-time"
        " x-opt-partition-key body>]"
    )


def test_each_size_of_a_key_has_a_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [{Symbol("x-opt-partition-key"): "k" * (number % 3)} for number in range(60)]
    payloads = [event(number, notes=note) for number, note in enumerate(keys)]
    expected = alone(payloads)
    only_by_layout(monkeypatch)
    assert decode_events(payloads, "7") == expected
    assert len(LAYOUTS.layouts) == 3


@pytest.mark.parametrize(
    "odd",
    [
        {"data": (b"one", b"two")},
        {"data": (), "value": "text"},
        {"data": (b"x" * 2000,)},
        {"data": (b"",)},
        {"footer": {"a": 1}},
        {"application": {}},
        {"application": {"n": "\N{BELL}"}},
        {"application": {"n": b"\xff", "t": True, "f": 1.5, "w": Timestamp(5), "s": Symbol("s")}},
        {"application": {"n": [1, 2]}},
        {"application": {"n": "x" * 2000}},
        {"notes": {Symbol("x-opt-partition-key"): 5}},
        {"notes": {Symbol("x-opt-partition-key"): "schl\N{LATIN SMALL LETTER U WITH DIAERESIS}"}},
        {"notes": {Symbol("x-opt-offset"): "@latest"}},
        {"notes": {Symbol("x-opt-offset"): 77}},
        {"notes": {Symbol("x-opt-enqueued-time"): 5}},
        {"notes": {Symbol("x-opt-sequence-number"): None}},
        {"properties": Properties(message_id="m", correlation_id="c", content_type="text/plain")},
    ],
)
def test_unusual_messages_are_decoded(odd: dict[str, Any]) -> None:
    payloads = [event(number) for number in range(30)]
    payloads[7] = event(7, **odd)
    same(payloads)
    same([event(number, **odd) for number in range(30)])


@pytest.mark.parametrize("change", [-1, 1])
def test_wrong_sizes_are_refused(change: int) -> None:
    good = [event(number) for number in range(20)]
    for mark in (b"\x00Sr\xc1", b"\x00St\xc1", b"\x00Su\xa0"):
        bad = bytearray(event(20))
        bad[bad.index(mark) + 4] += change
        with pytest.raises(MalformedBytes):
            decode_events([*good, bytes(bad)], "7")


@pytest.mark.parametrize("end", [1, 7, 8, 20, 100])
def test_a_message_that_is_cut_off_is_refused(end: int) -> None:
    good = [event(number) for number in range(20)]
    with pytest.raises(MalformedBytes):
        decode_events([*good, event(20)[:-end]], "7")


@pytest.mark.parametrize("text", [b"key 2", b"word 2"], ids=["key", "property"])
def test_invalid_text_is_refused_before_the_properties_are_used(text: bytes) -> None:
    payloads = [event(number, application={"w": f"word {number % 3}"}) for number in range(21)]
    payloads[20] = payloads[20].replace(text, text[:-1] + b"\xff")
    with pytest.raises(MalformedBytes, match="UTF-8"):
        decode_events(payloads, "7")


# --- Properties ----------------------------------------------------------------------------------


def test_properties_are_decoded_when_they_are_used() -> None:
    decoded = decode_events([event(number) for number in range(30)], "7")
    [known] = LAYOUTS.layouts
    assert known.properties.uses == 0
    assert decoded[3].properties == {"n": 3}
    assert decoded[3].properties is decoded[3].properties
    assert known.properties.uses == 1


def test_properties_that_are_used_often_are_decoded_at_once() -> None:
    payloads = [event(number) for number in range(USES_MIN)]
    assert [decoded.properties["n"] for decoded in same(payloads)] == [*range(USES_MIN)]
    assert LAYOUTS.layouts[0].properties.uses == USES_MIN
    assert same(payloads)[5].properties == {"n": 5}
    assert LAYOUTS.layouts[0].properties.uses == USES_MIN


def test_events_whose_properties_are_not_decoded_are_ordinary_events() -> None:
    def decoded() -> Event:
        return decode_events([event(1), event(2)], "7")[0]

    made = Event(b"body 1", {"n": Int(1)}, "key 1", "7", 1_001, "100100", 1_700_000_000_001)
    assert decoded() == made
    assert repr(decoded()) == repr(made)
    assert pickle.loads(pickle.dumps(decoded())) == made
    assert copy.copy(decoded()) == copy.deepcopy(decoded()) == made
    assert replace(decoded(), body=b"") == replace(made, body=b"")
    assert not hasattr(decoded(), "__dict__")
    assert not hasattr(decoded(), "other")
    with pytest.raises(AttributeError):
        decoded().properties = {}  # type: ignore[misc]


def test_each_event_has_its_own_properties() -> None:
    for application in ({"n": 1}, {}):
        first, second = decode_events([event(1, application=application)] * 2, "7")
        assert isinstance(first.properties, dict)
        first.properties["n"] = 9
        assert second.properties == application


# --- Fields that are decoded later ---------------------------------------------------------------


def block_of(payloads: list[bytes]) -> PayloadBlock:
    [size] = set(map(len, payloads))
    return PayloadBlock(b"\1\2\3".join(payloads), 0, size, size + 3, len(payloads))


def test_blocks_of_payloads_are_decoded_as_lists_are() -> None:
    payloads = [event(number) for number in range(1000, 1600)]
    payloads[70] = event(1070, data=(b"body",), application={"n": 2, "mmm": 1})[:-1]
    payloads[70] = payloads[70].ljust(len(payloads[0]), b"?")
    good = payloads[:70] + payloads[71:]
    assert decode_events(block_of(good), "7") == alone(good)
    assert outcome(together, block_of(payloads)) == outcome(alone, payloads)  # type: ignore[arg-type]


def test_few_payloads_are_decoded_by_known_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [event(number) for number in range(1000, 1100)]
    same(payloads)
    expected = alone(payloads)
    only_by_layout(monkeypatch)
    assert [decode_events([payload], "7")[0] for payload in payloads] == expected


@pytest.mark.parametrize("name", ["sequence", "offset", "enqueued_ms"])
def test_annotations_that_are_used_often_are_decoded_at_once(name: str) -> None:
    payloads = [event(number) for number in range(4 * USES_MIN)]
    decoded = decode_events(payloads[:USES_MIN], "7")
    known = LAYOUTS.layouts[0]
    assert known.annotations.uses == 0
    expected = [getattr(one, name) for one in alone(payloads)]
    assert [getattr(one, name) for one in decoded] == expected[:USES_MIN]
    uses = known.annotations.uses
    assert uses > 0
    assert [getattr(one, name) for one in decode_events(payloads, "7")] == expected


def test_fields_of_few_events_do_not_make_all_of_them_decoded() -> None:
    payloads = [event(number) for number in range(1000, 1512)]
    for number in range(2 * USES_MIN):
        decoded = decode_events(payloads, "7")
        assert decoded[-1].sequence is not None
        assert LAYOUTS.layouts[0].annotations.uses == number + 1


# --- Hostile producers ---------------------------------------------------------------------------


def test_learning_is_limited_if_each_event_has_another_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learned = []
    learn = layout_decoding.learn_event_layout

    def count(payload: bytes) -> Any:
        learned.append(payload)
        return learn(payload)

    monkeypatch.setattr(layout_decoding, "learn_event_layout", count)
    payloads = [event(number, application={f"name {number}": 1}) for number in range(2000)]
    for start in range(0, len(payloads), 200):
        same(payloads[start : start + 200])
    assert 0 < len(learned) <= (CREDIT_MAX + len(payloads)) // LEARN_COST
    assert len(LAYOUTS.layouts) <= LAYOUTS_MAX
