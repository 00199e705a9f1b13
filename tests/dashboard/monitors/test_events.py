"""The tail of a hub and the samples that the page sends."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pumphouse.client.base import PartitionProperties
from pumphouse.dashboard.monitors.events import (
    BUFFER_MAX,
    Tail,
    TailQuery,
    event_json,
    position_of_last,
    sample_from,
)
from pumphouse.dashboard.server import sse
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, Event, Position


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hub": "other"}, "unknown hub 'other'"),
        ({"body": ""}, "empty body"),
        ({"body": 7}, "empty body"),
        ({"count": 101}, "use 1 to 100"),
        ({"count": 0}, "use 1 to 100"),
        ({"count": True}, "use 1 to 100"),
        ({"key": "a", "partition": "1"}, "not both"),
        ({"key": 7}, "must be text"),
        ({"body": "half \ud800"}, "half a character"),
        ({"key": "\udfff"}, "half a character"),
        ({"partition": "\udfff"}, "half a character"),
    ],
)
def test_an_invalid_sample_is_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        sample_from({"hub": "sensors", "body": "x", **change}, ("sensors",))


def event(text: str, key: str | None = None) -> Event:
    return Event(text.encode(), partition_key=key, partition="0", sequence=5, offset="9")


def test_the_filter_searches_body_and_key() -> None:
    query = TailQuery("sensors", "page", text="DooR")
    assert query.matches(event('{"sensor":"door"}'))
    assert query.matches(event("x", "front-door"))
    assert not query.matches(event("window"))
    assert TailQuery("sensors", "page").matches(Event(b"\xff"))


async def test_events_beyond_the_buffer_are_counted_and_dropped() -> None:
    tail = Tail(TailQuery("sensors", "page", text="x"))
    tail.add([event("x"), event("y")] * BUFFER_MAX)
    result = tail.take()
    assert len(result["events"]) == BUFFER_MAX
    assert (result["seen"], result["matched"]) == (2 * BUFFER_MAX, BUFFER_MAX)
    assert result["left_out"] == 0
    tail.add([event("x")] * (BUFFER_MAX + 3))
    result = tail.take()
    assert (len(result["events"]), result["left_out"]) == (BUFFER_MAX, 3)
    assert tail.take()["events"] == []


def test_an_event_as_json() -> None:
    shown = event_json(Event(b'{"a":1}', {"n": 1}, None, "0", 0, "0", 5))
    assert (shown["sequence"], shown["json"], shown["properties"]) == (0, True, {"n": "1"})
    long = event_json(Event("ä".encode() * 5000))
    assert (len(long["body"]), long["cut"], long["size"]) == (4096, True, 10_000)
    assert event_json(Event(b"\xff"))["body"] == "\\xff"


@pytest.mark.parametrize(
    ("body", "json"),
    [
        (b"[1]", True),
        (b'{"a": [null, 1e400]}', True),  # a browser reads Infinity, as Python does
        (b'["\\ud800"]', True),
        (b"[NaN]", False),
        (b"[-Infinity]", False),
        (b'\xef\xbb\xbf{"a": 1}', False),  # a byte order mark
        ('{"a": 1}'.encode("utf-16"), False),
        ('{"a": 1}'.encode("utf-32-le"), False),
        (b'["\xff"]', False),
        (b'["\n"]', False),
        (b"[" * 4000, False),
        (b"[" * 2000 + b"]" * 2000, False),
        (b"[" + b"9" * 4500 + b"]", False),
        (b"1", False),
        (b"", False),
        (b" " * 4097 + b"[]", False),  # cut
    ],
)
def test_a_body_is_json_only_if_a_browser_can_parse_it(body: bytes, json: bool) -> None:
    assert event_json(Event(body))["json"] is json


def test_long_texts_of_an_event_are_cut() -> None:
    properties = {f"{n}-{'p' * 500}": "v" * 500 for n in range(100)}
    shown = event_json(Event(b"\xf0\x9f\x8e\x89" * 3_000_000, properties, "k" * 500))
    assert (len(shown["body"]), shown["cut"], shown["size"]) == (4096, True, 12_000_000)
    assert shown["body"] == "\N{PARTY POPPER}" * 4096
    assert len(shown["key"]) < 210
    assert len(shown["properties"]) == 50
    assert max(len(name) + len(value) for name, value in shown["properties"].items()) < 420
    assert len(sse.encode_json(shown)) < 50_000


async def test_the_buffer_does_not_keep_whole_bodies() -> None:
    tail = Tail(TailQuery("sensors", "page"))
    body = bytes(1 << 20)
    tail.add([Event(body)] * BUFFER_MAX)
    assert sys.getrefcount(body) < 10
    assert len(tail.take()["events"]) == BUFFER_MAX


@pytest.mark.parametrize(
    ("first", "last", "empty", "position"),
    [
        (0, -1, True, EARLIEST),
        (0, 99, False, Position("sequence", "90", inclusive=True)),
        (95, 99, False, Position("sequence", "95", inclusive=True)),
        (100, 99, True, EARLIEST),
    ],
)
def test_the_position_of_the_last_events(
    first: int, last: int, empty: bool, position: Position
) -> None:
    result = PartitionProperties("sensors", "0", first, last, "0", 0, empty)
    assert position_of_last(result, 10) == position
