"""Server-sent events as bytes."""

from __future__ import annotations

import json

from pumphouse.dashboard.server import sse


def test_a_message_is_one_line_of_data() -> None:
    data = {"text": "a\nb\r\nc\u2028d", "number": 0}
    message = sse.message("tail", data)
    head, line, *rest = message.split(b"\n")
    assert (head, rest) == (b"event: tail", [b"", b""])
    assert b"\r" not in message
    assert json.loads(line.removeprefix(b"data: ")) == data


def test_a_lone_surrogate_is_encoded() -> None:
    assert b"event: x" in sse.message("x", {"text": "\ud800"})
