"""Errors between a query and its hub: reported with the option to change, or recovered from.

Readers are called as Spark calls them, without Spark: the hub runs in this process, and its faults
can be injected.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pumphouse.amqp.messages import Message
from pumphouse.client.bulk.client import EventsGone
from pumphouse.clock import MovableClock
from pumphouse.errors import OptionError, PumphouseError
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.links import management
from pumphouse.hub.options import Retention
from pumphouse.spark import source
from pumphouse.spark.driver.base import ColumnSelection, make_task
from pumphouse.spark.driver.hub_state import UNRESPONSIVE_S
from pumphouse.spark.lag.task_reports import TaskReport
from pumphouse.spark.offsets import Span
from pumphouse.spark.read.connections import connect, connections
from pumphouse.spark.read.task import SpanProgress, spans_around_gap
from pumphouse.spark.source import BatchReader, StreamReader
from tests.spark.conftest import Hub
from tests.spark.support.readers import (
    SCHEMA,
    Run,
    both_drivers,
    connection_string_of,
    options_for,
    read_batch,
    with_wrong_key,
)
from tests.spark.support.waiting import until
from tests.spark.write.rows import two_rows, write

ROOT = Path(__file__).parents[2]
ENDED_S = 60


@pytest.fixture(autouse=True)
def _keep_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the signal handler of pytest, and no connections after a test."""
    monkeypatch.setattr(source, "stop_on_sigterm", lambda: None)
    yield
    connections.close()


# -- errors ---------------------------------------------------------------------------------------


@both_drivers
def test_a_wrong_key_names_the_option(hub: Hub, driver: str) -> None:
    with pytest.raises(Exception, match=r"signature.* The key is in connectionString") as failed:
        read_batch(hub, connectionString=with_wrong_key(hub), driver=driver)
    assert "d3Jvbmc=" not in str(failed.value)


@both_drivers
def test_an_unknown_hub_names_the_option(hub: Hub, driver: str) -> None:
    with pytest.raises(Exception, match=r"nowhere.* could not be found.* the option name"):
        read_batch(hub, name="nowhere", driver=driver)


@both_drivers
def test_an_unknown_group_is_an_error_before_there_are_events(hub: Hub, driver: str) -> None:
    reason = "invalid consumerGroup 'nobody': hub sensors has no such group"
    with (
        Run(hub, consumerGroup="nobody", driver=driver) as run,
        pytest.raises(Exception, match=reason),
    ):
        run.plan()


def test_a_group_with_exclusive_readers_exists(hub: Hub) -> None:
    hub.send("a", partition="0")
    with Run(hub) as first, Run(hub, useExclusiveReceiver="false") as second:
        parts = first.plan()
        reading = first.reader.read(parts[0])
        next(reading)  # its reader is attached, with an epoch
        assert second.plan()
        reading.close()  # type: ignore[attr-defined]


@both_drivers
def test_a_host_that_does_not_respond_names_the_option(hub: Hub, driver: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = connection_string_of(free)
    reason = r"The host is 127\.0\.0\.1, from connectionString or fullyQualifiedNamespace"
    with pytest.raises(Exception, match=reason):
        read_batch(hub, connectionString=gone, driver=driver)


def test_a_host_that_accepts_a_connection_and_sends_nothing_times_out(hub: Hub) -> None:
    """Planning, reading and writing all have a deadline."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {"connectionString": connection_string_of(silent), "operationTimeout": "300ms"}
        options["retry.total"] = "0"
        reason = r"hub sensors did not respond within 0\.3 s \(operationTimeout\)"
        with pytest.raises(PumphouseError, match=reason):
            read_batch(hub, **options)
        with pytest.raises(PumphouseError, match=reason):
            write(hub, two_rows(), **options)
        with pytest.raises(PumphouseError, match=r"did not open the connection in 0\.3 s"):
            connect(StreamReader(options_for(hub, **options), SCHEMA).sources.common.identity)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"startingPosition": "soon"}, "invalid startingPosition 'soon'"),
        (
            {"startingPosition": "latest", "endingPosition": "earliest"},
            r"partition 0: the start \(event 1\) lies after the end .* check startingPosition",
        ),
        ({"partitions": "9"}, "the hub has no partition 9; it has 0, 1, 2, 3"),
        ({"startingPositions": '{"7": "earliest"}'}, "startingPositions names partition 7"),
    ],
)
def test_an_invalid_position_or_partition_is_refused(
    hub: Hub, options: dict[str, str], reason: str
) -> None:
    hub.send("x", partition="0")
    with pytest.raises(OptionError, match=reason):
        read_batch(hub, **options)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ([("body", StringType())], "column body is binary, and the schema has string; cast it"),
        ([("publisher", StringType(), False)], "the column publisher may be null"),
        ([("body", BinaryType())] * 2, "names the column body twice"),
    ],
)
def test_an_invalid_schema_is_refused(hub: Hub, columns: list[Any], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        StreamReader(options_for(hub), StructType([StructField(*column) for column in columns]))


# -- data loss ------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def short_retention(clock: MovableClock) -> Iterator[Hub]:
    """A hub that keeps events for a minute."""
    with EmbeddedHub({"sensors": 1}, clock=clock, retention=Retention(seconds=60)) as embedded:
        yield Hub(embedded, "sensors")


def remove_all(hub: Hub, clock: MovableClock) -> None:
    clock.advance(120)
    hub.embedded.tick()


def test_events_removed_before_a_batch_was_planned_are_a_data_loss(
    short_retention: Hub, clock: MovableClock
) -> None:
    short_retention.send(*"abc", partition="0")
    with Run(short_retention) as run:
        assert run.batch(1) == {"0": 1}
        remove_all(short_retention, clock)
        short_retention.send("d", partition="0")
        with pytest.raises(Exception, match=r"removed events 1 to 2 .* failOnDataLoss=false"):
            run.batch()


def test_removed_events_are_skipped_if_that_is_allowed(
    short_retention: Hub, clock: MovableClock
) -> None:
    short_retention.send(*"abc", partition="0")
    with Run(short_retention, failOnDataLoss="false") as run:
        assert run.batch(1) == {"0": 1}
        remove_all(short_retention, clock)
        short_retention.send("d", "e", partition="0")
        assert run.batch() == {"0": 2}


@both_drivers
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_task_finds_removed_events(
    short_retention: Hub, clock: MovableClock, driver: str, fail: str
) -> None:
    """The hub held all events when the batch was planned, and not when its task reads."""
    short_retention.send(*"abc", partition="0")
    with Run(short_retention, failOnDataLoss=fail, driver=driver) as run:
        (part,) = run.plan()
        remove_all(short_retention, clock)
        short_retention.send("d", partition="0")
        if fail == "true":
            with pytest.raises(Exception, match=r"no longer has event 0.* failOnDataLoss=false"):
                list(run.reader.read(part))
        else:
            assert list(run.reader.read(part)) == []
            assert run.batch() == {"0": 1}


@pytest.mark.parametrize("fail", ["true", "false"])
def test_events_are_removed_while_a_task_reads(
    short_retention: Hub, clock: MovableClock, fail: str
) -> None:
    """More than a connection buffers: the older half is removed after a part of it was read."""
    large, half = "x" * 200_000, 100
    short_retention.send(*[large] * half, partition="0")
    clock.advance(50)
    short_retention.send(*[large] * half, partition="0")
    with Run(short_retention, failOnDataLoss=fail, arrowBatchRows="1") as run:
        (part,) = run.plan()
        reading = run.reader.read(part)
        sequences = next(reading).column("sequenceNumber").to_pylist()
        clock.advance(30)
        short_retention.embedded.tick()
        if fail == "true":
            with pytest.raises(Exception, match=r"no longer has event \d+;.* failOnDataLoss=false"):
                list(reading)
            return
        for batch in reading:
            sequences += batch.column("sequenceNumber").to_pylist()
    read = len(sequences) - half
    assert 0 < read < half
    assert sequences == [*range(read), *range(half, 2 * half)]


def test_a_task_reads_the_spans_before_and_after_removed_events(hub: Hub) -> None:
    """Events 64 to 95 had arrived, and were not yet in a batch, when 96 was missing."""
    options = StreamReader(options_for(hub, failOnDataLoss="false"), SCHEMA).sources.common
    task = make_task(options, ColumnSelection(("body",)), (), None, None)
    piece = SpanProgress(Span("0", 0, 200))
    piece.next = 64
    assert spans_around_gap(task, piece, EventsGone("0", 96, 100)) == [
        Span("0", 64, 96),
        Span("0", 100, 200),
    ]
    assert spans_around_gap(task, piece, EventsGone("0", 64, 300)) == []


# -- recovery -------------------------------------------------------------------------------------


@pytest.fixture
def unavailable(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Partitions whose properties the hub refuses, as in a failover."""
    names: set[str] = set()
    respond = management.handle

    def refuse_some(request: Message, *others: Any) -> Message:
        if str(request.application.get("partition")) in names:
            busy = "com.microsoft:server-busy"
            return management.refuse(request, 503, busy, "The partition is moving.")
        return respond(request, *others)

    monkeypatch.setattr(management, "handle", refuse_some)
    return names


def test_an_unavailable_partition_fails_the_query(hub: Hub, unavailable: set[str]) -> None:
    unavailable.add("2")
    options = {"retry.total": "0", "outageTimeout": "0s"}
    with Run(hub, **options) as run, pytest.raises(Exception, match="is moving"):
        run.plan()


def test_an_unavailable_partition_is_skipped_and_read_when_it_responds_again(
    hub: Hub, unavailable: set[str], clock: MovableClock
) -> None:
    for partition in "0123":
        hub.send("a", "b", partition=partition)
    with Run(hub, unavailablePartitions="skip", **{"retry.total": "0"}) as run:
        run.query_run.hub_state.clock = clock
        assert run.batch() == dict.fromkeys("0123", 2)
        unavailable.add("2")
        for partition in "0123":
            hub.send("c", partition=partition)
        assert run.batch() == dict.fromkeys("013", 1)
        assert run.report()["@unavailable"] == {"2": 0}
        unavailable.clear()
        assert run.batch() == {}  # it is not asked again at once
        clock.advance(UNRESPONSIVE_S)
        assert run.batch() == {"2": 1}
        assert "@unavailable" not in run.report()


def test_a_query_fails_if_no_partition_responds(hub: Hub, unavailable: set[str]) -> None:
    unavailable.update("0123")
    with (
        Run(hub, unavailablePartitions="skip", outageTimeout="0s", **{"retry.total": "0"}) as run,
        pytest.raises(Exception, match="does not respond"),
    ):
        run.plan()


def test_a_slow_partition_is_read_less(hub: Hub) -> None:
    """Measured by a task, reported over a socket, and used by the planner."""
    for partition in "0123":
        hub.send(*map(str, range(100)), partition=partition)
    hub.embedded.faults.delay(2.0, on="deliver", partition="1")
    options = {"slowPartitionAdjustment": "true", "maxAcceptableBatchReceiveTime": "500ms"}
    with Run(hub, **options) as run:
        assert run.batch(40) == dict.fromkeys("0123", 10)
        reports = run.query_run.reports
        assert reports is not None
        until(lambda: len(reports.positions()) == 4)
        second = run.batch(40)
        assert 1 <= second["1"] < 10
        assert [second[name] for name in "023"] == [10, 10, 10]


@both_drivers
def test_a_silent_connection_is_replaced(hub: Hub, driver: str) -> None:
    """The first delivers nothing for an hour."""
    hub.send(*map(str, range(10)), partition="0")
    hub.embedded.faults.delay(3600, on="deliver", times=1)
    options = {"maxSilentTime": "500ms", "receiverTimeout": "60s", "driver": driver}
    assert read_batch(hub, **options) == {"0": 10}


def test_without_max_silent_time_the_receiver_timeout_applies(hub: Hub) -> None:
    hub.send(*map(str, range(10)), partition="0")
    hub.embedded.faults.freeze("sensors", "0")
    with pytest.raises(Exception, match="did not arrive within"):
        read_batch(hub, receiverTimeout="300ms")


# What Spark's runner does: call the reader until its input ends, then stop().
RUNNER = """
import sys
from pumphouse.spark.source import StreamReader
from tests.spark.support.readers import SCHEMA
reader = StreamReader({"connectionString": sys.argv[1], "startingPosition": "earliest"}, SCHEMA)
try:
    reader.initialOffset()
    print("ready", flush=True)
    sys.stdin.read()
finally:
    reader.stop()
"""


def test_a_runner_closes_its_connection_on_sigterm(hub: Hub) -> None:
    """Spark ends it with SIGTERM. It prints nothing."""
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, hub.connection], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with runner:
        assert runner.stdout is not None
        assert runner.stdout.readline() == "ready\n"
        (talk,) = hub.embedded.server.connections
        runner.terminate()
        _, errors = runner.communicate(timeout=ENDED_S)
    assert (runner.returncode, errors) == (0, "")
    until(lambda: not hub.embedded.server.connections)
    assert talk.amqp.state == "END"  # an orderly close


# -- plugins --------------------------------------------------------------------------------------

reported: list[TaskReport] = []


def on_read(report: TaskReport) -> None:
    reported.append(report)


def raising(report: TaskReport) -> None:
    raise RuntimeError("the plugin is broken")


def test_a_plugin_receives_the_measurements_of_each_task(hub: Hub) -> None:
    reported.clear()
    hub.send(*map(str, range(10)), partition="0")
    hub.send("a", partition="3")
    assert read_batch(hub, metricPlugin=f"{__name__}:on_read") == Counter({"0": 10, "3": 1})
    assert {(report.partition, report.events) for report in reported} == {("0", 10), ("3", 1)}
    assert all(report.seconds > 0 and report.bytes > 0 for report in reported)


def test_a_plugin_that_fails_does_not_fail_the_query(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    hub.send("a", partition="0")
    assert read_batch(hub, metricPlugin=f"{__name__}:raising") == {"0": 1}
    assert "metricPlugin" in caplog.text


@pytest.mark.parametrize(
    ("plugin", "reason"),
    [
        ("no.such.module:call", "ModuleNotFoundError: No module named 'no'"),
        (f"{__name__}:missing", "has no attribute 'missing'"),
        (f"{__name__}:ROOT", "ROOT is not callable"),
    ],
)
def test_a_plugin_is_checked_when_the_query_starts(hub: Hub, plugin: str, reason: str) -> None:
    for reader in (StreamReader, BatchReader):
        with pytest.raises(OptionError, match=f"invalid metricPlugin '{plugin}'.*{reason}"):
            reader(options_for(hub, metricPlugin=plugin), SCHEMA)
