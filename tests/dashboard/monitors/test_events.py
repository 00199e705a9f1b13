"""The tail of a hub and the samples that the page sends."""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.client.base import PartitionProperties
from pumphouse.dashboard.monitors.events import (
    BUFFER_MAX,
    Tail,
    TailQuery,
    event_json,
    few_before_end,
    sample_from,
)
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
    assert few_before_end(result, 10) == position
