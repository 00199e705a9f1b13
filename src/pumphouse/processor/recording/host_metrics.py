"""The metrics of a host: how it owns partitions, and how long handlers and the store take.

    engine, lease table, partition client -> HostMetrics -> telemetry
                                             ^^^^^^^^^^^ this module

Changes of ownership are counted with their log line, so that the log, the metrics and
`on_ownership` agree. Gauges are read at each collection, by its thread: it copies every collection
of the host before it iterates over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from pumphouse.clock import Clock
from pumphouse.events import Event
from pumphouse.leases.model import Granted, Group, Refused
from pumphouse.leases.store import CheckpointStore, ClaimOutcome
from pumphouse.processor.options import DEAD_LETTER, SKIP, STOP
from pumphouse.processor.recording.metered_store import metered_store
from pumphouse.processor.recording.recorder import (
    CLAIM,
    FAILED,
    LOOP,
    LOSE,
    LOST,
    NO_CALLS,
    NOTHING,
    OK,
    RAISE_EPOCH,
    RELEASE,
    RENEW,
    REQUEST,
    CallRecorder,
    Recorder,
)
from pumphouse.telemetry import definitions as metrics
from pumphouse.telemetry.definitions import OPERATION_DURATION, PROCESS_DURATION, Metric
from pumphouse.telemetry.meter import (
    Labels,
    Series,
    add_source,
    close_series,
    open_series,
    remove_source,
)

if TYPE_CHECKING:
    from pumphouse.processor.lease_table import LeaseTable
    from pumphouse.processor.supervisor import PartitionSupervisor

Values = Iterable[tuple[float, Labels]]

# Changes of ownership by the event of their log line: operation and outcome.
CHANGES = {
    "partition_claimed": (CLAIM, OK),
    "partition_released": (RELEASE, OK),
    "partition_handed_over": (RELEASE, OK),
    "partition_lost": (LOSE, LOST),
}
ENDED = CHANGES.keys() - {"partition_claimed"}
LOGGED = {operation for operation, outcome in CHANGES.values() if outcome == OK}
OPERATIONS = [
    *[(op, outcome) for op in (CLAIM, RENEW, REQUEST, RELEASE) for outcome in (OK, LOST, FAILED)],
    *[(RAISE_EPOCH, outcome) for outcome in (OK, LOST, FAILED)],
    (LOSE, LOST),
]
CLEAN = "clean"
POISON_ENDS = {SKIP: "skip", DEAD_LETTER: "dead_letter", STOP: "stop"}
OBSERVED = (
    metrics.OWNED_PARTITIONS,
    metrics.CHECKPOINT_AGE,
    metrics.STUCK_HANDLERS,
    metrics.QUEUE_EVENTS,
)


class HostMetrics(Recorder):
    """The metrics of one running host. It has labels only after the host has connected."""

    def __init__(self, host: str, clock: Clock) -> None:
        self._host, self._clock = host, clock
        self._labels: dict[str, str] = {}
        self._series: dict[tuple[Metric, tuple[str, ...]], Series] = {}
        self._calls: dict[str, MeteredCalls] = {}  # by partition
        self._requested_s: dict[str, float] = {}  # partitions that another host has requested
        self._leases: LeaseTable | None = None
        self._supervisors: Mapping[str, PartitionSupervisor] = {}

    def metered(self, store: CheckpointStore) -> CheckpointStore:
        return metered_store(store, self._clock, self._requested_store)

    def open(
        self, group: Group, leases: LeaseTable, supervisors: Mapping[str, PartitionSupervisor]
    ) -> None:
        self._labels = {"eventhub": group.hub, "group": group.name, "host": self._host}
        self._leases, self._supervisors = leases, supervisors
        for operation, outcome in OPERATIONS:
            self._of(metrics.LEASE_OPERATIONS, op=operation, outcome=outcome)
        for outcome in (CLEAN, LOST):
            self._of(metrics.HANDOFFS, outcome=outcome)
        for end in POISON_ENDS.values():
            self._of(metrics.POISON_EVENTS, end=end)
        for metric in (metrics.HANDOFF_SECONDS, metrics.CYCLE_SECONDS, metrics.EXPIRED_EVENTS):
            self._of(metric)
        add_source(self, *OBSERVED)

    def close(self) -> None:
        remove_source(self)
        self._leases, self._supervisors = None, {}
        close_series(*self._series.values())
        self._series.clear()
        for partition in list(self._calls):
            self._close_calls(partition)

    def _of(self, metric: Metric, **labels: str) -> Series:
        if self._leases is None:
            return Series(metric, labels)  # the host has ended: nothing shows it
        key = (metric, tuple(labels.values()))
        if key not in self._series:
            self._series[key] = open_series(metric, self._labels | labels)
        return self._series[key]

    # -- what happens -----------------------------------------------------------------------------

    def _requested_store(self, operation: str, outcome: str, seconds: float) -> None:
        series = self._of(metrics.STORE_REQUEST_SECONDS, op=operation, outcome=outcome)
        series.record(seconds)

    def completed_cycle(self, seconds: float) -> None:
        self._of(metrics.CYCLE_SECONDS).record(seconds)
        held = {} if self._leases is None else self._leases.held
        for partition in self._calls.keys() - held.keys() - self._supervisors.keys():
            self._close_calls(partition)  # its release has failed: there was no change to count

    def wrote(self, operation: str, outcomes: Sequence[ClaimOutcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Granted) and operation in LOGGED:
                continue  # counted with its log line
            self._of(metrics.LEASE_OPERATIONS, op=operation, outcome=result_of(outcome)).add()

    def changed_ownership(self, event: str, partition: str) -> None:
        if event == "partition_requested":
            self._requested_s[partition] = self._clock.monotonic()
            return
        operation, outcome = CHANGES[event]
        self._of(metrics.LEASE_OPERATIONS, op=operation, outcome=outcome).add()
        requested_s = self._requested_s.pop(partition, None)
        if event == "partition_handed_over":
            self._of(metrics.HANDOFFS, outcome=CLEAN).add()
            if requested_s is not None:
                self._of(metrics.HANDOFF_SECONDS).record(self._clock.monotonic() - requested_s)
        elif event == "partition_lost" and requested_s is not None:
            self._of(metrics.HANDOFFS, outcome=LOST).add()
        if event in ENDED:
            self._close_calls(partition)

    def poisoned(self, end: str) -> None:
        self._of(metrics.POISON_EVENTS, end=POISON_ENDS.get(end, POISON_ENDS[STOP])).add()

    def expired(self, events: int) -> None:
        self._of(metrics.EXPIRED_EVENTS).add(events)

    def calls(self, partition: str) -> CallRecorder:
        if self._leases is None:
            return NO_CALLS
        self._close_calls(partition)
        calls = MeteredOperation(PROCESS_DURATION, self._operation(partition, "process", "process"))
        labels = self._operation(partition, "checkpoint", "settle")
        checkpoints = MeteredOperation(OPERATION_DURATION, labels)
        self._calls[partition] = MeteredCalls(calls, checkpoints, self._clock)
        return self._calls[partition]

    def _operation(self, partition: str, name: str, kind: str) -> dict[str, str]:
        return {
            "messaging.system": "eventhubs",
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
            "messaging.destination.name": self._labels["eventhub"],
            "messaging.destination.partition.id": partition,
            "messaging.consumer.group.name": self._labels["group"],
        }

    @contextmanager
    def checkpointing(self, partition: str) -> Iterator[None]:
        error, began_s = "", self._clock.monotonic()
        try:
            yield
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            if (calls := self._calls.get(partition)) is not None:
                calls.checkpoints.record(self._clock.monotonic() - began_s, error)

    def _close_calls(self, partition: str) -> None:
        if (calls := self._calls.pop(partition, None)) is not None:
            calls.close()

    # -- what is read at each collection ----------------------------------------------------------

    def observe(self, metric: Metric) -> Values:
        if (leases := self._leases) is None:
            return
        served = list(self._supervisors.values())
        if metric is metrics.OWNED_PARTITIONS:
            yield len(leases.held), self._labels
        elif metric is metrics.STUCK_HANDLERS:
            yield sum(supervisor.is_stuck for supervisor in served), self._labels
        else:
            yield from self._of_partitions(metric, leases, served)

    def _of_partitions(
        self, metric: Metric, leases: LeaseTable, served: list[PartitionSupervisor]
    ) -> Iterator[tuple[float, Labels]]:
        for supervisor in served:
            if supervisor.partition in leases.held and (client := supervisor.client) is not None:
                labels = self._labels | {"partition": supervisor.partition}
                is_age = metric is metrics.CHECKPOINT_AGE
                yield client.checkpoint_age_s if is_age else supervisor.queued_events, labels


class MeteredOperation:
    """The durations of one operation on one partition, by the type of their error."""

    def __init__(self, metric: Metric, labels: Labels) -> None:
        self._metric, self._labels = metric, dict(labels)
        self._series: dict[str, Series] = {"": open_series(metric, labels)}
        self._closed = False

    def record(self, seconds: float, error: str = "") -> None:
        if error not in self._series and not self._closed:
            self._series[error] = open_series(self._metric, self._labels | {"error.type": error})
        if error in self._series:
            self._series[error].record(seconds)

    def close(self) -> None:
        if not self._closed:
            close_series(*self._series.values())
        self._closed = True


class MeteredCalls(CallRecorder):
    """Records how long the processing of the events of one partition takes."""

    def __init__(
        self, calls: MeteredOperation, checkpoints: MeteredOperation, clock: Clock
    ) -> None:
        self._calls, self.checkpoints, self._clock = calls, checkpoints, clock
        self._unit = LOOP
        self._began_s: float | None = None

    def use(self, unit: str) -> None:
        if self._unit == LOOP:
            self._unit = unit

    def begin(self, unit: str, events: Sequence[Event]) -> None:
        if unit == self._unit:
            self._began_s = self._clock.monotonic()

    def end(self, unit: str, error: str = "") -> None:
        if unit == self._unit and self._began_s is not None:
            self.ended(self._began_s, error)
            self._began_s = None

    def now_s(self) -> float:
        return self._clock.monotonic()

    def ended(self, began_s: float, error: str) -> None:
        self._calls.record(self._clock.monotonic() - began_s, error)

    def calling(self, unit: str, events: Sequence[Event]) -> AbstractContextManager[None]:
        return MeteredCall(self) if unit == self._unit else NOTHING

    def close(self) -> None:
        self._calls.close()
        self.checkpoints.close()


class MeteredCall:
    """Records one call, beside others. A class: a generator would cost more than the recording."""

    __slots__ = ("_began_s", "_calls")

    def __init__(self, calls: MeteredCalls) -> None:
        self._calls, self._began_s = calls, 0.0

    def __enter__(self) -> None:
        self._began_s = self._calls.now_s()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._calls.ended(self._began_s, "" if kind is None else kind.__name__)


def result_of(outcome: ClaimOutcome) -> str:
    if isinstance(outcome, Granted):
        return OK
    return LOST if isinstance(outcome, Refused) else FAILED
