"""Reports of tasks to the driver, over a real socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator

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
from tests.spark.support.waiting import until

LAST = KnownPosition(99, "8192", 1_700_000_000_000)
REPORT = TaskReport("0", 100, 5_000, 0.5, LAST)


@pytest.fixture
def listener() -> Iterator[ReportListener]:
    listener = ReportListener()
    yield listener
    listener.close()


def test_a_report_arrives(listener: ReportListener) -> None:
    ReportSender().post(listener.address, [REPORT])
    until(lambda: bool(listener.positions()))
    assert listener.positions() == {"0": LAST}
    assert listener.statistics(1, 30).event_bytes == 50


@pytest.mark.parametrize(
    "line",
    [b"", b"GET / HTTP/1.1\r\n", b"7\n", b"[]\n", b"{}\n", b'{"token": "x", "reports": 7}\n',
     b'{"token": "\xc3\xa4"}\n', to_line("wrong", [REPORT])],
)  # fmt: skip
def test_a_line_without_the_token_is_ignored(listener: ReportListener, line: bytes) -> None:
    address = (listener.address.host, listener.address.port)
    with socket.create_connection(address) as connection:
        connection.sendall(line)
    ReportSender().post(listener.address, [TaskReport("1", 1, 1, 0.1, KnownPosition(5))])
    until(lambda: bool(listener.positions()))
    assert listener.positions() == {"1": KnownPosition(5)}


def test_an_unreachable_driver_does_not_delay_other_reports(listener: ReportListener) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    unreachable, sender = DriverAddress("127.0.0.1", port, "t"), ReportSender()
    for _ in range(200):
        sender.post(unreachable, [REPORT])

    def arrived() -> bool:
        sender.post(listener.address, [REPORT])  # dropped while the queue is full
        return bool(listener.positions())

    until(arrived)


def test_the_token_is_not_in_the_repr() -> None:
    assert "s3cret" not in repr(DriverAddress("h", 1, "s3cret"))


def test_the_address_of_the_driver_that_tasks_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    assert reachable_host("127.0.0.1", 5672) == "127.0.0.1"
    assert reachable_host("no such host", 5672) == "127.0.0.1"
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.1.2.3")
    assert reachable_host("127.0.0.1", 5672) == "10.1.2.3"


def test_the_mean_event_size_is_a_moving_mean() -> None:
    assert mean_bytes(None, TaskReport("0", 0, 0, 1.0)) is None
    assert mean_bytes(None, TaskReport("0", 10, 1000, 1.0)) == 100
    assert mean_bytes(100.0, TaskReport("0", 10, 2000, 1.0)) == pytest.approx(120)


def test_a_slow_partition_gets_a_factor_below_one() -> None:
    reports = {str(n): TaskReport(str(n), 100, 1, 10.0) for n in range(7)}
    reports["7"] = TaskReport("7", 100, 1, 90.0)
    factors = slow_partition_factors(reports, 8, 30.0)
    assert set(factors) == {"7"}
    assert factors["7"] == pytest.approx(20 / 90)
    assert slow_partition_factors(reports, 8, 100.0) == {}  # slower than others, but acceptable
    assert slow_partition_factors({"7": reports["7"]}, 8, 30.0) == {}  # one partition gives no mean
