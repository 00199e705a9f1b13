"""Decimals in IEEE 754-2008 BID encoding, in both directions, many from published sources."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumphouse.amqp.types import Decimal32, Decimal64, Decimal128
from pumphouse.errors import LocalProtocolError

KINDS: list[Any] = [Decimal32, Decimal64, Decimal128]

# 128 bits: most are in the test corpus of the BSON specification, whose decimal128 is the same BID
# encoding (there in little-endian order). 64 bits: most are in the tests of several BID libraries.
# The others, and all of 32 bits, are made by hand.
TABLE: list[tuple[Any, str, str]] = [
    (Decimal32, "0", "32800000"),
    (Decimal32, "1", "32800001"),
    (Decimal32, "-1", "b2800001"),
    (Decimal32, "7.50", "318002ee"),
    (Decimal32, "8388607", "32ffffff"),  # 2**23 - 1, the last of the first form
    (Decimal32, "8388608", "6ca00000"),  # 2**23, the first of the second
    (Decimal32, "9999999", "6cb8967f"),
    (Decimal32, "-9999999E+90", "f7f8967f"),
    (Decimal32, "9999999E-101", "6018967f"),
    (Decimal32, "1E-101", "00000001"),
    (Decimal32, "0E+90", "5f800000"),
    (Decimal32, "-0", "b2800000"),
    (Decimal32, "Infinity", "78000000"),
    (Decimal32, "-Infinity", "f8000000"),
    (Decimal32, "NaN", "7c000000"),
    (Decimal32, "-NaN", "fc000000"),
    (Decimal32, "NaN999999", "7c0f423f"),
    (Decimal32, "sNaN", "7e000000"),
    (Decimal32, "-sNaN7", "fe000007"),
    (Decimal64, "1", "31c0000000000001"),
    (Decimal64, "-1", "b1c0000000000001"),
    (Decimal64, "9999999999999999", "6c7386f26fc0ffff"),
    (Decimal64, "9999999999999999E+369", "77fb86f26fc0ffff"),
    (Decimal64, "1E-398", "0000000000000001"),
    (Decimal64, "Infinity", "7800000000000000"),
    (Decimal64, "NaN999999999999999", "7c038d7ea4c67fff"),
    (Decimal128, "0", "30400000000000000000000000000000"),
    (Decimal128, "0.1", "303e0000000000000000000000000001"),
    (Decimal128, "0.001234", "303400000000000000000000000004d2"),
    (Decimal128, "-1.00E-8", "b02c0000000000000000000000000064"),
    (
        Decimal128,
        "0.1234567890123456789012345678901234",
        "2ffc3cde6fff9732de825cd07e96aff2",
    ),
    (
        Decimal128,
        "9.999999999999999999999999999999999E+6144",
        "5fffed09bead87c0378d8e63ffffffff",
    ),
    (Decimal128, "1E-6176", "00000000000000000000000000000001"),
    (Decimal128, "0E+6111", "5ffe0000000000000000000000000000"),
    (Decimal128, "Infinity", "78000000000000000000000000000000"),
    (Decimal128, "sNaN", "7e000000000000000000000000000000"),
]


def exact(number: Decimal) -> object:
    """A key that is equal only for equal sign, digits and exponent: 7.5 is not 7.50."""
    return number.as_tuple()


@pytest.mark.parametrize(("kind", "number", "bits"), TABLE)
def test_a_decimal_has_these_bits_in_both_directions(kind: Any, number: str, bits: str) -> None:
    assert kind.from_decimal(Decimal(number)).bits.hex() == bits
    assert exact(kind(bytes.fromhex(bits)).to_decimal()) == exact(Decimal(number))


# The same number with too many zeros in its digits or exponent.
@pytest.mark.parametrize(
    ("number", "stored"),
    [
        ("1E+96", "1000000E+90"),
        ("12E+91", "120E+90"),
        ("10000000", "1000000E+1"),
        ("1230000000000", "1230000E+6"),
        ("1200E-103", "12E-101"),
        ("0E+500", "0E+90"),
        ("-0E-500", "-0E-101"),
    ],
)
def test_trailing_zeros_move_between_digits_and_exponent(number: str, stored: str) -> None:
    got = Decimal32.from_decimal(Decimal(number)).to_decimal()
    assert exact(got) == exact(Decimal(stored))
    assert got == Decimal(number)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (Decimal32, "12345678"),
        (Decimal32, "1.0000001"),
        (Decimal32, "1E+97"),
        (Decimal32, "12E+96"),
        (Decimal32, "12345670E+90"),
        (Decimal32, "1E-102"),
        (Decimal32, "120E-103"),
        (Decimal64, "1E+385"),
        (Decimal64, "1E-399"),
        (Decimal128, "1E+6145"),
        (Decimal128, "1" * 35),
        (Decimal128, "1" * 5000),
    ],
)
def test_a_number_that_does_not_fit_is_refused_not_rounded(kind: Any, number: str) -> None:
    with pytest.raises(LocalProtocolError, match=r"exactly; round it first$"):
        kind.from_decimal(Decimal(number))


def test_the_error_names_the_number_and_the_digits() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        Decimal32.from_decimal(Decimal("-12345678.5"))
    assert str(caught.value) == (
        "decimal32 has 7 digits and exponents from -101 to 90 "
        "and cannot hold -12345678.5 exactly; round it first"
    )


@pytest.mark.parametrize(("kind", "digits"), [(Decimal32, 7), (Decimal64, 16), (Decimal128, 34)])
def test_a_nan_payload_has_one_digit_less_than_a_number(kind: Any, digits: int) -> None:
    fits = Decimal("NaN" + "9" * (digits - 1))
    assert exact(kind.from_decimal(fits).to_decimal()) == exact(fits)
    with pytest.raises(LocalProtocolError, match=f"cannot hold a NaN payload of {digits} digits"):
        kind.from_decimal(Decimal("NaN1" + "0" * (digits - 1)))


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (Decimal32(bytes.fromhex("6cb89680")), "0"),  # 10**7: one more than seven digits
        (Decimal128(bytes.fromhex("6c10" + "00" * 14)), "0"),  # the second form: always too many
        (Decimal128(bytes.fromhex("3041ed09bead87c0378d8e6400000000")), "0"),  # 10**34
        (Decimal32(bytes.fromhex("7c0f4240")), "NaN"),  # 10**6 is not a valid payload
        (Decimal32(bytes.fromhex("7df00001")), "NaN1"),  # reserved bits are ignored
        (Decimal32(bytes.fromhex("78ffffff")), "Infinity"),
    ],
)
def test_non_canonical_bits_are_read_as_the_standard_requires(value: Any, number: str) -> None:
    assert exact(value.to_decimal()) == exact(Decimal(number))


PATIENT = settings(deadline=None)
SIZES = {Decimal32: 4, Decimal64: 8, Decimal128: 16}


@pytest.mark.parametrize("kind", KINDS)
def test_another_number_of_bytes_is_refused(kind: Any) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        kind(b"abc").to_decimal()
    assert str(caught.value) == f"a {kind.__name__.lower()} has {SIZES[kind]} bytes, not 3"


@PATIENT
@given(st.sampled_from(KINDS), st.data())
def test_any_bits_round_trip(kind: Any, data: st.DataObject) -> None:
    size = SIZES[kind]
    number = kind(data.draw(st.binary(min_size=size, max_size=size))).to_decimal()
    assert exact(kind.from_decimal(number).to_decimal()) == exact(number)


@PATIENT
@given(st.sampled_from(KINDS), st.decimals())
def test_any_number_is_refused_or_round_trips(kind: Any, number: Decimal) -> None:
    try:
        got = kind.from_decimal(number).to_decimal()
    except LocalProtocolError:
        return
    if number.is_nan():
        assert exact(got) == exact(number)
    else:
        assert got == number
        assert got.is_signed() == number.is_signed()
