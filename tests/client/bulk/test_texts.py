"""AMQP values as text."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from pumphouse.amqp.types import (
    Char,
    Decimal64,
    Described,
    Float,
    Symbol,
    Timestamp,
    UInt,
    array_of,
)
from pumphouse.client.bulk.texts import text_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ('"', '"'),
        ("", ""),
        (Symbol("text/plain"), "text/plain"),
        (Char("é"), "é"),
        (UUID("00112233-4455-6677-8899-aabbccddeeff"), "00112233-4455-6677-8899-aabbccddeeff"),
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (-5, "-5"),
        (UInt(5), "5"),
        (1.5, "1.5"),
        (Float(0.5), "0.5"),
        (1e300, "1e+300"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (Timestamp(0), '"1970-01-01T00:00:00Z"'),
        (Timestamp(1_700_000_000_123), '"2023-11-14T22:13:20.123Z"'),
        (Timestamp(-1), '"1969-12-31T23:59:59.999Z"'),
        (Timestamp(1 << 62), str(1 << 62)),  # outside of the calendar
        (b"\x00\x7f\x80\xff", "[0,127,-128,-1]"),
        (Decimal64.from_decimal(Decimal("1.50")), "1.50"),
        (Described(Symbol("a:b"), "inside"), "inside"),
        ([1, "a", None, b"\x01"], '[1,"a",null,[1]]'),
        ({"é": [1.5, True]}, '{"é":[1.5,true]}'),
        ({1: Timestamp(0)}, '{"1":"1970-01-01T00:00:00Z"}'),
        (array_of(UInt, [1, 2]), "[1,2]"),
        ([float("inf"), Decimal64.from_decimal(Decimal(7))], '["Infinity","7"]'),
        ([Described(Symbol("a:b"), {"k": 1})], '[{"k":1}]'),
        ([UUID(int=1)], '["00000000-0000-0000-0000-000000000001"]'),
    ],
)
def test_values_as_text(value: Any, text: str) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize("value", [None, True, 7, 1.5, [1, [2]], {"a": b"\x01"}, Timestamp(5)])
def test_other_values_are_json(value: Any) -> None:
    json.loads(text_of(value))
