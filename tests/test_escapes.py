"""Text from clients as output: nothing reaches a terminal that it would act on."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.escapes import json_text, printable, printable_lines

any_text = st.text(st.characters())  # lone surrogates too


@given(any_text)
def test_any_text_is_one_printable_line(text: str) -> None:
    assert printable(text).isprintable()
    printable(text).encode()
    assert printable(text) == text or not text.isprintable()


@given(any_text)
def test_line_breaks_can_be_kept(text: str) -> None:
    lines = printable_lines(text).split("\n")
    assert len(lines) == text.count("\n") + 1
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode 主機", "plain ünïcode 主機"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b2J", r"\x9b2J"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\u202e\u2066\ufeff", r"\u202e\u2066\ufeff"),
        ("\udcff", r"\udcff"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | any_text,
        lambda inner: st.lists(inner) | st.dictionaries(any_text, inner),
    )
)
def test_any_value_is_one_printable_line_of_json(value: Any) -> None:
    text = json_text(value)
    assert text.isprintable()
    text.encode()
    back = json.loads(text, parse_constant=pytest.fail)
    assert back == value or "NaN" in repr(value).replace("nan", "NaN") or "inf" in repr(value)


def test_a_number_that_json_does_not_have_is_null() -> None:
    assert json_text({"a": (math.nan, 1.5)}) == '{"a": [null, 1.5]}'


def test_a_value_of_another_type_needs_a_default() -> None:
    assert json_text({"a": {1}}, default=sorted) == '{"a": [1]}'
