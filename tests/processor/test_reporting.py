"""The log of a processor, and the calls of its error and ownership callbacks."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from typing import Any

import pytest

from pumphouse.errors import ConnectionFailed, HandlerStuck, PoisonEvent, StoreError
from pumphouse.processor.pump import position_text
from pumphouse.processor.reporting import CLAIMED, TODO, Reporter, recovery_of
from tests.processor.support.log_sample import run_sample
from tests.processor.support.virtual_time import LoopClock, run

STARTS, ENDS = (
    "partition_claimed",
    {"partition_handed_over", "partition_released", "partition_lost"},
)


def fields_of(message: str) -> tuple[str, dict[str, str]]:
    event, *fields = message.split()
    return event, dict(field.split("=", 1) for field in fields if "=" in field)


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "pumphouse.processor" and record.levelno == level
    ]


@pytest.fixture(scope="module")
def sample() -> list[tuple[int, str]]:
    """The lines of the sample run, with their levels."""
    lines: list[tuple[int, str]] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append((record.levelno, record.getMessage()))

    log, collector = logging.getLogger("pumphouse.processor"), Collector()
    level = log.level
    log.addHandler(collector)
    log.setLevel(logging.INFO)
    try:
        run(run_sample(LoopClock()))
    finally:
        log.removeHandler(collector)
        log.setLevel(level)
    return lines


def test_every_change_of_ownership_has_exactly_one_line_with_its_reason(
    sample: list[tuple[int, str]],
) -> None:
    starts: Counter[tuple[str, str, str]] = Counter()
    ends: Counter[tuple[str, str, str]] = Counter()
    reasons = set()
    for level, message in sample:
        event, fields = fields_of(message)
        if event == STARTS or event in ENDS:
            term = (fields["host"], fields["partition"], fields["epoch"])
            (starts if event == STARTS else ends)[term] += 1
            reasons.add((event, fields["reason"]))
            assert level == (logging.WARNING if event == "partition_lost" else logging.INFO)
    assert starts == ends
    assert set(starts.values()) == {1}
    assert reasons == {
        ("partition_claimed", "free"),
        ("partition_claimed", "handed_over"),
        ("partition_claimed", "owner_expired"),
        ("partition_handed_over", "requested"),
        ("partition_lost", "lease_expired"),
        ("partition_released", "shutdown"),
    }


def test_hosts_failures_and_recoveries_are_logged_once(sample: list[tuple[int, str]]) -> None:
    # A failure that continues is logged again at its 10th repetition, with the count.
    new = [(level, message) for level, message in sample if " count=" not in message]
    events = Counter((level, fields_of(message)[0]) for level, message in new)
    once = {event for (_, event), count in events.items() if count == 1}
    failures = {"handler_failed", "event_poisoned", "cycle_failed", "ownership_write_failed"}
    warnings = {event for level, event in events if level == logging.WARNING}
    assert warnings == failures | {"partition_lost"}
    assert failures <= once
    assert {"handler_recovered", "cycle_recovered", "ownership_write_recovered"} <= once
    assert events[logging.INFO, "host_joined"] == events[logging.INFO, "host_left"] == 2


def test_a_warning_names_what_to_do(sample: list[tuple[int, str]]) -> None:
    warnings = [message for level, message in sample if level == logging.WARNING]
    assert warnings
    assert all("todo=" in message for message in warnings)


def test_a_repeated_failure_reaches_the_callback_each_time_and_the_log_at_powers_of_ten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors: list[Exception] = []
    reporter = Reporter("a", on_error=lambda partition, error: errors.append(error))
    for _ in range(100):
        reporter.failed("receive_failed", "0", OSError("refused"))
    assert len(errors) == 100
    logged = [fields_of(m)[1].get("count") for m in messages(caplog, logging.WARNING)]
    assert logged == [None, "10", "100"]


def test_after_a_recovery_the_next_failure_is_logged_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "pumphouse.processor")
    reporter = Reporter("a")
    for _ in range(2):
        reporter.failed("receive_failed", "0", OSError("refused"))
        reporter.failed("receive_failed", "0", OSError("refused"))
        reporter.recovered("receive_failed", "0")
    reporter.recovered("receive_failed", "0")
    assert len(messages(caplog, logging.WARNING)) == 2
    recovered = [re.sub(r"after_s=[\d.]+", "after_s=#", text) for text in messages(caplog)]
    assert recovered == ["receive_recovered host=a partition=0 failures=2 after_s=#"] * 2


@pytest.mark.parametrize("event", TODO)
def test_the_recovery_of_a_failure_has_another_name(event: str) -> None:
    assert recovery_of(event) != event


async def test_a_callback_that_raises_is_logged_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[str] = []

    def plain(*args: Any) -> None:
        calls.append("plain")
        raise ValueError("in the callback")

    async def coroutine(*args: Any) -> None:
        calls.append("coroutine")
        raise ValueError("in the callback")

    for callback in (plain, coroutine):
        reporter = Reporter("a", on_error=callback, on_ownership=callback)  # type: ignore[arg-type]
        reporter.failed("pump_failed", "0", OSError("refused"))
        reporter.changed(CLAIMED, "0")
        await reporter.wait(10)
        await asyncio.sleep(0)
    assert calls == ["plain"] * 2 + ["coroutine"] * 2
    failure = 'error="ValueError: in the callback"'
    logged = messages(caplog, logging.ERROR)
    assert logged == 2 * [
        f"callback_failed host=a callback=on_error {failure}",
        f"callback_failed host=a callback=on_ownership {failure}",
    ]


@pytest.mark.parametrize(
    ("event", "error", "traced"),
    [
        ("handler_failed", ValueError("cannot parse"), True),
        ("handler_failed", TimeoutError(), True),
        ("pump_failed", KeyError("home"), True),
        ("pump_failed", StoreError("away"), False),
        ("receive_failed", ConnectionFailed("refused"), False),
    ],
)
async def test_only_an_exception_of_user_code_has_a_traceback(
    event: str, error: Exception, traced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        raise error
    except Exception as raised:
        Reporter("a").failed(event, "0", raised)
    (record,) = caplog.records
    assert bool(record.exc_info) == traced
    assert ": ." not in record.getMessage()
    assert 'Error: "' not in record.getMessage()


async def test_an_outage_of_many_partitions_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors: list[Any] = []
    reporter = Reporter("a", on_error=lambda partition, error: errors.append(partition))
    with caplog.at_level(logging.INFO, "pumphouse.processor"):
        for attempt in range(2):
            for number in range(16):
                away = ConnectionFailed(f"eh/Partitions/{number}: no response in {attempt} s")
                reporter.failed("receive_failed", str(number), away)
        for number in range(16):
            reporter.recovered("receive_failed", str(number))
    warnings = messages(caplog, logging.WARNING)
    assert len(errors) == reporter.counts["receive_failed"] == 32
    assert [fields_of(message)[1].get("count") for message in warnings] == [None, "10"]
    assert "partition=0" in warnings[0]
    assert "partitions=10" in warnings[1]
    (recovered,) = messages(caplog)
    assert recovered.startswith("receive_recovered host=a failures=32 partitions=16 after_s=")


async def test_exceptions_of_handlers_are_logged_for_each_partition(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reporter = Reporter("a")
    for number in range(3):
        reporter.failed("handler_failed", str(number), ValueError("cannot parse"))
    assert len(messages(caplog, logging.WARNING)) == 3


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (HandlerStuck("0", 61.0, None), "has not returned for 61 s (it has no event)"),
        (HandlerStuck("0", 61.0, 7), "(its batch ends with event 7)"),
        (PoisonEvent("0", 7, 1, "it was skipped"), "(1 attempt); it was skipped"),
        (PoisonEvent("0", 7, 2, "it was skipped"), "(2 attempts); it was skipped"),
    ],
)
def test_texts_for_people_have_no_none_and_no_wrong_plural(error: Exception, text: str) -> None:
    assert text in str(error)


def test_a_position_before_the_first_event_is_the_beginning() -> None:
    assert [position_text(sequence) for sequence in (None, -1, 0)] == [
        "beginning",
        "beginning",
        "0",
    ]
