"""`pumphouse send`: words, lines, sample_bodies-up events; by key, partition, or in turn."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pumphouse.cli.send import RateLimiter, sample_bodies
from pumphouse.hub.embedded import EmbeddedHub
from tests.cli.conftest import Call, Program, good, objects, refused


def bodies(call: Call, *more: str) -> list[str]:
    found = objects(good(call("tail", "orders", "--from", "earliest", "-o", "json", *more)))
    return [event["body"] for event in found]


def test_words(call: Call) -> None:
    assert good(call("send", "orders", "one coffee", "two teas")) == "sent 2 events\n"
    assert bodies(call) == ["one coffee", "two teas"]


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


def test_an_empty_file_is_no_event(call: Call) -> None:
    assert good(call("send", "orders", input="")) == "sent 0 events\n"


def test_a_line_without_end_is_refused(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pumphouse.cli.common.lines.LINE_BYTES_MAX", 1000)
    monkeypatch.setattr("pumphouse.cli.common.lines.BLOCK_BYTES", 500)
    assert "a line of more than 1000 bytes" in refused(call("send", "orders", input="x" * 5000), 2)


def test_the_same_words_over_and_over(call: Call) -> None:
    good(call("send", "orders", "tick", "tock", "--count", "5", "-p", "0"))
    assert bodies(call) == ["tick", "tock", "tick", "tock", "tick"]


def test_made_up_events_at_a_rate(call: Call) -> None:
    assert good(call("send", "orders", "--count", "6", "--rate", "500")) == "sent 6 events\n"
    assert sorted(bodies(call)) == [f"event {number}" for number in range(1, 7)]


def test_one_key_is_one_partition_and_no_key_is_all_of_them(call: Call) -> None:
    good(call("send", "orders", "--count", "400", "--key", "home-7"))
    seen = objects(good(call("tail", "orders", "--from", "earliest", "-o", "json")))
    assert {event["key"] for event in seen} == {"home-7"}
    assert len({event["partition"] for event in seen}) == 1
    good(call("send", "orders", "--count", "400"))
    seen = objects(good(call("tail", "orders", "-n", "400", "-o", "json")))
    assert {event["partition"] for event in seen} == {"0", "1"}


def test_properties(call: Call) -> None:
    good(call("send", "orders", "x", "--property", "kind=door", "--property", "unit="))
    event = objects(good(call("tail", "orders", "-o", "json")))[0]
    assert event["properties"] == {"kind": "door", "unit": ""}


def test_the_hub_of_the_connection_string(call: Call, event_hub: EmbeddedHub) -> None:
    connection = event_hub.connection_string("orders")
    assert good(call("send", input="a\n", connection=connection)) == "sent 1 event\n"
    assert "no hub is named" in refused(call("send", input="a\n"), code=2)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["orders", "x", "--key", "k", "--partition", "0"], "give --key or --partition, not both"),
        (["orders", "x", "-f", "-"], "give TEXT or --file, not both"),
        (["orders", "x", "--property", "kind"], "'kind' is no property; write NAME=VALUE"),
        (["orders", "x", "--count", "0"], "0 is not in the range x>=1"),
        (["orders", "x", "--rate", "0"], "0.0 is not in the range x>0"),
        (["orders", "-f", "/nowhere"], "No such file or directory"),
    ],
)
def test_malformed_options(call: Call, args: list[str], sentence: str) -> None:
    assert sentence in refused(call("send", *args), code=2)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["nowhere", "x"], "/nowhere' could not be found"),
        (["orders", "x", "--partition", "2"], "It should be between 0 and 1."),
        (["orders", "x" * 1_100_000], "exceeds the limit of 1048576 bytes"),
        (["orders", "x", "--key", "k" * 129], "at most 128 characters"),
    ],
)
def test_what_cannot_be_sent_is_said(call: Call, args: list[str], sentence: str) -> None:
    assert sentence in refused(call("send", *args))


def test_after_an_error_it_is_said_how_many_were_sent(call: Call, tmp_path: Path) -> None:
    (tmp_path / "events").write_text("good\n" * 3000 + "x" * 1_100_000 + "\n")
    sentence = refused(call("send", "orders", "-p", "0", "-f", str(tmp_path / "events")))
    assert "exceeds the limit of 1048576 bytes" in sentence
    assert "had been sent before" in sentence


def test_a_line_is_sent_when_it_comes_not_when_the_pipe_ends(
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


def test_what_is_made_up() -> None:
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


async def test_a_pace_is_kept_from_the_start() -> None:
    clock = StillClock()
    limiter = RateLimiter(10.0, clock)
    await limiter.wait(0)
    assert clock.time == 100.0
    await limiter.wait(5)
    assert clock.time == 100.5
    clock.time = 102.0  # sending took long: what is late is sample_bodies up for
    await limiter.wait(15)
    assert clock.time == 102.0
    await RateLimiter(None, clock).wait(1_000_000)
    assert clock.time == 102.0
