"""Who may ask, what a stage file means, what a form means: all that is decided without waiting."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pumphouse.client.base import PartitionProperties
from pumphouse.dashboard.monitors.events import (
    BUFFER_MAX,
    Tail,
    TailWanted,
    event_shown,
    few_before_end,
    sample_from,
)
from pumphouse.dashboard.monitors.hub_faults import CHOICES, fault_from
from pumphouse.dashboard.monitors.pulse import Pulse
from pumphouse.dashboard.monitors.stages import read_stages, stages_from
from pumphouse.dashboard.options import DashboardOptions, HomesFeed, WatchedGroup
from pumphouse.dashboard.server import sse
from pumphouse.dashboard.server.guard import HEADERS, hosts_allowed, refusal
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, Event, Position

OURS = {"host": "127.0.0.1:8080", "origin": "http://127.0.0.1:8080", "x-pumphouse-token": "t"}


@pytest.mark.parametrize(
    ("method", "change", "status"),
    [
        ("GET", {}, None),
        ("HEAD", {"origin": "http://evil.example"}, None),
        ("GET", {"host": "localhost:8080"}, None),
        ("GET", {"host": "LOCALHOST:8080"}, None),
        ("GET", {"host": "evil.example:8080"}, 421),  # DNS rebinding
        ("GET", {"host": "127.0.0.1:8081"}, 421),
        ("GET", {"host": "127.0.0.1"}, 421),
        ("GET", {"host": None}, 421),
        ("POST", {}, None),
        ("POST", {"host": "localhost:8080"}, 403),  # another origin than it says
        ("POST", {"origin": "http://evil.example"}, 403),
        ("POST", {"origin": "null"}, 403),
        ("POST", {"origin": None}, 403),
        ("POST", {"x-pumphouse-token": "other"}, 403),
        ("POST", {"x-pumphouse-token": "tö"}, 403),
        ("POST", {"x-pumphouse-token": None}, 403),
        ("PUT", {}, 405),
        ("OPTIONS", {}, 405),
    ],
)
def test_who_may_ask(method: str, change: dict[str, str | None], status: int | None) -> None:
    headers = {name: value for name, value in {**OURS, **change}.items() if value is not None}
    found = refusal(method, headers, hosts_allowed(8080), "t")
    assert (found[0] if found else None) == status


def test_nothing_inline_and_nothing_from_elsewhere() -> None:
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "frame-ancestors 'none'" in policy


def test_a_message_is_one_line_whatever_is_in_it() -> None:
    data = {"text": "a\nb\r\nc\u2028d", "number": 0}
    message = sse.message("tail", data)
    head, line, *rest = message.split(b"\n")
    assert (head, rest) == (b"event: tail", [b"", b""])
    assert b"\r" not in message
    assert json.loads(line.removeprefix(b"data: ")) == data


def test_a_message_survives_half_a_character() -> None:
    assert b"event: x" in sse.message("x", {"text": "\ud800"})


async def test_a_pulse_wakes_who_waits_and_ends_all() -> None:
    pulse = Pulse()
    assert await pulse.after(0, 0.01) == 0
    waiting = [asyncio.create_task(pulse.after(0, 60.0)) for _ in range(3)]
    await asyncio.sleep(0)
    pulse.beat()
    assert await asyncio.gather(*waiting) == [1, 1, 1]
    ending = asyncio.create_task(pulse.after(1, 60.0))
    await asyncio.sleep(0)
    pulse.close()
    assert await ending == 1
    assert await pulse.after(1, 60.0) == 1


# -- stages ---------------------------------------------------------------------------------------

# fmt: off
STAGE = {"state": "running", "restarts": 1, "error": None, "batch": 4, "batch_ms": 812,
         "input_rate": 8333.0, "processed_rate": 21000.0, "rows": 9000, "lag_events": 0,
         "lag_s": None, "state_rows": 5, "state_bytes": 2048, "counts": {"bad": 3, "x": "y"}}
# fmt: on


def test_the_stages_as_they_say() -> None:
    found = stages_from(json.dumps({"v": 1, "at": 5000, "stages": {"sift": STAGE}}).encode(), 6000)
    (stage,) = found["stages"]
    assert (stage["name"], stage["state"], stage["lag_events"]) == ("sift", "running", 0)
    assert stage["lag_s"] is None
    assert stage["counts"] == {"bad": 3}
    assert (found["old"], found["why"]) == (False, "")
    assert stages_from(b'{"at": 0, "stages": {}}', 121_000)["old"]


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b'{"at":1}', b'{"at":1,"stages":[1]}', b'{"stages":{}}',
     b'{"at":1,"stages":{"a":7}}', b"\xff"],
)  # fmt: skip
def test_a_file_that_is_none_is_said_to_be(text: bytes) -> None:
    found = stages_from(text, 0)
    assert found["stages"] == []
    assert "understands" in found["why"]


def test_numbers_that_are_none_are_unknown() -> None:
    text = b'{"at":1,"stages":{"a":{"batch":"x","lag_s":NaN,"restarts":true}}}'
    (stage,) = stages_from(text, 0)["stages"]
    assert (stage["batch"], stage["lag_s"], stage["restarts"]) == (None, None, None)
    json.dumps(stage, allow_nan=False)


def test_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    assert "yet" in read_stages(tmp_path / "status.json", 0)["why"]
    assert "cannot be read" in read_stages(tmp_path, 0)["why"]


# -- faults and samples ---------------------------------------------------------------------------


@pytest.mark.parametrize("action", CHOICES)
def test_a_fault_out_of_a_form(action: str) -> None:
    found = fault_from({"action": action, "hub": "sensors", "partition": "3"}, ("sensors",))
    assert (found["action"], found["hub"], found["partition"]) == (action, "sensors", "3")
    assert ("seconds" in found) == (action == "delay")


@pytest.mark.parametrize(
    "asked",
    [
        {"action": "explode", "hub": "sensors"},
        {"action": "drop", "hub": "other"},
        {"action": "drop"},
        {"action": "delay", "hub": "sensors", "seconds": 31},
        {"action": "delay", "hub": "sensors", "seconds": "1"},
        {"action": "delay", "hub": "sensors", "seconds": 0},
        {"action": "drop", "hub": "sensors", "partition": 3},
    ],
)
def test_a_fault_that_makes_no_sense(asked: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        fault_from(asked, ("sensors",))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hub": "other"}, "no hub 'other' here"),
        ({"body": ""}, "needs a body"),
        ({"body": 7}, "needs a body"),
        ({"count": 101}, "from 1 to 100"),
        ({"count": 0}, "from 1 to 100"),
        ({"count": True}, "from 1 to 100"),
        ({"key": "a", "partition": "1"}, "not both"),
        ({"key": 7}, "are text"),
    ],
)
def test_a_sample_that_makes_no_sense(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        sample_from({"hub": "sensors", "body": "x", **change}, ("sensors",))


# -- tails ----------------------------------------------------------------------------------------


def event(text: str, key: str | None = None) -> Event:
    return Event(text.encode(), partition_key=key, partition="0", sequence=5, offset="9")


def test_a_tail_filters_in_body_and_key() -> None:
    wanted = TailWanted("sensors", "page", text="DooR")
    assert wanted.matches(event('{"sensor":"door"}'))
    assert wanted.matches(event("x", "front-door"))
    assert not wanted.matches(event("window"))
    assert TailWanted("sensors", "page").matches(Event(b"\xff"))


async def test_what_is_too_fast_is_counted_and_left_out() -> None:
    tail = Tail(TailWanted("sensors", "page", text="x"))
    tail.saw([event("x"), event("y")] * BUFFER_MAX)
    found = tail.take()
    assert len(found["events"]) == BUFFER_MAX
    assert (found["seen"], found["matched"]) == (2 * BUFFER_MAX, BUFFER_MAX)
    assert found["left_out"] == 0
    tail.saw([event("x")] * (BUFFER_MAX + 3))
    found = tail.take()
    assert (len(found["events"]), found["left_out"]) == (BUFFER_MAX, 3)
    assert tail.take()["events"] == []


def test_an_event_as_it_is_shown() -> None:
    shown = event_shown(Event(b'{"a":1}', {"n": 1}, None, "0", 0, "0", 5))
    assert (shown["sequence"], shown["json"], shown["properties"]) == (0, True, {"n": "1"})
    long = event_shown(Event("ä".encode() * 5000))
    assert (len(long["body"]), long["cut"], long["size"]) == (4096, True, 10_000)
    assert event_shown(Event(b"\xff"))["body"] == "\\xff"


@pytest.mark.parametrize(
    ("first", "last", "empty", "position"),
    [
        (0, -1, True, EARLIEST),
        (0, 99, False, Position("sequence", "90", inclusive=True)),
        (95, 99, False, Position("sequence", "95", inclusive=True)),
        (100, 99, True, EARLIEST),
    ],
)
def test_the_last_few(first: int, last: int, empty: bool, position: Position) -> None:
    found = PartitionProperties("sensors", "0", first, last, "0", 0, empty)
    assert few_before_end(found, 10) == position


# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "nothing to show"),
        ({"hubs": ("a",)}, "needs a connection string"),
        ({"groups": (WatchedGroup("c"),), "write": True}, "needs a connection string"),
        ({"groups": (WatchedGroup("c"),), "port": 65536}, "port must be from"),
        ({"groups": (WatchedGroup("c"),), "look_s": 0.0}, "look_s must be from"),
    ],
)
def test_options_that_make_no_sense(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        DashboardOptions(**given)


def test_homes_that_make_no_sense() -> None:
    with pytest.raises(OptionError, match="homes must be"):
        HomesFeed("c", homes=0)
    with pytest.raises(OptionError, match="hours must be"):
        HomesFeed("c", hours=0)


def test_secrets_are_in_no_repr() -> None:
    options = DashboardOptions(
        connection="S3cret", groups=(WatchedGroup("S3cret", store="S3cret"),),
        homes=HomesFeed("S3cret"),
    )  # fmt: skip
    assert "S3cret" not in repr(options)
