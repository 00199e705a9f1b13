"""Performatives: every composite in both directions, and invalid ones.

The hexadecimal is written from the specification (OASIS AMQP 1.0, parts 2, 3 and 5).
"""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.amqp.codec import decode, encode
from pumphouse.amqp.composites import (
    ANY,
    BY_DESCRIPTOR,
    INT_MAX,
    MAP,
    SYMBOLS,
    TAG_MAP,
    Composite,
    decode_performative,
    encode_performative,
    hyphen,
    specs,
    to_described,
)
from pumphouse.amqp.messages import Header, Properties
from pumphouse.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Received,
    Rejected,
    Released,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    Transfer,
)
from pumphouse.amqp.types import Array, Described, Symbol, UByte, UInt, ULong, UShort
from pumphouse.errors import LocalProtocolError, MalformedBytes

STOLEN = Error(condition="amqp:link:stolen", description="why")
STOLEN_HEX = "00 53 1d c0 19 03  a3 10 616d71703a6c696e6b3a73746f6c656e  a1 03 776879  40"

CASES: list[tuple[Composite, str]] = [
    # -- connection and session
    (
        Open(container_id="c", max_frame_size=65536, channel_max=4999, idle_time_out=240000),
        "00 53 10 c0 17 0a  a1 01 63  40  70 00010000  60 1387  70 0003a980  40 40 40 40 40",
    ),
    (
        Open(
            container_id="c",
            hostname="h",
            max_frame_size=512,
            channel_max=0,
            idle_time_out=0,
            outgoing_locales=("en-US",),
            incoming_locales=("en-US",),
            offered_capabilities=("a", "b"),
            desired_capabilities=("c",),
            properties={Symbol("product"): "x"},
        ),
        "00 53 10 c0 50 0a  a1 01 63  a1 01 68  70 00000200  60 0000  43"
        "e0 0b 01 b3 00000005 656e2d5553  e0 0b 01 b3 00000005 656e2d5553"
        "e0 0c 02 b3 00000001 61 00000001 62  e0 07 01 b3 00000001 63"
        "c1 0d 02 a3 07 70726f64756374 a1 01 78",
    ),
    (
        Begin(
            remote_channel=1, next_outgoing_id=0, incoming_window=65536, outgoing_window=2**31 - 1
        ),
        "00 53 11 c0 17 08  60 0001  43  70 00010000  70 7fffffff  70 ffffffff  40 40 40",
    ),
    (End(), "00 53 17 c0 02 01 40"),
    (End(error=STOLEN), f"00 53 17 c0 1f 01 {STOLEN_HEX}"),
    (Close(), "00 53 18 c0 02 01 40"),
    (Close(error=STOLEN), f"00 53 18 c0 1f 01 {STOLEN_HEX}"),
    # -- links
    (
        Attach(name="l", handle=7, role=False),
        "00 53 12 c0 12 0e  a1 01 6c  52 07  42  40 40 40 40 40 40 40 40 40 40 40",
    ),
    (
        Attach(
            name="l",
            handle=300,
            role=True,
            snd_settle_mode=1,
            rcv_settle_mode=0,
            source=Source(address="eh"),
            target=Target(address="t"),
            incomplete_unsettled=False,
            initial_delivery_count=0,
            max_message_size=1048576,
            desired_capabilities=("x",),
            properties={Symbol("com.microsoft:epoch"): 5},
        ),
        "00 53 12 c0 61 0e  a1 01 6c  70 0000012c  41  50 01  50 00"
        "00 53 28 c0 0f 0b  a1 02 6568  40 40 40 40 40 40 40 40 40 40"
        "00 53 29 c0 0a 07  a1 01 74  40 40 40 40 40 40"
        "40  42  43  80 0000000000100000  40  e0 07 01 b3 00000001 78"
        "c1 18 02 a3 13 636f6d2e6d6963726f736f66743a65706f6368 55 05",
    ),
    (
        Flow(incoming_window=5, next_outgoing_id=1, outgoing_window=6),
        "00 53 13 c0 0f 0b  40  52 05  52 01  52 06  40 40 40 40 42 42 40",
    ),
    (
        Flow(
            next_incoming_id=2**32 - 1,
            incoming_window=5,
            next_outgoing_id=1,
            outgoing_window=6,
            handle=0,
            delivery_count=9,
            link_credit=300,
            available=2,
            drain=True,
            echo=True,
            properties={},
        ),
        "00 53 13 c0 1b 0b  70 ffffffff  52 05  52 01  52 06  43  52 09  70 0000012c  52 02  41 41"
        "c1 01 00",
    ),
    (Transfer(handle=0), "00 53 14 c0 0c 0b  43  40 40 40 40  42  40 40  42 42 42"),
    (
        Transfer(
            handle=1,
            delivery_id=2,
            delivery_tag=b"\x00",
            message_format=0x80013700,
            settled=False,
            more=True,
            rcv_settle_mode=1,
            state=Accepted(),
            resume=True,
            aborted=True,
            batchable=True,
        ),
        "00 53 14 c0 18 0b  52 01  52 02  a0 01 00  70 80013700  42  41  50 01  00 53 24 45"
        "41 41 41",
    ),
    (
        Disposition(role=True, first=3, last=5, settled=True, state=Accepted()),
        "00 53 15 c0 0c 06  41  52 03  52 05  41  00 53 24 45  42",
    ),
    (Disposition(role=False, first=0), "00 53 15 c0 07 06  42  43  40  42  40  42"),
    (Detach(handle=1), "00 53 16 c0 05 03  52 01  42  40"),
    (
        Detach(handle=1, closed=True, error=STOLEN),
        f"00 53 16 c0 22 03  52 01  41  {STOLEN_HEX}",
    ),
    # -- outcomes and ends of links
    (STOLEN, STOLEN_HEX),
    (
        Error(condition="a:b", info={Symbol("k"): "v"}),
        "00 53 1d c0 10 03  a3 03 613a62  40  c1 07 02 a3 01 6b a1 01 76",
    ),
    (Received(section_number=1, section_offset=2), "00 53 23 c0 05 02  52 01  53 02"),
    (Accepted(), "00 53 24 45"),
    (Rejected(), "00 53 25 c0 02 01 40"),
    (Rejected(error=STOLEN), f"00 53 25 c0 1f 01 {STOLEN_HEX}"),
    (Released(), "00 53 26 45"),
    (
        Modified(delivery_failed=True, undeliverable_here=False, message_annotations={}),
        "00 53 27 c0 06 03  41  42  c1 01 00",
    ),
    (
        Source(
            address="a",
            durable=1,
            expiry_policy="never",
            timeout=0,
            dynamic=False,
            dynamic_node_properties={},
            distribution_mode="move",
            filter={Symbol("f"): Described(Symbol("f"), "x")},
            default_outcome=Released(),
            outcomes=("amqp:accepted:list",),
            capabilities=("c",),
        ),
        "00 53 28 c0 4c 0b  a1 01 61  52 01  a3 05 6e65766572  43  42  c1 01 00  a3 04 6d6f7665"
        "c1 0b 02 a3 01 66 00 a3 01 66 a1 01 78  00 53 26 45"
        "e0 18 01 b3 00000012 616d71703a61636365707465643a6c697374  e0 07 01 b3 00000001 63",
    ),
    (
        Target(address="a", durable=2, timeout=1, dynamic=True, capabilities=("c",)),
        "00 53 29 c0 14 07  a1 01 61  52 02  40  52 01  41  40  e0 07 01 b3 00000001 63",
    ),
    # -- the login
    (
        SaslMechanisms(mechanisms=("PLAIN", "ANONYMOUS")),
        "00 53 40 c0 1b 01  e0 18 02 b3 00000005 504c41494e 00000009 414e4f4e594d4f5553",
    ),
    (
        SaslInit(mechanism="PLAIN", initial_response=b"\x00u\x00p", hostname="h"),
        "00 53 41 c0 11 03  a3 05 504c41494e  a0 04 00750070  a1 01 68",
    ),
    (SaslInit(mechanism="EXTERNAL"), "00 53 41 c0 0d 03  a3 08 45585445524e414c  40 40"),
    (SaslChallenge(challenge=b"?"), "00 53 42 c0 04 01  a0 01 3f"),
    (SaslResponse(response=b"!"), "00 53 43 c0 04 01  a0 01 21"),
    (SaslOutcome(code=0), "00 53 44 c0 04 02  50 00  40"),
    (SaslOutcome(code=1, additional_data=b"x"), "00 53 44 c0 06 02  50 01  a0 01 78"),
]

EVERYTHING = sorted(set(BY_DESCRIPTOR.values()), key=lambda cls: cls.CODE)
everything = pytest.mark.parametrize("cls", EVERYTHING, ids=lambda cls: cls.NAME)


def assert_both_directions(composite: Composite, hexadecimal: str) -> None:
    """These bytes are this composite, also with others around them."""
    data = bytes.fromhex(hexadecimal)
    assert encode_performative(composite).hex() == data.hex()
    assert decode_performative(data, 0, len(data)) == (composite, len(data))
    assert decode_performative(b"\xff" + data + b"\xff", 1, 1 + len(data)) == (
        composite,
        1 + len(data),
    )


@pytest.mark.parametrize(("composite", "hexadecimal"), CASES, ids=lambda case: str(case)[:40])
def test_bytes_in_both_directions(composite: Composite, hexadecimal: str) -> None:
    assert_both_directions(composite, hexadecimal)


def test_the_table_contains_every_composite() -> None:
    assert {type(case) for case, _ in CASES} == set(EVERYTHING) - {Header, Properties}


def test_a_long_list_takes_the_wide_form() -> None:
    name = "n" * 300
    data = encode_performative(Attach(name=name, handle=0, role=True))
    assert data[:4].hex() == "005312d0"
    assert decode_performative(data, 0, len(data))[0] == Attach(name=name, handle=0, role=True)


# -- values of a field by its type ----------------------------------------------------------------


def good_value(kind: Any) -> Any:
    """A plain value that a field of this type accepts."""
    if kind in INT_MAX:
        return kind(1)
    if isinstance(kind, type) and issubclass(kind, Composite):
        return to_described(STOLEN)
    samples = {
        str: "x",
        Symbol: Symbol("x"),
        bytes: b"x",
        bool: True,
        MAP: {},
        TAG_MAP: {b"tag": None},
        SYMBOLS: Symbol("x"),
    }
    return samples.get(kind, "x")


def bad_values(kind: Any) -> list[Any]:
    """Plain values that a field of this type refuses."""
    if kind in INT_MAX:
        beyond = [ULong(INT_MAX[kind] + 1)] if kind is not ULong else []
        return ["1", True, 1.0, -1, [], *beyond]
    if kind is ANY:
        return []
    if isinstance(kind, type) and issubclass(kind, Composite):
        return ["x", [Symbol("x")], to_described(Accepted()), Described(ULong(0x1D), "x")]
    bad: dict[Any, list[Any]] = {
        str: [b"x", 1, []],
        Symbol: [b"x", 1, "é"],
        bytes: ["x", 1],
        bool: [1, "true", UByte(0)],
        MAP: [[], "x", {1: 1}, {b"x": 1}],
        TAG_MAP: [[], "x", {1: 1}, {"x": 1}],
        SYMBOLS: [["x"], Array(0xA0, (b"x",)), 1, "é", Array(0xB1, ("x", "é"))],
    }
    return bad[kind]


def required_only(cls: type[Composite]) -> list[Any]:
    return [good_value(spec.kind) if spec.required else None for spec in specs(cls)]


def from_values(cls: type[Composite], values: list[Any], descriptor: Any = None) -> Composite:
    data = encode(Described(ULong(cls.CODE) if descriptor is None else descriptor, values))
    performative, after = decode_performative(data, 0, len(data))
    assert after == len(data)
    return performative


@everything
def test_field_lists_are_always_complete(cls: type[Composite]) -> None:
    """The official client indexes fields by position and fails on a short list."""
    performative = from_values(cls, required_only(cls))
    data = encode_performative(performative)
    written, _ = decode(data)
    assert written.descriptor == cls.CODE
    assert len(written.value) == len(specs(cls))
    assert data[:2] == b"\x00\x53"  # the official client requires this form of the descriptor
    assert data[3] == (0xC0 if specs(cls) else 0x45)  # list0 only where there are no fields


def test_an_error_has_three_fields() -> None:
    for performative in (
        Close(error=Error(condition="c")),
        Rejected(error=Error(condition="c")),
    ):
        written, _ = decode(encode_performative(performative))
        assert written.value[0].value == ["c", None, None]


@everything
def test_a_peer_may_omit_trailing_nulls(cls: type[Composite]) -> None:
    values = required_only(cls)
    full = from_values(cls, values)
    while values and values[-1] is None:
        values.pop()
        assert from_values(cls, values) == full


@everything
def test_a_descriptor_may_be_a_name(cls: type[Composite]) -> None:
    values = required_only(cls)
    named = from_values(cls, values, Symbol(f"amqp:{cls.NAME}:list"))
    assert named == from_values(cls, values)


@everything
def test_a_missing_mandatory_field_is_refused(cls: type[Composite]) -> None:
    for number, spec in enumerate(specs(cls)):
        if spec.required:
            values = required_only(cls)
            values[number] = None
            problem = f"{cls.NAME}.{hyphen(spec.name)} is mandatory, found null"
            with pytest.raises(MalformedBytes, match=problem) as caught:
                from_values(cls, values)
            assert caught.value.condition == "amqp:decode-error"


@everything
def test_a_field_of_the_wrong_type_is_named(cls: type[Composite]) -> None:
    for number, spec in enumerate(specs(cls)):
        for bad in bad_values(spec.kind):
            values = required_only(cls)
            values[number] = bad
            with pytest.raises(MalformedBytes, match=f"{cls.NAME}.{hyphen(spec.name)}: "):
                from_values(cls, values)


@everything
def test_an_extra_field_is_refused(cls: type[Composite]) -> None:
    known = len(specs(cls))
    values = [*required_only(cls), *[None] * 3]
    with pytest.raises(MalformedBytes, match=f"has {known} fields, found {known + 3}"):
        from_values(cls, values)


def test_the_error_names_the_field_the_type_and_the_position() -> None:
    data = b"\xff" + encode(Described(ULong(0x10), ["c", None, "big"]))
    with pytest.raises(
        MalformedBytes, match=r"at byte 1: open.max-frame-size: expected uint, found str 'big'"
    ):
        decode_performative(data, 1, len(data))


def test_the_error_of_a_nested_field_names_both_fields() -> None:
    with pytest.raises(MalformedBytes, match=r"close.error: error.condition is mandatory"):
        from_values(Close, [Described(ULong(0x1D), [None])])


@pytest.mark.parametrize("width", [UByte, UShort, UInt, ULong, int])
def test_any_integer_width_is_accepted(width: type[int]) -> None:
    """Peers use different widths for the same value."""
    assert from_values(Detach, [width(5)]) == Detach(handle=5)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (Described(ULong(0x99), []), r"descriptor ULong ULong\(153\) is not known"),
        (Described(Symbol("amqp:nothing:list"), []), "descriptor Symbol .* is not known"),
        (Described([], []), r"descriptor list \[\] is not known"),
        (Described(True, []), "descriptor bool True is not known"),
        (Described(ULong(0x10), {}), r"open must hold a list, found dict \{\}"),
        ([1], "a frame body must start with a performative, found list"),
        (None, "a frame body must start with a performative, found NoneType"),
    ],
)
def test_an_invalid_performative_is_refused(value: Any, problem: str) -> None:
    data = encode(value)
    with pytest.raises(MalformedBytes, match=problem):
        decode_performative(data, 0, len(data))


def test_a_mandatory_field_cannot_be_omitted_on_encoding() -> None:
    with pytest.raises(LocalProtocolError, match=r"attach.name must be set"):
        encode_performative(Attach(name=None, handle=0, role=True))  # type: ignore[arg-type]


def test_an_unknown_delivery_state_is_passed_on() -> None:
    """For example a declared or transactional state, which we do not interpret."""
    state = Described(ULong(0x34), [b"txn"])
    assert from_values(Disposition, [True, UInt(0), None, True, state]).state == state  # type: ignore[attr-defined]
