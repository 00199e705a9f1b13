"""Server-sent events as bytes."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pumphouse.dashboard.server import sse


def test_a_message_is_one_line_of_data() -> None:
    data = {"text": "a\nb\r\nc\u2028d", "number": 0}
    message = sse.message("tail", data)
    head, line, *rest = message.split(b"\n")
    assert (head, rest) == (b"event: tail", [b"", b""])
    assert b"\r" not in message
    assert json.loads(line.removeprefix(b"data: ")) == data


def test_a_lone_surrogate_is_escaped() -> None:
    assert sse.message("x", {"a": "\ud800"}) == b'event: x\ndata: {"a":"\\ud800"}\n\n'


def test_numbers_that_json_does_not_have_are_null() -> None:
    data = {"a": [math.nan, (math.inf, 1.5)], "b": {"c": -math.inf}, "d": True, "e": None}
    assert sse.encode_json(data) == b'{"a":[null,[null,1.5]],"b":{"c":null},"d":true,"e":null}'


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    )
)
def test_any_data_is_json_on_one_line(data: Any) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    encoded = sse.encode_json(data)
    json.loads(encoded.decode(), parse_constant=refuse)
    assert b"\n" not in encoded
    assert b"\r" not in encoded
