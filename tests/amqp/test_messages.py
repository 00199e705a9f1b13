"""Messages: sections in both directions, batches, and locating sections without decoding."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumphouse.amqp.codec import encode
from pumphouse.amqp.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SECTION_NAMES,
    SEQUENCE,
    VALUE,
    Header,
    Message,
    Properties,
    decode_message,
    encode_batch,
    encode_message,
    encode_section,
    scan,
)
from pumphouse.amqp.types import Described, Int, Symbol, Timestamp, UInt, ULong
from pumphouse.errors import MalformedBytes

SOME_UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

CASES: list[tuple[Message, str]] = [
    (Message(), "00 53 77 40"),
    (Message(value="x"), "00 53 77 a1 01 78"),
    (Message(data=(b"x",)), "00 53 75 a0 01 78"),
    (Message(data=(b"", b"x")), "00 53 75 a0 00  00 53 75 a0 01 78"),
    (Message(sequence=([], [None])), "00 53 76 45  00 53 76 c0 02 01 40"),
    (Message(header=Header()), "00 53 70 c0 06 05 40 40 40 40 40  00 53 77 40"),
    (
        Message(
            header=Header(durable=True, priority=4, ttl=1, first_acquirer=False, delivery_count=0)
        ),
        "00 53 70 c0 08 05 41 50 04 52 01 42 43  00 53 77 40",
    ),
    (
        Message(
            delivery_annotations={Symbol("d"): 1},
            annotations={Symbol("a"): 2},
            application={"p": Int(3)},
            data=(b"x",),
            footer={Symbol("f"): None},
        ),
        "00 53 71 c1 06 02 a3 01 64 55 01  00 53 72 c1 06 02 a3 01 61 55 02"
        "00 53 74 c1 06 02 a1 01 70 54 03  00 53 75 a0 01 78  00 53 78 c1 05 02 a3 01 66 40",
    ),
    (
        Message(properties=Properties(message_id=SOME_UUID, correlation_id=ULong(5))),
        "00 53 73 c0 1f 0d 98 00112233445566778899aabbccddeeff 40 40 40 40 53 05 40 40 40 40 40 40"
        "40  00 53 77 40",
    ),
    (
        Message(
            properties=Properties(
                message_id="m",
                user_id=b"u",
                to="t",
                subject="s",
                reply_to="r",
                correlation_id=b"c",
                content_type="y",
                content_encoding="e",
                absolute_expiry_time=Timestamp(1),
                creation_time=Timestamp(0),
                group_id="g",
                group_sequence=7,
                reply_to_group_id="q",
            )
        ),
        "00 53 73 c0 33 0d a1 01 6d a0 01 75 a1 01 74 a1 01 73 a1 01 72 a0 01 63 a3 01 79 a3 01 65"
        "83 0000000000000001 83 0000000000000000 a1 01 67 52 07 a1 01 71  00 53 77 40",
    ),
]


@pytest.mark.parametrize(("message", "hexadecimal"), CASES)
def test_bytes_in_both_directions(message: Message, hexadecimal: str) -> None:
    data = bytes.fromhex(hexadecimal)
    assert encode_message(message).hex() == data.hex()
    assert decode_message(data) == message
    assert decode_message(b"\xff" + data + b"\xff", 1, 1 + len(data)) == message


SECTIONS: list[tuple[int, Any]] = [
    (HEADER, [True]),
    (DELIVERY_ANNOTATIONS, {Symbol("d"): "x" * 300}),
    (MESSAGE_ANNOTATIONS, {}),
    (PROPERTIES, ["id"]),
    (APPLICATION_PROPERTIES, {"k": [1, {"deep": [None]}]}),
    (DATA, b"x" * 1000),
    (SEQUENCE, []),
    (VALUE, None),
    (VALUE, Described(Symbol("what"), Described(ULong(1), "ever"))),
    (FOOTER, {Symbol("f"): True}),
]


def test_scan_returns_the_position_of_each_section() -> None:
    encoded = [encode_section(code, value) for code, value in SECTIONS]
    data = b"".join(encoded)
    sections = scan(data, 0, len(data))
    assert [code for code, *_ in sections] == [code for code, _ in SECTIONS]
    assert [data[start:end] for _, start, _, end in sections] == encoded
    assert [value - start for _, start, value, _ in sections] == [3] * len(sections)


@pytest.mark.parametrize("number", range(len(SECTIONS)))
def test_scan_stops_at_the_given_end(number: int) -> None:
    data = b"".join(encode_section(code, value) for code, value in SECTIONS)
    sections = scan(data, 0, len(data))
    _, start, _, end = sections[number]
    assert scan(data, start, end) == [sections[number]]


@pytest.mark.parametrize("name", SECTION_NAMES)
def test_a_section_descriptor_may_have_any_form(name: str) -> None:
    code = SECTION_NAMES[name]
    value = encode({} if name.endswith("map") else [] if name.endswith("list") else b"x")
    usual, *others = (
        b"\x00" + descriptor + value
        for descriptor in (
            b"\x53" + bytes((code,)),
            b"\x80" + code.to_bytes(8, "big"),
            encode(Symbol(name)),
            encode(UInt(code)),
        )
    )
    for other in others:
        assert [section[0] for section in scan(other, 0, len(other))] == [code]
        assert decode_message(other) == decode_message(usual)


@pytest.mark.parametrize(
    ("hexadecimal", "problem"),
    [
        ("00 53", "expected a value|passes the end"),
        ("00 53 75", "section 0x75 has no value"),
        ("00 53 75 a0", "passes the end"),
        ("00 53 75 a0 02 78", "binary of 2 bytes passes the end"),
        ("00 53 75 b0 ffffffff 78", "binary of 4294967295 bytes passes the end"),
        ("00 53 75 a0 01 78 00", "expected a value"),
        ("00 53 75 a0 01 78 ff", "expected a message section, found byte 0xff"),
        ("53 75 a0 01 78", "expected a message section, found byte 0x53"),
        ("00 53 6f 40", "section 0x6f is not part of a message"),
        ("00 53 79 40", "section 0x79 is not part of a message"),
        ("00 53 14 c0 01 00", "section 0x14 is not part of a message"),
        ("00 a3 01 78 40", r"Symbol Symbol\('x'\) does not describe a message section"),
        ("00 a1 01 78 40", "str 'x' does not describe a message section"),
        ("00 40 40", "NoneType None does not describe a message section"),
        ("00 53 75 a2 01 78", "constructor 0xa2 is not an AMQP type"),
        ("00 53 77 cf 01 00", "constructor 0xcf is not an AMQP type"),
        ("00 53 77 01", "constructor 0x01 is not an AMQP type"),
    ],
)
def test_malformed_messages_are_refused(hexadecimal: str, problem: str) -> None:
    data = bytes.fromhex(hexadecimal)
    with pytest.raises(MalformedBytes, match=problem):
        scan(data, 0, len(data))
    with pytest.raises(MalformedBytes, match=problem):
        decode_message(data)


@pytest.mark.parametrize(
    ("code", "value", "problem"),
    [
        (DATA, "x", "data must hold bytes, found str"),
        (SEQUENCE, {}, "amqp-sequence must hold list, found dict"),
        (HEADER, {}, "header must hold list, found dict"),
        (HEADER, [1], r"header.durable: expected bool, found int 1"),
        (HEADER, [None] * 6, "header has 5 fields, found 6"),
        (PROPERTIES, [None, "u"], r"properties.user-id: expected bytes, found str 'u'"),
        (PROPERTIES, [None] * 11 + [-1], r"properties.group-sequence: expected uint"),
        (DELIVERY_ANNOTATIONS, [], "section 0x71 must hold dict, found list"),
        (MESSAGE_ANNOTATIONS, None, "section 0x72 must hold dict, found NoneType"),
        (APPLICATION_PROPERTIES, "x", "section 0x74 must hold dict, found str"),
        (FOOTER, 1, "section 0x78 must hold dict, found int"),
    ],
)
def test_a_section_of_the_wrong_type_is_refused(code: int, value: Any, problem: str) -> None:
    first = encode_section(DATA, b"")
    with pytest.raises(MalformedBytes, match=f"at byte {len(first)}: {problem}"):
        decode_message(first + encode_section(code, value))


def test_a_batch_holds_messages_in_data_sections() -> None:
    inner = [encode_message(Message(data=(body,))) for body in (b"a", b"b" * 300)]
    batch = encode_batch(inner, {Symbol("x-opt-partition-key"): "k"})
    read = decode_message(batch)
    assert read.data == tuple(inner)
    assert read.annotations == {"x-opt-partition-key": "k"}
    assert [decode_message(message).data for message in read.data] == [(b"a",), (b"b" * 300,)]
    assert batch.hex().startswith("005372c1")
    assert encode_batch(inner).hex().startswith("005375a0")


texts = st.text(max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.binary(max_size=300)
    | texts
    | st.uuids()
    | st.floats(allow_nan=False)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=8
)
maps = st.dictionaries(texts.map(lambda t: Symbol(t.encode("ascii", "ignore").decode())), values)
headers = st.builds(
    Header,
    durable=st.none() | st.booleans(),
    priority=st.none() | st.integers(0, 255),
    ttl=st.none() | st.integers(0, 2**32 - 1),
)
properties = st.builds(
    Properties,
    message_id=st.none() | st.uuids() | texts | st.binary() | st.integers(0, 2**64 - 1).map(ULong),
    subject=st.none() | texts,
    creation_time=st.none() | st.integers(-(2**63), 2**63 - 1).map(Timestamp),
)
bodies = st.fixed_dictionaries({"data": st.lists(st.binary(), min_size=1).map(tuple)}) | (
    st.fixed_dictionaries({"sequence": st.lists(st.lists(values), min_size=1).map(tuple)})
    | st.fixed_dictionaries({"value": values})
)


@settings(max_examples=40, deadline=None)
@given(st.none() | headers, maps, maps, st.none() | properties, maps, bodies, maps)
def test_any_message_round_trips(
    header: Header | None,
    delivery: dict[Any, Any],
    annotations: dict[Any, Any],
    props: Properties | None,
    application: dict[Any, Any],
    body: dict[str, Any],
    footer: dict[Any, Any],
) -> None:
    message = Message(
        header=header,
        delivery_annotations=delivery,
        annotations=annotations,
        properties=props,
        application=application,
        footer=footer,
        **body,
    )
    data = encode_message(message)
    assert decode_message(data) == message
    assert b"".join(data[start:end] for _, start, _, end in scan(data, 0, len(data))) == data
