"""What tasks tell the driver, over a real socket; and what becomes of it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from pumphouse.spark.lag.known_positions import KnownPosition
from pumphouse.spark.lag.task_reports import (
    DriverAddress,
    ReportListener,
    ReportSender,
    TaskReport,
    mean_bytes,
    reachable_host,
    slow_partition_factors,
    to_line,
)

LAST = KnownPosition(99, "8192", 1_700_000_000_000)
REPORT = TaskReport("0", 100, 5_000, 0.5, LAST)
UNTIL_S = 60


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + UNTIL_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_report_arrives() -> None:
    feedback = ReportListener()
    try:
        ReportSender().post(feedback.address, [REPORT])
        until(lambda: bool(feedback.marks()))
        assert feedback.marks() == {"0": LAST}
        assert feedback.statistics(1, 30).event_bytes == 50
    finally:
        feedback.close()


@pytest.mark.parametrize(
    "line",
    [b"", b"GET / HTTP/1.1\r\n", b"7\n", b"[]\n", b"{}\n", b'{"token": "x", "reports": 7}\n',
     b'{"token": "\xc3\xa4"}\n', to_line("wrong", [REPORT])],
)  # fmt: skip
def test_strangers_are_not_believed_and_do_no_harm(line: bytes) -> None:
    feedback = ReportListener()
    try:
        with socket.create_connection((feedback.address.host, feedback.address.port)) as there:
            there.sendall(line)
        ReportSender().post(feedback.address, [TaskReport("1", 1, 1, 0.1, KnownPosition(5))])
        until(lambda: bool(feedback.marks()))
        assert feedback.marks() == {"1": KnownPosition(5)}
    finally:
        feedback.close()


def test_a_driver_that_is_gone_costs_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gone = DriverAddress("127.0.0.1", port, "t")
    report_sender, feedback = ReportSender(), ReportListener()
    try:
        for _ in range(200):
            report_sender.post(gone, [REPORT])
        until(lambda: report_sender._waiting.empty())
        report_sender.post(feedback.address, [REPORT])
        until(lambda: bool(feedback.marks()))
    finally:
        feedback.close()


def test_the_token_is_not_shown() -> None:
    assert "s3cret" not in repr(DriverAddress("h", 1, "s3cret"))


def test_where_tasks_find_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    assert reachable_host("127.0.0.1", 5672) == "127.0.0.1"
    assert reachable_host("no such host", 5672) == "127.0.0.1"
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.1.2.3")
    assert reachable_host("127.0.0.1", 5672) == "10.1.2.3"


def test_the_mean_size_moves() -> None:
    assert mean_bytes(None, TaskReport("0", 0, 0, 1.0)) is None
    assert mean_bytes(None, TaskReport("0", 10, 1000, 1.0)) == 100
    assert mean_bytes(100.0, TaskReport("0", 10, 2000, 1.0)) == pytest.approx(120)


def test_slow_partitions() -> None:
    reports = {str(n): TaskReport(str(n), 100, 1, 10.0) for n in range(7)}
    reports["7"] = TaskReport("7", 100, 1, 90.0)
    factors = slow_partition_factors(reports, 8, 30.0)
    assert set(factors) == {"7"}
    assert factors["7"] == pytest.approx(20 / 90)
    assert (
        slow_partition_factors(reports, 8, 100.0) == {}
    )  # slower than others, and still acceptable
    assert slow_partition_factors({"7": reports["7"]}, 8, 30.0) == {}  # one alone says nothing
