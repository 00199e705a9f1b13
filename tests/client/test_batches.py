"""Events into payloads and back: size, count, keys, order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.messages import (
    BATCH_FORMAT,
    SINGLE_FORMAT,
    Message,
    decode_message,
    encode_message,
)
from pumphouse.amqp.types import Symbol, Timestamp
from pumphouse.client.batches import (
    KEY,
    Payload,
    PlainEvents,
    cut_batches,
    decode_event,
    encode_event,
)
from pumphouse.errors import EventTooLarge, OptionError
from pumphouse.events import Event

BIG = 1 << 20


def events_in(payload: Payload) -> list[Event]:
    """The events in a payload, as a hub parses them."""
    if payload.message_format == SINGLE_FORMAT:
        return [decode_event(payload.data, "0")]
    assert payload.message_format == BATCH_FORMAT
    outer = decode_message(payload.data)
    events = [decode_event(message, "0") for message in outer.data]
    assert {event.partition_key for event in events} == {outer.annotations.get(KEY)}
    return events


def bodies_and_keys(events: list[Event]) -> list[tuple[bytes, str | None]]:
    return [(event.body, event.partition_key) for event in events]


bodies = st.lists(st.tuples(st.binary(max_size=60), st.sampled_from([None, "a", "b", "ü"])))


@given(bodies, st.integers(200, 600), st.integers(1, 10))
def test_every_event_is_sent_once_within_the_limits_and_in_order_per_key(
    sent_events: list[tuple[bytes, str | None]], size_max: int, count_max: int
) -> None:
    events = [Event(body, partition_key=key) for body, key in sent_events]
    payloads = list(cut_batches(events, size_max, count_max))
    assert all(len(payload.data) <= size_max for payload in payloads)
    assert all(1 <= payload.event_count <= count_max for payload in payloads)
    sent = [event for payload in payloads for event in events_in(payload)]
    for key in (None, "a", "b", "ü"):
        expected = [body for body, its_key in sent_events if its_key == key]
        assert [event.body for event in sent if event.partition_key == key] == expected
    assert sum(payload.event_count for payload in payloads) == len(events)


@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "ü"]), st.lists(st.binary(max_size=300)))),
    st.integers(450, 900),
    st.integers(1, 10),
)
def test_plain_events_become_the_payloads_of_the_same_events_key_by_key(
    groups: list[tuple[str | None, list[bytes]]], size_max: int, count_max: int
) -> None:
    payloads = list(cut_batches(PlainEvents(groups), size_max, count_max))
    of_events = [
        payload
        for key, bodies in groups
        for payload in cut_batches(
            [Event(body, partition_key=key) for body in bodies], size_max, count_max
        )
    ]
    assert payloads == of_events


def test_plain_events_are_events_for_drivers_that_do_not_know_them() -> None:
    events = PlainEvents([("a", [b"1", b"2"]), (None, [b"3"])])
    expected = [Event(b"1", partition_key="a"), Event(b"2", partition_key="a"), Event(b"3")]
    assert (len(events), list(events)) == (3, expected)


def test_a_plain_event_above_the_limit_is_refused_before_its_batch_is_sent() -> None:
    with pytest.raises(EventTooLarge, match=r"event of 10\d\d bytes exceeds the limit of 1000"):
        next(cut_batches(PlainEvents([(None, [b"x", b"x" * 1000])]), 1000, 10))


def test_full_batches_of_one_key_are_not_followed_by_small_ones() -> None:
    payloads = list(cut_batches([Event(b"x" * 100)] * 100, 1200, 10))
    assert [payload.event_count for payload in payloads] == [10] * 10


def test_one_event_is_a_message_and_several_are_a_batch() -> None:
    assert [p.message_format for p in cut_batches([Event(b"x")], BIG, 10)] == [SINGLE_FORMAT]
    assert [p.message_format for p in cut_batches([Event(b"x")] * 3, BIG, 10)] == [BATCH_FORMAT]
    assert [p.event_count for p in cut_batches([Event(b"x")] * 25, BIG, 10)] == [10, 10, 5]


def test_open_batches_are_bounded_for_any_number_of_keys() -> None:
    sent = 0

    def source() -> object:
        nonlocal sent
        for number in range(1000):
            sent += 1
            yield Event(b"x" * 100, partition_key=f"key-{number}")

    payloads = cut_batches(source(), 2000, 100)  # type: ignore[arg-type]
    next(payloads)
    assert sent < 20


def test_an_event_above_the_limit_is_refused() -> None:
    with pytest.raises(EventTooLarge, match=r"event of 10\d\d bytes exceeds the limit of 1000"):
        list(cut_batches([Event(b"x" * 1000)], 1000, 10))


@pytest.mark.parametrize("body", [b"21.5", bytearray(b"21.5"), memoryview(b"21.5")])
def test_a_body_is_bytes_of_any_kind(body: bytes) -> None:
    payloads = list(cut_batches([Event(body), Event(body)], BIG, 10))
    assert [event.body for payload in payloads for event in events_in(payload)] == [b"21.5"] * 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("text", r"the body of an event must be bytes, found str: .* text\.encode\(\)"),
        (None, "must be bytes, found NoneType"),
        ({"t": 21.5}, "must be bytes, found dict"),
    ],
)
def test_a_body_of_another_type_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        list(cut_batches([Event(body)], BIG, 10))
    with pytest.raises(OptionError, match=message):
        encode_event(Event(body))


def test_an_event_round_trips() -> None:
    event = Event(b"\x00\xff", {"n": 1, "s": "text", "b": b"bin"}, partition_key="home-7")
    back = decode_event(encode_event(event), "3")
    assert (back.body, back.properties, back.partition_key) == (
        event.body,
        event.properties,
        event.partition_key,
    )
    assert back.partition == "3"
    assert (back.sequence, back.offset, back.enqueued_ms) == (None, None, None)


def test_a_decoded_event_has_its_position() -> None:
    notes = {
        Symbol("x-opt-sequence-number"): 7,
        Symbol("x-opt-offset"): "4096",
        Symbol("x-opt-enqueued-time"): Timestamp(1_714_564_800_000),
    }
    event = decode_event(encode_message(Message(annotations=notes, data=(b"x",))), "0")
    assert (event.sequence, event.offset, event.enqueued_ms) == (7, "4096", 1_714_564_800_000)


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (Message(data=(b"one", b"two")), b"onetwo"),
        (Message(value="text"), b"text"),
        (Message(value=b"bytes"), b"bytes"),
        (Message(value=5), b"5"),
        (Message(value=None), b""),
        (Message(sequence=([1, 2],)), b"[[1, 2]]"),
    ],
)
def test_bodies_of_other_types_become_bytes(message: Message, body: bytes) -> None:
    assert decode_event(encode_message(message), "0").body == body
