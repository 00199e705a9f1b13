"""The spans of a host: each processing of events, and each checkpoint.

    partition client -> HostTraces -> telemetry.spans
                        ^^^^^^^^^^ this module

A span `process` begins a trace of its own and links to the spans that have created its events. It
is the current span while a handler runs. In a loop over batches it is the current one in the task
of the loop from a batch until the next one is requested.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind

from pumphouse.events import Event
from pumphouse.leases.model import Group
from pumphouse.leases.store import CheckpointStore, ClaimOutcome
from pumphouse.processor.recording.recorder import LOOP, CallRecorder, Recorder
from pumphouse.telemetry.spans import (
    CHECKPOINT,
    PROCESS,
    Calling,
    CurrentSpan,
    Spans,
    describe_batch,
    end,
    ending,
)

if TYPE_CHECKING:
    from pumphouse.processor.lease_table import LeaseTable
    from pumphouse.processor.supervisor import PartitionSupervisor


ROOT = Context()  # without a span: the parent of a trace of its own


class HostTraces(Recorder):
    """The spans of one host. Everything else goes to the recorder of its metrics."""

    def __init__(self, metrics: Recorder) -> None:
        self._metrics = metrics
        self._group: Group | None = None

    def _spans(self, partition: str) -> Spans:
        assert self._group is not None
        return Spans(self._group.hub, self._group.namespace, partition, self._group.name)

    @contextmanager
    def checkpointing(self, partition: str) -> Iterator[None]:
        span = self._spans(partition).start(CHECKPOINT, SpanKind.CLIENT)
        with ending(span), self._metrics.checkpointing(partition):
            yield

    def calls(self, partition: str) -> CallRecorder:
        return TracedCalls(self._spans(partition), self._metrics.calls(partition))

    # -- passed on --------------------------------------------------------------------------------

    def metered(self, store: CheckpointStore) -> CheckpointStore:
        return self._metrics.metered(store)

    def open(
        self, group: Group, leases: LeaseTable, supervisors: Mapping[str, PartitionSupervisor]
    ) -> None:
        self._group = group
        self._metrics.open(group, leases, supervisors)

    def close(self) -> None:
        self._metrics.close()

    def completed_cycle(self, seconds: float) -> None:
        self._metrics.completed_cycle(seconds)

    def wrote(self, operation: str, outcomes: Sequence[ClaimOutcome]) -> None:
        self._metrics.wrote(operation, outcomes)

    def changed_ownership(self, event: str, partition: str) -> None:
        self._metrics.changed_ownership(event, partition)

    def poisoned(self, end: str) -> None:
        self._metrics.poisoned(end)

    def expired(self, events: int) -> None:
        self._metrics.expired(events)


class TracedCalls(CallRecorder):
    """A span for each processing of events of one partition."""

    def __init__(self, spans: Spans, metrics: CallRecorder) -> None:
        self._spans, self._metrics = spans, metrics
        self._unit = LOOP
        self._turn: CurrentSpan | None = None  # of the loop over batches

    def use(self, unit: str) -> None:
        if self._unit == LOOP:
            self._unit = unit
        self._metrics.use(unit)

    def _start(self, events: Sequence[Event]) -> Span:
        span = self._spans.start(PROCESS, SpanKind.CONSUMER, parent=ROOT)
        describe_batch(span, events)
        return span

    def begin(self, unit: str, events: Sequence[Event]) -> None:
        self._metrics.begin(unit, events)
        if unit == self._unit:
            self._turn = CurrentSpan(self._start(events))

    def end(self, unit: str, error: str = "") -> None:
        self._metrics.end(unit, error)
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.leave()
            end(turn.span, error)

    def calling(self, unit: str, events: Sequence[Event]) -> AbstractContextManager[None]:
        inner = self._metrics.calling(unit, events)
        return inner if unit != self._unit else Calling(self._start(events), inner)
