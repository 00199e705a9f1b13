"""`pumphouse tail`: selection, order and output of events."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
from base64 import b64decode
from collections.abc import Callable
from uuid import UUID

import pytest

from pumphouse.amqp.types import Timestamp, UInt, array_of
from pumphouse.cli.tail import as_json, as_text
from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from tests.cli.conftest import PUMPHOUSE, Call, Program, good, objects, refused

Start = Callable[..., Program]


@pytest.fixture
def orders(call: Call, event_hub: EmbeddedHub) -> Call:
    """Thirty events: even ones in partition 0, odd ones in partition 1, in the order of time."""

    async def fill() -> None:
        async with open_client(event_hub.connection_string(), "orders") as client:
            senders = [await client.sender("0"), await client.sender("1")]
            for number in range(30):
                await senders[number % 2].send([Event(f"order {number}".encode())])

    asyncio.run(fill())
    return call


def numbers(text: str) -> list[int]:
    return [int(line.rpartition(" ")[2]) for line in text.splitlines()]


def test_the_last_ten_of_all_partitions(orders: Call) -> None:
    assert numbers(good(orders("tail", "orders"))) == list(range(20, 30))
    assert numbers(good(orders("tail", "orders", "-n", "3"))) == [27, 28, 29]
    assert numbers(good(orders("tail", "orders", "-n", "100"))) == list(range(30))
    assert numbers(good(orders("tail", "orders", "-p", "1", "-n", "3"))) == [25, 27, 29]


def test_from_a_position_to_the_end(orders: Call, event_hub: EmbeddedHub) -> None:
    def numbers_from(position: str, *more: str) -> list[int]:
        return numbers(good(orders("tail", "orders", "--from", position, *more)))

    assert numbers_from("earliest") == list(range(30))
    assert numbers_from("earliest", "-n", "4") == [0, 1, 2, 3]
    assert numbers_from("earliest", "-p", "0", "-n", "2") == [0, 2]
    assert numbers_from("seq:13") == [26, 27, 28, 29]
    assert numbers_from("seq:99") == []
    assert numbers_from("offset:0", "-p", "1", "-n", "1") == [1]
    events = objects(good(orders("tail", "orders", "-n", "30", "-o", "json")))
    assert numbers_from(f"time:{events[20]['time']}")[-10:] == list(range(20, 30))
    assert numbers_from(f"offset:{events[28]['offset']}", "-p", "0") == [28]
    assert numbers_from("time:-1h") == list(range(30))
    assert numbers_from("time:2100-01-01T00:00:00Z") == []


def test_grep_selects_matching_events(orders: Call) -> None:
    assert numbers(good(orders("tail", "orders", "--grep", "order 1"))) == list(range(10, 20))
    assert numbers(good(orders("tail", "orders", "--grep", "1$", "-n", "2"))) == [11, 21]
    result = orders("tail", "orders", "--from", "seq:1", "--grep", r"\b\d$", "-n", "3")
    assert numbers(good(result)) == [2, 3, 4]
    assert good(orders("tail", "orders", "--grep", "tea")) == ""
    good(orders("send", "orders", "anything", "--key", "teapot"))
    assert "anything" in good(orders("tail", "orders", "--grep", "^tea"))


def test_latest_without_follow_shows_nothing(orders: Call) -> None:
    result = orders("tail", "orders", "--from", "latest")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "There are no events after latest; add --follow to wait for new ones.\n"


def test_an_empty_hub_shows_nothing(call: Call) -> None:
    for more in ([], ["--from", "earliest"], ["--from", "seq:0"], ["--grep", "x"]):
        assert good(call("tail", "orders", *more)) == ""


def test_expired_events_are_skipped(call: Call, event_hub: EmbeddedHub) -> None:
    good(call("send", "orders", *(f"order {number}" for number in range(5)), "-p", "0"))
    log = event_hub.namespace.hub("orders").partition("0").log
    log.begin = 3
    assert numbers(good(call("tail", "orders"))) == [3, 4]
    assert numbers(good(call("tail", "orders", "--from", "seq:1"))) == [3, 4]


def test_an_event_as_json(call: Call) -> None:
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


def test_a_binary_body() -> None:
    event = Event(b"\xff\x00ok\n\x1b[31m", partition="3", sequence=7, enqueued_ms=0)
    line = as_text(event)
    assert line == r"3:7  1970-01-01T00:00:00.000Z  -  \xff\x00ok\n\x1b[31m"
    shown = json.loads(as_json(event))
    assert b64decode(shown["body_base64"]) == event.body
    assert "body" not in shown


HOSTILE = "\x1b]0;title\x07\x9b31m\r\nok   \u202e\ud800"


def test_text_of_clients_does_not_reach_the_terminal() -> None:
    event = Event(
        HOSTILE[:-1].encode(),
        {HOSTILE: HOSTILE},
        HOSTILE,
        partition="3\x1b",
        sequence=7,
        enqueued_ms=10**17,
    )
    assert as_text(event).isprintable()
    assert as_text(event).startswith(
        r"3\x1b:7  100000000000000000 ms  \x1b]0;title\x07\x9b31m\r\nok"
    )
    assert as_json(event).isprintable()
    shown = json.loads(as_json(event))
    assert (shown["key"], shown["properties"]) == (HOSTILE, {HOSTILE: HOSTILE})


def test_properties_that_json_does_not_have() -> None:
    deep: list[object] = []
    for _ in range(2000):
        deep = [deep]
    properties = {"a": math.nan, "b": [math.inf], "c": {UUID(int=1): b"x", 2: None}, "d": deep}
    shown = json.loads(as_json(Event(b"", properties)), parse_constant=pytest.fail)["properties"]
    assert (shown["a"], shown["b"]) == (None, [None])
    assert shown["c"] == {"00000000-0000-0000-0000-000000000001": "eA==", "2": None}
    assert "..." in str(shown["d"])


def test_properties_of_every_type_as_json() -> None:
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
    ("args", "message"),
    [
        (["orders", "--from", "yesterday"], "invalid position 'yesterday': use one of earliest"),
        (["orders", "--from", "time:2024-05-01T12:00:00"], "has no time zone"),
        (["orders", "--grep", "("], "invalid regular expression '('"),
        (["orders", "-n", "x"], "'x' is not a valid integer"),
    ],
)
def test_malformed_options(call: Call, args: list[str], message: str) -> None:
    assert message in refused(call("tail", *args), code=2)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere"], "hub 'nowhere' not found; existing hubs: orders"),
        (["orders", "-p", "2"], "It should be between 0 and 1."),
        (
            ["orders", "--group", "nobody"],
            "ConsumerGroups/nobody' could not be found: check the name, or create the group",
        ),
    ],
)
def test_errors_of_the_hub_are_reported(call: Call, args: list[str], message: str) -> None:
    assert message in refused(call("tail", *args)), "of an empty hub"
    good(call("send", "orders", "x"))
    assert message in refused(call("tail", *args))


# -- following ------------------------------------------------------------------------------------


def test_follow_shows_new_events(orders: Call, program: Start, event_hub: EmbeddedHub) -> None:
    tail = program(
        "tail", "orders", "-n", "2", "--follow", connection=event_hub.connection_string()
    )
    assert [tail.line().split()[-1] for _ in range(2)] == ["28", "29"]
    for number in (30, 31, 32):
        good(orders("send", "orders", f"order {number}", "-p", str(number % 2)))
        assert tail.line().split()[-1] == str(number)
    assert tail.end(signal.SIGINT)[0] == 130
    assert tail.line() == ""


def test_follow_from_a_position_ends_at_the_limit(
    orders: Call, program: Start, event_hub: EmbeddedHub
) -> None:
    options = ("--from", "seq:14", "--follow", "-n", "4", "--grep", "order")
    tail = program("tail", "orders", *options, connection=event_hub.connection_string())
    assert [tail.line().split()[-1] for _ in range(2)] == ["28", "29"]
    good(orders("send", "orders", "tea", "-p", "0"))
    good(orders("send", "orders", "order 30", "order 31", "order 32", "-p", "0"))
    assert [tail.line().split()[-1] for _ in range(2)] == ["30", "31"]
    assert tail.wait() == (0, "")


@pytest.mark.parametrize("position", ["latest", "seq:1000", "time:2100-01-01T00:00:00Z"])
def test_a_position_after_the_end_is_the_end(
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


def test_a_closed_pipe_is_not_an_error(orders: Call, event_hub: EmbeddedHub) -> None:
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


def test_colours_are_used_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    event = Event(b"x", partition="0", sequence=0)
    assert "\x1b" not in as_text(event)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[36m0:0\x1b[0m" in as_text(event)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in as_text(event)
