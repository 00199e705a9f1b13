"""What goes wrong between a query and its hub: said with the option that helps, or lived through.

Readers are asked as Spark asks them, without a Spark around: the code is the same, and a hub that
misbehaves can be had in this process.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
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
from pumphouse.spark.hub_state import SILENT_S
from pumphouse.spark.lag.task_reports import TaskReport
from pumphouse.spark.offsets import Span
from pumphouse.spark.read.connections import connect, connections
from pumphouse.spark.read.task import SpanProgress, spans_around_gap
from pumphouse.spark.source import ColumnSelection, StreamReader, make_task

from .conftest import Hub
from .runs import SCHEMA, Run, both_drivers, given, read_batch, string_of, with_wrong_key
from .test_troubles_writing import two, write

ROOT = Path(__file__).parents[2]
UNTIL_S = 60


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + UNTIL_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _this_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It is no worker of Spark: SIGTERM stays as it was, and connections are not kept for later."""
    monkeypatch.setattr(source, "leave_on_sigterm", lambda: None)
    yield
    connections.close()


# -- what is said ---------------------------------------------------------------------------------


@both_drivers
def test_a_wrong_key(hub: Hub, driver: str) -> None:
    with pytest.raises(Exception, match=r"signature.* The key is in connectionString") as failed:
        read_batch(hub, connectionString=with_wrong_key(hub), driver=driver)
    assert "d3Jvbmc=" not in str(failed.value)


@both_drivers
def test_a_hub_that_is_not_there(hub: Hub, driver: str) -> None:
    with pytest.raises(Exception, match=r"nowhere.* could not be found.* the option name"):
        read_batch(hub, name="nowhere", driver=driver)


@both_drivers
def test_a_group_that_is_not_there_is_noticed_before_there_are_events(
    hub: Hub, driver: str
) -> None:
    why = "consumerGroup is 'nobody', and hub sensors has no such group"
    with (
        Run(hub, consumerGroup="nobody", driver=driver) as run,
        pytest.raises(Exception, match=why),
    ):
        run.plan()


def test_a_group_that_others_read_with_an_epoch_is_there(hub: Hub) -> None:
    hub.send("a", partition="0")
    with Run(hub) as first, Run(hub, useExclusiveReceiver="false") as second:
        parts = first.plan()
        reading = first.reader.read(parts[0])
        next(reading)  # its reader is attached, with an epoch
        assert second.plan()
        reading.close()  # type: ignore[attr-defined]


@both_drivers
def test_a_host_that_does_not_answer(hub: Hub, driver: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = string_of(free)
    why = r"The host is 127\.0\.0\.1, from connectionString or fullyQualifiedNamespace"
    with pytest.raises(Exception, match=why):
        read_batch(hub, connectionString=gone, driver=driver)


def test_a_host_that_takes_a_call_and_says_nothing(hub: Hub) -> None:
    """Neither who plans, nor who reads, nor who writes waits for it without end."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        options = {"connectionString": string_of(mute), "operationTimeout": "300ms"}
        options["retry.total"] = "0"
        why = r"hub sensors did not answer within 0\.3 s \(operationTimeout\)"
        with pytest.raises(PumphouseError, match=why):
            read_batch(hub, **options)
        with pytest.raises(PumphouseError, match=why):
            write(hub, two(), **options)
        with pytest.raises(PumphouseError, match=r"did not open the connection in 0\.3 s"):
            connect(StreamReader(given(hub, **options), SCHEMA).options.identity)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"startingPosition": "soon"}, "startingPosition is 'soon', which is no position"),
        (
            {"startingPosition": "latest", "endingPosition": "earliest"},
            r"partition 0: the start \(event 1\) lies after the end .* look at startingPosition",
        ),
        ({"partitions": "9"}, "partitions names 9, and the hub has 0, 1, 2, 3"),
        ({"startingPositions": '{"7": "earliest"}'}, "startingPositions names partition 7"),
    ],
)
def test_positions_that_make_no_sense(hub: Hub, options: dict[str, str], why: str) -> None:
    hub.send("x", partition="0")
    with pytest.raises(OptionError, match=why):
        read_batch(hub, **options)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ([("body", StringType())], "column body is binary, and the schema says string; cast it"),
        ([("publisher", StringType(), False)], "the column publisher may be null"),
        ([("body", BinaryType())] * 2, "names the column body twice"),
    ],
)
def test_columns_that_there_are_not(hub: Hub, columns: list[Any], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        StreamReader(given(hub), StructType([StructField(*column) for column in columns]))


# -- what has gone --------------------------------------------------------------------------------


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def short_memory(clock: MovableClock) -> Iterator[Hub]:
    """A hub that keeps events for a minute."""
    with EmbeddedHub({"sensors": 1}, clock=clock, retention=Retention(seconds=60)) as house:
        yield Hub(house, "sensors")


def lose_all(hub: Hub, clock: MovableClock) -> None:
    clock.advance(120)
    hub.house.tick()


def test_events_that_left_before_a_batch_was_planned(
    short_memory: Hub, clock: MovableClock
) -> None:
    short_memory.send(*"abc", partition="0")
    with Run(short_memory) as run:
        assert run.batch(1) == {"0": 1}
        lose_all(short_memory, clock)
        short_memory.send("d", partition="0")
        with pytest.raises(Exception, match=r"events 1 to 2 have left .* failOnDataLoss=false"):
            run.batch()


def test_events_that_left_are_skipped_if_that_is_allowed(
    short_memory: Hub, clock: MovableClock
) -> None:
    short_memory.send(*"abc", partition="0")
    with Run(short_memory, failOnDataLoss="false") as run:
        assert run.batch(1) == {"0": 1}
        lose_all(short_memory, clock)
        short_memory.send("d", "e", partition="0")
        assert run.batch() == {"0": 2}


@both_drivers
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_gap_that_a_task_finds(
    short_memory: Hub, clock: MovableClock, driver: str, fail: str
) -> None:
    """The batch was planned while all events were there; its task comes too late for some."""
    short_memory.send(*"abc", partition="0")
    with Run(short_memory, failOnDataLoss=fail, driver=driver) as run:
        (part,) = run.plan()
        lose_all(short_memory, clock)
        short_memory.send("d", partition="0")
        if fail == "true":
            with pytest.raises(Exception, match=r"no longer has event 0.* failOnDataLoss=false"):
                list(run.reader.read(part))
        else:
            assert list(run.reader.read(part)) == []
            assert run.batch() == {"0": 1}


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_gap_that_opens_while_a_task_reads(
    short_memory: Hub, clock: MovableClock, fail: str
) -> None:
    """More than a connection holds: the older half goes when a part of it has been read."""
    large, half = "x" * 200_000, 100
    short_memory.send(*[large] * half, partition="0")
    clock.advance(50)
    short_memory.send(*[large] * half, partition="0")
    with Run(short_memory, failOnDataLoss=fail, arrowBatchRows="1") as run:
        (part,) = run.plan()
        reading = run.reader.read(part)
        found = next(reading).column("sequenceNumber").to_pylist()
        clock.advance(30)
        short_memory.house.tick()
        if fail == "true":
            with pytest.raises(Exception, match=r"no longer has event \d+;.* failOnDataLoss=false"):
                list(reading)
            return
        for batch in reading:
            found += batch.column("sequenceNumber").to_pylist()
    read = len(found) - half
    assert 0 < read < half
    assert found == [*range(read), *range(half, 2 * half)]


def test_what_lies_before_a_gap_is_read_again_and_what_lies_behind_it_too(hub: Hub) -> None:
    """Events 64 to 95 had come, and waited for their batch to fill, when 96 was missing."""
    options = StreamReader(given(hub, failOnDataLoss="false"), SCHEMA).options
    task = make_task(options, ColumnSelection(("body",)), (), None, None)
    piece = SpanProgress(Span("0", 0, 200))
    piece.next = 64
    assert spans_around_gap(task, piece, EventsGone("0", 96, 100)) == [
        Span("0", 64, 96),
        Span("0", 100, 200),
    ]
    assert spans_around_gap(task, piece, EventsGone("0", 64, 300)) == []


# -- what is lived through ------------------------------------------------------------------------


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Partitions of which the hub does not know anything at the moment, as in a failover."""
    names: set[str] = set()
    answer = management.handle

    def grudgingly(request: Message, *others: Any) -> Message:
        if str(request.application.get("partition")) in names:
            busy = "com.microsoft:server-busy"
            return management.refuse(request, 503, busy, "The partition is moving.")
        return answer(request, *others)

    monkeypatch.setattr(management, "handle", grudgingly)
    return names


def test_a_partition_that_does_not_answer_fails_the_query(hub: Hub, deaf: set[str]) -> None:
    deaf.add("2")
    with Run(hub, **{"retry.total": "0"}) as run, pytest.raises(Exception, match="is moving"):
        run.plan()


def test_a_partition_that_does_not_answer_is_left_out_and_taken_up_again(
    hub: Hub, deaf: set[str], clock: MovableClock
) -> None:
    for partition in "0123":
        hub.send("a", "b", partition=partition)
    with Run(hub, unavailablePartitions="skip", **{"retry.total": "0"}) as run:
        run.reader.driver.hub_state.clock = clock
        assert run.batch() == dict.fromkeys("0123", 2)
        deaf.add("2")
        for partition in "0123":
            hub.send("c", partition=partition)
        assert run.batch() == dict.fromkeys("013", 1)
        assert run.reported()["@unavailable"] == ["2"]
        deaf.clear()
        assert run.batch() == {}  # it is left alone for a while
        clock.advance(SILENT_S)
        assert run.batch() == {"2": 1}
        assert "@unavailable" not in run.reported()


def test_if_no_partition_answers_the_query_fails(hub: Hub, deaf: set[str]) -> None:
    deaf.update("0123")
    with (
        Run(hub, unavailablePartitions="skip", **{"retry.total": "0"}) as run,
        pytest.raises(Exception, match="does not answer"),
    ):
        run.plan()


def test_a_slow_partition_gets_less(hub: Hub) -> None:
    """All the way: measured by a task, told over a socket, and planned with."""
    for partition in "0123":
        hub.send(*map(str, range(100)), partition=partition)
    hub.house.faults.delay(2.0, on="deliver", partition="1")
    options = {"slowPartitionAdjustment": "true", "maxAcceptableBatchReceiveTime": "500ms"}
    with Run(hub, **options) as run:
        assert run.batch(40) == dict.fromkeys("0123", 10)
        feedback = run.reader.driver.feedback
        assert feedback is not None
        until(lambda: len(feedback.marks()) == 4)
        second = run.batch(40)
        assert 1 <= second["1"] < 10
        assert [second[one] for one in "023"] == [10, 10, 10]


@both_drivers
def test_a_connection_that_went_silent_is_given_up(hub: Hub, driver: str) -> None:
    """The first is deaf for an hour: only another can bring the events."""
    hub.send(*map(str, range(10)), partition="0")
    hub.house.faults.delay(3600, on="deliver", times=1)
    options = {"maxSilentTime": "500ms", "receiverTimeout": "60s", "driver": driver}
    assert read_batch(hub, **options) == {"0": 10}


def test_without_a_silent_time_patience_ends(hub: Hub) -> None:
    hub.send(*map(str, range(10)), partition="0")
    hub.house.faults.freeze("sensors", "0")
    with pytest.raises(Exception, match="did not come"):
        read_batch(hub, receiverTimeout="300ms")


# What Spark's runner does: answer questions until there are no more, and stop() in the end.
RUNNER = """
import sys
from pumphouse.spark.source import StreamReader
from tests.spark.runs import SCHEMA
reader = StreamReader({"connectionString": sys.argv[1], "startingPosition": "earliest"}, SCHEMA)
try:
    reader.initialOffset()
    print("ready", flush=True)
    sys.stdin.read()
finally:
    reader.stop()
"""


def test_a_runner_that_is_told_to_end_says_good_bye(hub: Hub) -> None:
    """Spark ends it with SIGTERM: it closes its connection, and says nothing to the terminal."""
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, hub.connection], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with runner:
        assert runner.stdout is not None
        assert runner.stdout.readline() == "ready\n"
        (talk,) = hub.house.server.connections
        runner.terminate()
        _, noise = runner.communicate(timeout=UNTIL_S)
    assert (runner.returncode, noise) == (0, "")
    until(lambda: not hub.house.server.connections)
    assert talk.amqp.state == "END"  # it was not merely cut off


# -- what is told ---------------------------------------------------------------------------------

told: list[TaskReport] = []


def on_read(report: TaskReport) -> None:
    told.append(report)


def raising(report: TaskReport) -> None:
    raise RuntimeError("the plugin is broken")


def test_a_plugin_is_told_what_each_task_measured(hub: Hub) -> None:
    told.clear()
    hub.send(*map(str, range(10)), partition="0")
    hub.send("a", partition="3")
    assert read_batch(hub, metricPlugin=f"{__name__}:on_read") == Counter({"0": 10, "3": 1})
    assert {(one.partition, one.events) for one in told} == {("0", 10), ("3", 1)}
    assert all(one.seconds > 0 and one.bytes > 0 for one in told)


def test_a_plugin_that_fails_does_not_fail_the_query(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    hub.send("a", partition="0")
    assert read_batch(hub, metricPlugin=f"{__name__}:raising") == {"0": 1}
    assert "metricPlugin" in caplog.text
