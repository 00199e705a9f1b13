"""Decimal numbers in the BID encoding of IEEE 754-2008, which AMQP uses.

The coefficient is one binary integer, beside a sign and a biased exponent:

    s | exponent | coefficient            exponent does not begin with the bits 11
    s | 11 | exponent | coefficient       the coefficient without its first three bits, 100
    s | 11110 ...                         infinity
    s | 11111 | q | ... | payload         NaN, signalling when q is 1

The second form exists because the largest coefficient of decimal32, 10**7 - 1, needs 24 bits and
the first form has 23 bits for it. The same holds for decimal64. In decimal128 the first form holds
every coefficient.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from pumphouse.errors import LocalProtocolError


@dataclass(frozen=True, slots=True)
class Format:
    """The bit layout of one of the three widths."""

    name: str
    bits: int
    digits: int
    exponent_bits: int
    bias: int

    @property
    def exponent_max(self) -> int:
        """The largest biased exponent: its first two bits may be 00, 01 or 10, never 11."""
        return (3 << self.exponent_bits - 2) - 1

    @property
    def coefficient_bits(self) -> int:
        """The width of the coefficient in the first form."""
        return self.bits - 1 - self.exponent_bits

    @property
    def payload_bits(self) -> int:
        """The width of the payload of a NaN."""
        return self.coefficient_bits - 3


DECIMAL32 = Format("decimal32", bits=32, digits=7, exponent_bits=8, bias=101)
DECIMAL64 = Format("decimal64", bits=64, digits=16, exponent_bits=10, bias=398)
DECIMAL128 = Format("decimal128", bits=128, digits=34, exponent_bits=14, bias=6176)


def unpack(form: Format, raw: bytes) -> Decimal:
    """The number in these bytes. Every bit pattern is valid; nothing is rounded."""
    if len(raw) * 8 != form.bits:
        raise LocalProtocolError(f"a {form.name} has {form.bits // 8} bytes, not {len(raw)}")
    word = int.from_bytes(raw, "big")
    sign = "-" if word >> (form.bits - 1) else ""
    combination = word >> (form.bits - 6) & 0b11111
    if combination == 0b11110:
        return Decimal(f"{sign}Infinity")
    if combination == 0b11111:
        signalling = "s" if word >> (form.bits - 7) & 1 else ""
        payload = _canonical(word & (1 << form.payload_bits) - 1, form.digits - 1)
        return Decimal(f"{sign}{signalling}NaN{payload or ''}")
    width = form.coefficient_bits
    prefix = 0
    if combination >> 3 == 0b11:
        width -= 2
        prefix = 0b100 << width
    exponent = word >> width & (1 << form.exponent_bits) - 1
    coefficient = _canonical(prefix | word & (1 << width) - 1, form.digits)
    return Decimal(f"{sign}{coefficient}E{exponent - form.bias}")


def pack(form: Format, value: Decimal) -> bytes:
    """The bytes of exactly this number. A number that does not fit is refused, never rounded."""
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    top = form.bits - 6
    if exponent == "F":
        word = 0b11110 << top
    elif isinstance(exponent, int):
        word = _finite(form, text, exponent + form.bias, value)
    elif len(text) < form.digits:
        word = 0b11111 << top | (exponent == "N") << (top - 1) | int(text or "0")
    else:
        raise LocalProtocolError(f"{form.name} cannot hold a NaN payload of {len(text)} digits")
    return (sign << (form.bits - 1) | word).to_bytes(form.bits // 8, "big")


def _finite(form: Format, text: str, exponent: int, value: Decimal) -> int:
    """The encoded word of a finite number, without its sign bit.

    Trailing zeros of `text` move into or out of the exponent if the number fits only then: 1E+96 is
    stored as 1000000E+90.
    """
    if not text:
        exponent = min(max(exponent, 0), form.exponent_max)
    zeros = len(text) - len(text.rstrip("0"))
    drop = min(zeros, max(len(text) - form.digits, -exponent, 0))
    text = text[: len(text) - drop]
    exponent += drop
    add = max(exponent - form.exponent_max, 0)
    if exponent < 0 or len(text) + add > form.digits:
        exponents = f"exponents from {-form.bias} to {form.exponent_max - form.bias}"
        raise LocalProtocolError(
            f"{form.name} has {form.digits} digits and {exponents} and cannot hold "
            f"{value:.40g} exactly; round it first"
        )
    coefficient = int(text + "0" * add or "0")
    exponent -= add
    width = form.coefficient_bits
    if coefficient >> width == 0:
        return exponent << width | coefficient
    width -= 2
    return 0b11 << (form.bits - 3) | exponent << width | coefficient & (1 << width) - 1


def _canonical(coefficient: int, digits: int) -> int:
    """The coefficient, or 0 if it has too many digits, as the standard requires."""
    return coefficient if coefficient < 10**digits else 0
