"""`pumphouse tail`: which events, in which order, as what."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from base64 import b64decode
from collections.abc import Callable
from uuid import UUID

import pytest

from pumphouse.amqp.types import Timestamp, UInt, array_of
from pumphouse.cli.tail import as_json, as_text
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from tests.cli.conftest import PUMPHOUSE, Call, Program, good, objects, refused

Start = Callable[..., Program]


@pytest.fixture
def orders(call: Call) -> Call:
    """Thirty events: even ones in partition 0, odd ones in partition 1, in the order of time."""
    for number in range(30):
        good(call("send", "orders", f"order {number}", "-p", str(number % 2)))
    return call


def numbers(text: str) -> list[int]:
    return [int(line.rpartition(" ")[2]) for line in text.splitlines()]


def test_the_last_ten_of_all_partitions(orders: Call) -> None:
    assert numbers(good(orders("tail", "orders"))) == list(range(20, 30))
    assert numbers(good(orders("tail", "orders", "-n", "3"))) == [27, 28, 29]
    assert numbers(good(orders("tail", "orders", "-n", "100"))) == list(range(30))
    assert numbers(good(orders("tail", "orders", "-p", "1", "-n", "3"))) == [25, 27, 29]


def test_from_a_position_to_the_end(orders: Call, event_hub: EmbeddedHub) -> None:
    def from_(position: str, *more: str) -> list[int]:
        return numbers(good(orders("tail", "orders", "--from", position, *more)))

    assert from_("earliest") == list(range(30))
    assert from_("earliest", "-n", "4") == [0, 1, 2, 3]
    assert from_("earliest", "-p", "0", "-n", "2") == [0, 2]
    assert from_("seq:13") == [26, 27, 28, 29]
    assert from_("seq:99") == []
    assert from_("offset:0", "-p", "1", "-n", "1") == [1]
    events = objects(good(orders("tail", "orders", "-n", "30", "-o", "json")))
    assert from_(f"time:{events[20]['time']}")[-10:] == list(range(20, 30))
    assert from_(f"offset:{events[28]['offset']}", "-p", "0") == [28]
    assert from_("time:-1h") == list(range(30))
    assert from_("time:2100-01-01T00:00:00Z") == []


def test_only_what_matches(orders: Call) -> None:
    assert numbers(good(orders("tail", "orders", "--grep", "order 1"))) == list(range(10, 20))
    assert numbers(good(orders("tail", "orders", "--grep", "1$", "-n", "2"))) == [11, 21]
    found = orders("tail", "orders", "--from", "seq:1", "--grep", r"\b\d$", "-n", "3")
    assert numbers(good(found)) == [2, 3, 4]
    assert good(orders("tail", "orders", "--grep", "tea")) == ""
    good(orders("send", "orders", "anything", "--key", "teapot"))
    assert "anything" in good(orders("tail", "orders", "--grep", "^tea"))


def test_nothing_comes_after_the_latest_unless_one_waits(orders: Call) -> None:
    result = orders("tail", "orders", "--from", "latest")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "Nothing comes after the latest event unless you --follow.\n"


def test_an_empty_hub_has_nothing_to_show(call: Call) -> None:
    for more in ([], ["--from", "earliest"], ["--from", "seq:0"], ["--grep", "x"]):
        assert good(call("tail", "orders", *more)) == ""


def test_what_retention_has_removed_is_passed_over(call: Call, event_hub: EmbeddedHub) -> None:
    good(call("send", "orders", *(f"order {number}" for number in range(5)), "-p", "0"))
    log = event_hub.namespace.hub("orders").partition("0").log
    log.begin = 3
    assert numbers(good(call("tail", "orders"))) == [3, 4]
    assert numbers(good(call("tail", "orders", "--from", "seq:1"))) == [3, 4]


def test_all_of_an_event_in_json(call: Call) -> None:
    good(call("send", "orders", "café", "--key", "table-4", "--property", "kind=hot"))
    event = objects(good(call("tail", "orders", "-o", "json")))[0]
    assert list(event) == ["partition", "sequence", "offset", "time", "key", "body", "properties"]
    assert (event["body"], event["key"], event["properties"]) == (
        "café",
        "table-4",
        {"kind": "hot"},
    )
    assert (event["sequence"], event["offset"]) == (0, "0")
    assert event["time"].endswith("Z")


def test_a_body_that_is_no_text() -> None:
    event = Event(b"\xff\x00ok\n\x1b[31m", partition="3", sequence=7, enqueued_ms=0)
    line = as_text(event)
    assert line == r"3:7  1970-01-01T00:00:00.000Z  -  \xff\x00ok\n\x1b[31m"
    shown = json.loads(as_json(event))
    assert b64decode(shown["body_base64"]) == event.body
    assert "body" not in shown


def test_properties_of_all_kinds_in_json() -> None:
    properties = {
        "n": UInt(5),
        "when": Timestamp(12),
        "bytes": b"\xff",
        "id": UUID(int=1),
        "list": [1, None, True],
        "array": array_of(str, ["a", "b"]),
        "pi": 3.5,
    }
    shown = json.loads(as_json(Event(b"", properties, partition="0", sequence=0)))["properties"]
    assert shown == {
        "n": 5,
        "when": 12,
        "bytes": "/w==",
        "id": "00000000-0000-0000-0000-000000000001",
        "list": [1, None, True],
        "array": ["a", "b"],
        "pi": 3.5,
    }


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["orders", "--from", "yesterday"], "invalid position 'yesterday': use one of earliest"),
        (["orders", "--from", "time:2024-05-01T12:00:00"], "has no time zone"),
        (["orders", "--grep", "("], "'(' is no regular expression"),
        (["orders", "-n", "x"], "'x' is not a valid integer"),
    ],
)
def test_malformed_options(call: Call, args: list[str], sentence: str) -> None:
    assert sentence in refused(call("tail", *args), code=2)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["nowhere"], "hub 'nowhere' not found; existing hubs: orders"),
        (["orders", "-p", "2"], "It should be between 0 and 1."),
        (["orders", "--group", "nobody"], "ConsumerGroups/nobody' could not be found"),
    ],
)
def test_what_is_not_there(call: Call, args: list[str], sentence: str) -> None:
    good(call("send", "orders", "x"))
    assert sentence in refused(call("tail", *args))


# -- following ------------------------------------------------------------------------------------


def test_following_shows_what_comes(orders: Call, program: Start, event_hub: EmbeddedHub) -> None:
    tail = program(
        "tail", "orders", "-n", "2", "--follow", connection=event_hub.connection_string()
    )
    assert [tail.line().split()[-1] for _ in range(2)] == ["28", "29"]
    for number in (30, 31, 32):
        good(orders("send", "orders", f"order {number}", "-p", str(number % 2)))
        assert tail.line().split()[-1] == str(number)
    assert tail.end(signal.SIGINT)[0] == 130
    assert tail.line() == ""


def test_following_from_a_position_ends_after_as_many_as_asked(
    orders: Call, program: Start, event_hub: EmbeddedHub
) -> None:
    wanted = ("--from", "seq:14", "--follow", "-n", "4", "--grep", "order")
    tail = program("tail", "orders", *wanted, connection=event_hub.connection_string())
    assert [tail.line().split()[-1] for _ in range(2)] == ["28", "29"]
    good(orders("send", "orders", "tea", "-p", "0"))
    good(orders("send", "orders", "order 30", "order 31", "order 32", "-p", "0"))
    assert [tail.line().split()[-1] for _ in range(2)] == ["30", "31"]
    assert tail.wait() == (0, "")


@pytest.mark.parametrize("position", ["latest", "seq:1000", "time:2100-01-01T00:00:00Z"])
def test_a_position_beyond_the_end_is_the_end(
    orders: Call, program: Start, event_hub: EmbeddedHub, position: str
) -> None:
    tail = program(
        "tail", "orders", "--from", position, "--follow", "-n", "1", "-vv",
        connection=event_hub.connection_string(),
    )  # fmt: skip
    partition = event_hub.namespace.hub("orders").partition("0")
    while not partition.readers:
        assert tail.process.poll() is None
    good(orders("send", "orders", "new", "-p", "0"))
    assert tail.line().split()[-1] == "new"
    assert tail.wait()[0] == 0


def test_a_reader_that_leaves_early_is_no_error(orders: Call, event_hub: EmbeddedHub) -> None:
    good(orders("send", "orders", "x" * 1000, "--count", "2000"))
    pipe = f"{PUMPHOUSE} tail orders --from earliest | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", pipe],
        env={**os.environ, "PUMPHOUSE_CONNECTION": event_hub.connection_string()},
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    line, code = done.stdout.splitlines()
    assert line.endswith("order 0")
    assert (code, done.stderr) == ("0", "")


def test_colours_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    event = Event(b"x", partition="0", sequence=0)
    assert "\x1b" not in as_text(event)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[36m0:0\x1b[0m" in as_text(event)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in as_text(event)
