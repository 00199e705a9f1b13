"""Sections that the hub stores without decoding them: what it accepts, every reader can decode."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest

from pumphouse.amqp.codec import encode
from pumphouse.amqp.messages import (
    APPLICATION_PROPERTIES,
    BATCH_FORMAT,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    SINGLE_FORMAT,
    VALUE,
    Header,
    Message,
    Properties,
    data_section,
    decode_message,
    encode_batch,
    encode_message,
    encode_section,
)
from pumphouse.amqp.types import Symbol, Timestamp, ULong
from pumphouse.errors import AmqpError, MalformedBytes
from pumphouse.hub.annotations import parse_payload
from pumphouse.hub.limits.sections import (
    KEYS_MAX,
    SAME_SIZE_MAX,
    SECTIONS_MAX,
    SHAPES_MAX,
    UNKNOWN_MAX,
    SectionShapes,
)
from tests.amqp.codec.test_codec_refused import descriptors, lists
from tests.amqp.codec.test_map_keys import uuid_keys
from tests.fuzz.test_mutations import mutate
from tests.growth import assert_linear

BODY = data_section(b"body")


def section(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes((code,)) + value


def narrow_map(content: bytes, count: int) -> bytes:
    return b"\xc1" + bytes((len(content) + 1, count)) + content


def wide_map(content: bytes, count: int) -> bytes:
    return b"\xd1" + struct.pack(">II", len(content) + 4, count) + content


def refuse(*sections: bytes) -> str:
    """The reason why an event with these sections is refused, alone and in a batch."""
    event = b"".join(sections)
    reasons = []
    for payload, message_format in (
        (event, SINGLE_FORMAT),
        (encode_batch([event]), BATCH_FORMAT),
        (encode_batch([BODY, event]), BATCH_FORMAT),
    ):
        with pytest.raises((MalformedBytes, AmqpError)) as refused:
            parse_payload(payload, message_format)
        reasons.append(str(refused.value))
    return reasons[0]


COUNT_BOMB = bytes.fromhex("d0 00000005 ffffffff 40")  # a list of four billion items in ten bytes


@pytest.mark.parametrize(
    ("code", "value", "reason"),
    [
        (APPLICATION_PROPERTIES, narrow_map(b"\xa1\x01a" + COUNT_BOMB, 2), "of 4294967295 items"),
        (APPLICATION_PROPERTIES, narrow_map(b"\xa1\x01a", 1), "does not match"),
        (APPLICATION_PROPERTIES, narrow_map(b"\xa1\x01a@", 4), "found the end"),
        (APPLICATION_PROPERTIES, narrow_map(b"\xa1\x01a@@", 2), "does not match"),
        (APPLICATION_PROPERTIES, narrow_map(b"\xa1\x01a@\xa3\x01a@", 4), "the key .* twice"),
        (APPLICATION_PROPERTIES, narrow_map(b"\xa1\x01\xff@", 2), "not UTF-8"),
        (APPLICATION_PROPERTIES, narrow_map(b"\xa1\x01a\xa1\x01\xff", 2), "not UTF-8"),
        (APPLICATION_PROPERTIES, narrow_map(b"\x98" + bytes(16) + b"@", 2), "key of type uuid"),
        (APPLICATION_PROPERTIES, narrow_map(b"\x54\x01@", 2), "key of type smallint"),
        (APPLICATION_PROPERTIES, narrow_map(b"\x5f@", 2), "key of type constructor 0x5f"),
        (APPLICATION_PROPERTIES, encode([1]), "expected a map"),
        (APPLICATION_PROPERTIES, uuid_keys(100), "key of type uuid"),
        (APPLICATION_PROPERTIES, encode({"a" * 1025: 1}), "has 1025 characters"),
        (APPLICATION_PROPERTIES, encode({str(n): 1 for n in range(KEYS_MAX + 1)}), "1025 keys"),
        (APPLICATION_PROPERTIES, wide_map(b"\xa1\x01a" + lists(32), 2), "more than 32 deep"),
        (MESSAGE_ANNOTATIONS, encode({str(n): 1 for n in range(KEYS_MAX + 1)}), "1025 keys"),
        (MESSAGE_ANNOTATIONS, uuid_keys(3), "key of type uuid"),
        (DELIVERY_ANNOTATIONS, encode({"a" * 1025: 1}), "has 1025 characters"),
        (FOOTER, uuid_keys(100), "key of type uuid"),
        (VALUE, uuid_keys(100), "have the same hash"),
        (VALUE, encode([1])[:2] + b"\x02" + encode([1])[3:], "items"),
        (VALUE, COUNT_BOMB, "of 4294967295 items"),
        (VALUE, descriptors(40), "nested more than 32 deep"),
        (SEQUENCE, lists(40), "nested more than 32 deep"),
        (SEQUENCE, encode({}), "must hold a list"),
        (SEQUENCE, b"\xc0\x04\x01" + b"\x98\x00\x00", "passes the end"),
        (DATA, encode("text"), "must hold binary"),
        (PROPERTIES, encode([COUNT_BOMB, 5]), "user-id: expected bytes"),
        (PROPERTIES, b"\xc0" + bytes((len(COUNT_BOMB) + 1, 1)) + COUNT_BOMB, "4294967295 items"),
        (PROPERTIES, encode([None] * 14), "has 13 fields"),
        (PROPERTIES, encode([[[]] * 5000]), "more values than are allowed"),
        (PROPERTIES, encode({}), "must hold list"),
        (HEADER, b"\xc0" + bytes((len(COUNT_BOMB) + 1, 1)) + COUNT_BOMB, "4294967295 items"),
        (HEADER, encode(["yes"]), "durable: expected bool"),
    ],
)  # fmt: skip
def test_a_section_that_a_reader_could_not_decode_is_refused(
    code: int, value: bytes, reason: str
) -> None:
    bad = section(code, value)
    order = (bad, BODY) if code < DATA else (BODY, bad)
    assert re.search(reason, refuse(*order))


def test_an_event_of_many_sections_is_refused() -> None:
    parse_payload(BODY * SECTIONS_MAX, SINGLE_FORMAT)
    with pytest.raises(MalformedBytes, match="message of more than 4096 sections"):
        parse_payload(BODY * (SECTIONS_MAX + 1), SINGLE_FORMAT)


def test_the_largest_application_properties_are_accepted() -> None:
    names = {str(number) * 20: number for number in range(KEYS_MAX)}
    event = encode_message(Message(application=names, data=(b"x",)))
    (group,) = parse_payload(event, SINGLE_FORMAT).groups
    assert decode_message(group.bodies[0]).application == names


# --- shapes --------------------------------------------------------------------------------------


def events_of(rng: Random, count: int) -> list[bytes]:
    """Events of one producer: the same names, values of several types and sizes."""
    return [
        encode_message(
            Message(
                header=Header(durable=True),
                properties=Properties(
                    message_id=rng.choice(["id", UUID(int=rng.getrandbits(128)), ULong(7)]),
                    content_type=rng.choice([None, "text/plain"]),
                    creation_time=Timestamp(rng.randrange(1 << 40)),
                    group_sequence=rng.randrange(1000),
                ),
                application={
                    "number": rng.randrange(1000),
                    "text": rng.choice(["a", "bcd", "é", "дом" * 30]),
                    "bytes": rng.randbytes(3),
                    "flag": rng.random() < 0.5,
                    "list": [1, {"a": "b"}],
                    "float": rng.random(),
                },
                data=(rng.randbytes(rng.choice([0, 3, 300])),),
            )
        )
        for _ in range(count)
    ]


def test_events_of_known_and_unknown_shapes_are_accepted() -> None:
    rng, shapes = Random(5), SectionShapes()
    for _ in range(10):
        batch = parse_payload(encode_batch(events_of(rng, 100)), BATCH_FORMAT, shapes)
        assert batch.event_count == 100


def test_a_damaged_event_is_refused_also_if_its_producer_has_sent_similar_ones() -> None:
    """What is accepted after many similar events, a reader can decode."""
    rng, shapes = Random(7), SectionShapes()
    valid = events_of(rng, 60)
    parse_payload(encode_batch(valid), BATCH_FORMAT, shapes)
    refused = 0
    for _ in range(3000):
        damaged = mutate(rng.choice(valid), rng, valid)
        payload = encode_batch([*valid[:3], damaged, *valid[3:5]])
        try:
            batch = parse_payload(payload, BATCH_FORMAT, shapes)
        except (MalformedBytes, AmqpError):
            refused += 1
            continue
        for group in batch.groups:
            for body in group.bodies:
                decode_message(group.prefix.header + body)
    assert refused > 500


def test_a_section_after_the_same_sections_is_checked_too() -> None:
    """The second event repeats the sections of the first, and has another one after them."""
    properties = encode_section(APPLICATION_PROPERTIES, {"a": 1})
    bad = section(APPLICATION_PROPERTIES, uuid_keys(2))
    event, odd = properties + BODY, properties + bad + BODY
    with pytest.raises(MalformedBytes, match="key of type uuid"):
        parse_payload(encode_batch([event, event, event, odd]), BATCH_FORMAT)


def test_a_producer_has_a_bounded_number_of_shapes() -> None:
    shapes = SectionShapes()
    for number in range(2 * UNKNOWN_MAX):
        text = "x" * (number % 50)
        sections = encode_section(APPLICATION_PROPERTIES, {str(number): 1, "text": text})
        shapes.check(sections)
        known = shapes._by_size
        assert sum(map(len, known.values())) <= SHAPES_MAX
        assert max(map(len, known.values())) <= SAME_SIZE_MAX


Make = Callable[[int], bytes]


def same_size(count: int) -> bytes:
    """Every event has another name, of the same size."""
    return encode_batch(
        encode_section(APPLICATION_PROPERTIES, {f"{number:06}": 1}) + BODY
        for number in range(count)
    )


def alternating(count: int) -> bytes:
    pair = [
        encode_section(APPLICATION_PROPERTIES, {name: value}) + BODY
        for name, value in (("a", 1), ("bb", "x"))
    ]
    return encode_batch(pair * count)


def other_leads(count: int) -> bytes:
    """Every event has other annotations, so that no two have the same start."""
    return encode_batch(
        encode_section(MESSAGE_ANNOTATIONS, {Symbol(f"{number:06}"): 1}) + BODY
        for number in range(count)
    )


@pytest.mark.parametrize("make", [same_size, alternating, other_leads])
def test_a_batch_is_parsed_in_linear_time(make: Make) -> None:
    assert_linear(lambda payload: parse_payload(payload, BATCH_FORMAT), make, 2000)


def text_keys(count: int) -> bytes:
    return encode({str(number): number for number in range(count)})


@pytest.mark.parametrize("code", [APPLICATION_PROPERTIES, VALUE, FOOTER, MESSAGE_ANNOTATIONS])
@pytest.mark.parametrize("make", [uuid_keys, text_keys])
def test_a_section_is_checked_in_linear_time(code: int, make: Make) -> None:
    def parse(payload: bytes) -> Any:
        return parse_payload(payload, SINGLE_FORMAT)

    assert_linear(parse, lambda count: section(code, make(count)), 1000, MalformedBytes)
