"""`pumphouse send`: texts, lines and generated events; by key, partition, or in turn."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pumphouse.cli.send import RateLimiter, sample_bodies
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.embedded import EmbeddedHub
from tests.cli.conftest import Call, Program, good, objects, refused


def bodies(call: Call, *more: str) -> list[str]:
    events = objects(good(call("tail", "orders", "--from", "earliest", "-o", "json", *more)))
    return [event["body"] for event in events]


def test_texts(call: Call) -> None:
    assert good(call("send", "orders", "one coffee", "two teas")) == "sent 2 events\n"
    assert sorted(bodies(call)) == ["one coffee", "two teas"]  # of two partitions


def test_lines_of_stdin(call: Call) -> None:
    assert good(call("send", "orders", input='{"coffee": 1}\n')) == "sent 1 event\n"
    assert good(call("send", "orders", "-f", "-", input=b"\xc3\xa9clair\r\n\n\nlast")) == (
        "sent 2 events\n"
    )
    assert sorted(bodies(call)) == ["last", '{"coffee": 1}', "éclair"]


def test_lines_of_a_file(call: Call, tmp_path: Path) -> None:
    (tmp_path / "events").write_text("".join(f"{number}\n" for number in range(20_000)))
    sent = call("send", "orders", "-p", "1", "-f", str(tmp_path / "events"), "-o", "json")
    assert objects(good(sent)) == [{"sent": 20_000}]
    assert bodies(call) == [str(number) for number in range(20_000)]


def test_the_first_lines_of_a_file(call: Call, tmp_path: Path) -> None:
    (tmp_path / "events").write_text("a\nb\nc\nd\n")
    good(call("send", "orders", "-p", "0", "-f", str(tmp_path / "events"), "--count", "3"))
    assert bodies(call) == ["a", "b", "c"]


def test_an_empty_file_sends_nothing(call: Call) -> None:
    assert good(call("send", "orders", input="")) == "sent 0 events\n"


def test_an_endless_line_is_rejected(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pumphouse.cli.common.lines.LINE_BYTES_MAX", 1000)
    monkeypatch.setattr("pumphouse.cli.common.lines.BLOCK_BYTES", 500)
    assert "a line has more than 1,000 bytes" in refused(
        call("send", "orders", input="x" * 5000), 2
    )


def test_texts_are_repeated_up_to_the_count(call: Call) -> None:
    good(call("send", "orders", "tick", "tock", "--count", "5", "-p", "0"))
    assert bodies(call) == ["tick", "tock", "tick", "tock", "tick"]


def test_generated_events_at_a_rate(call: Call) -> None:
    assert good(call("send", "orders", "--count", "6", "--rate", "500")) == "sent 6 events\n"
    assert sorted(bodies(call)) == [f"event {number}" for number in range(1, 7)]


def test_a_key_selects_one_partition_and_no_key_all(call: Call) -> None:
    good(call("send", "orders", "--count", "400", "--key", "home-7"))
    events = objects(good(call("tail", "orders", "--from", "earliest", "-o", "json")))
    assert {event["key"] for event in events} == {"home-7"}
    assert len({event["partition"] for event in events}) == 1
    good(call("send", "orders", "--count", "400"))
    events = objects(good(call("tail", "orders", "-n", "400", "-o", "json")))
    assert {event["partition"] for event in events} == {"0", "1"}


@pytest.mark.parametrize(
    ("number", "args"),
    [
        (8, ("a", "b", "c", "d", "e", "f", "g", "h")),
        (50, ("x", "--count", "50")),
        (21, ()),
        (5000, ()),
        (2400, ("--count", "2400")),
    ],
)
def test_events_are_spread_over_all_partitions(
    call: Call, event_hub: EmbeddedHub, number: int, args: tuple[str, ...]
) -> None:
    """Each gets the same share; lines keep their order."""
    event_hub.create_hub("wide", 4)
    lines = None if args else "".join(f"{line}\n" for line in range(number))
    good(call("send", "wide", *args, input=lines))
    events = objects(good(call("tail", "wide", "--from", "earliest", "-o", "json")))
    counts = Counter(event["partition"] for event in events)
    assert counts.total() == number
    assert len(counts) == 4
    assert max(counts.values()) - min(counts.values()) <= 1
    for partition in counts if not args else ():
        sent = [int(event["body"]) for event in events if event["partition"] == partition]
        assert sent == sorted(sent)


def test_a_key_that_may_only_send_can_spread_events(call: Call, event_hub: EmbeddedHub) -> None:
    event_hub.create_rule("device", [Claim.SEND], "orders")
    connection = event_hub.connection_string("orders", "device")
    good(call("send", "orders", "--count", "10", connection=connection))
    events = objects(good(call("tail", "orders", "--from", "earliest", "-o", "json")))
    assert Counter(event["partition"] for event in events) == {"0": 5, "1": 5}


def test_properties(call: Call) -> None:
    good(call("send", "orders", "x", "--property", "kind=door", "--property", "unit="))
    event = objects(good(call("tail", "orders", "-o", "json")))[0]
    assert event["properties"] == {"kind": "door", "unit": ""}


def test_the_default_hub_is_the_entity_path(call: Call, event_hub: EmbeddedHub) -> None:
    connection = event_hub.connection_string("orders")
    assert good(call("send", input="a\n", connection=connection)) == "sent 1 event\n"
    assert "no hub is named" in refused(call("send", input="a\n"), code=2)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["orders", "x", "--key", "k", "--partition", "0"], "use --key or --partition, not both"),
        (["orders", "x", "-f", "-"], "use TEXT or --file, not both"),
        (["orders", "x", "--property", "kind"], "invalid property 'kind': use NAME=VALUE"),
        (["orders", "x", "--count", "0"], "0 is not in the range x>=1"),
        (["orders", "x", "--rate", "0"], "0.0 is not in the range x>0"),
        (["orders", "-f", "/nowhere"], "No such file or directory"),
    ],
)
def test_malformed_options(call: Call, args: list[str], message: str) -> None:
    assert message in refused(call("send", *args), code=2)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere", "x"], "existing hubs: orders): check the name, or create the hub"),
        (["orders", "x", "--partition", "2"], "It should be between 0 and 1."),
        (["orders", "x" * 1_100_000], "exceeds the limit of 1048576 bytes"),
        (["orders", "x", "--key", "k" * 129], "at most 128 characters"),
    ],
)
def test_errors_of_the_hub_are_reported(call: Call, args: list[str], message: str) -> None:
    assert message in refused(call("send", *args))


def test_an_error_reports_how_many_events_were_sent(call: Call, tmp_path: Path) -> None:
    (tmp_path / "events").write_text("good\n" * 3000 + "x" * 1_100_000 + "\n")
    message = refused(call("send", "orders", "-p", "0", "-f", str(tmp_path / "events")))
    assert "exceeds the limit of 1048576 bytes" in message
    assert "sent before this error" in message


def test_a_line_is_sent_before_the_pipe_ends(
    program: Callable[..., Program], event_hub: EmbeddedHub
) -> None:
    event_hub.create_hub("live", 1)
    connection = event_hub.connection_string("live")
    tail = program("tail", "--from", "earliest", "--follow", connection=connection)
    send = program("send", connection=connection, stdin=subprocess.PIPE)
    assert send.process.stdin is not None
    for word in ("first", "second"):
        send.process.stdin.write(f"{word}\n")
        send.process.stdin.flush()
        assert tail.line().split()[-1] == word
    send.process.stdin.close()
    assert send.line() == "sent 2 events\n"
    assert send.wait()[0] == 0


def test_generated_bodies() -> None:
    assert list(sample_bodies([], 2)) == [b"event 1", b"event 2"]
    assert list(sample_bodies(["a"], None)) == [b"a"]
    assert list(sample_bodies(["a", "b"], 3)) == [b"a", b"b", b"a"]


class StillClock:
    """A clock that moves by sleeping only."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    monotonic = now

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


async def test_the_rate_counts_from_the_start() -> None:
    clock = StillClock()
    limiter = RateLimiter(10.0, clock)
    await limiter.wait(0)
    assert clock.time == 100.0
    await limiter.wait(5)
    assert clock.time == 100.5
    clock.time = 102.0  # sending took long: the delay is caught up
    await limiter.wait(15)
    assert clock.time == 102.0
    await RateLimiter(None, clock).wait(1_000_000)
    assert clock.time == 102.0
