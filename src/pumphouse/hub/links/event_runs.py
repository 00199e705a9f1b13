"""Runs of single events: many small deliveries of a producer become one append per partition.

A producer that sends events one by one, without waiting for each outcome, fills a read of the
socket with deliveries. Numbering and storing each of them alone would cost several times as much.

    RunReceived -> parse_run -> share_out -> one batch per partition -> RunOutcome -> dispositions
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pumphouse.amqp.events import RunReceived
from pumphouse.errors import AmqpError
from pumphouse.hub.annotations import EventGroup, bodies_with
from pumphouse.hub.namespace import Partition


@dataclass(slots=True)
class Share:
    """The events of a run that one partition gets."""

    groups: list[EventGroup] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)  # of the deliveries
    size: int = 0  # bytes of the deliveries


Shares = dict[Partition, Share]


def share_of_all(run: RunReceived, groups: list[EventGroup]) -> Share:
    """All events of a run."""
    ids = [*range(run.first_id, run.first_id + len(run.payloads))]
    return Share(groups, ids, run.held_bytes)


def share_out(
    run: RunReceived, groups: list[EventGroup], choose: Callable[[str | None], Partition]
) -> Shares:
    """The events of a run by partition: by key or in turn, as if each had arrived alone."""
    shares: Shares = {}
    deliveries = enumerate(run.payloads, run.first_id)
    for prefix, bodies in groups:
        for body, (number, payload) in zip(bodies, deliveries, strict=False):
            partition = choose(prefix.key)
            share = shares.get(partition)
            if share is None:
                share = shares[partition] = Share()
            bodies_with(prefix, share.groups).append(body)
            share.ids.append(number)
            share.size += len(payload)
    return shares


class Settler(Protocol):
    """A producer link that sends the outcomes of a run."""

    def finish_run(
        self, first_id: int, count: int, settled: bool, failures: dict[int, AmqpError]
    ) -> None: ...


class RunOutcome:
    """Collects the outcomes of the shares of a run. It does not keep the events."""

    def __init__(self, producer: Settler, run: RunReceived, shares: int) -> None:
        self.producer = producer
        self.first_id, self.count, self.settled = run.first_id, len(run.payloads), run.settled
        self.missing = shares
        self.failures: dict[int, AmqpError] = {}  # by delivery id

    def add(self, ids: list[int], failure: AmqpError | None) -> None:
        """The outcome of one share; all are sent when the last is known."""
        if failure is not None:
            self.failures.update(dict.fromkeys(ids, failure))
        self.missing -= 1
        if not self.missing:
            self.producer.finish_run(self.first_id, self.count, self.settled, self.failures)
