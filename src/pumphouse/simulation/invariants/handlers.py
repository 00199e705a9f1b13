"""Checks of handler calls: order, gaps, duplicates, stuck handlers (I0, I2-I4, I6, I11, I18).

handlers, hosts -> HandlerChecks -> violations
                   ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pumphouse.errors import EventsExpired, HandlerStuck, PoisonEvent
from pumphouse.events import Event
from pumphouse.processor.options import STOP, ProcessorOptions
from pumphouse.simulation.history import History
from pumphouse.simulation.invariants.keys import KeyChecks
from pumphouse.simulation.invariants.records import (
    HandlerCall,
    KeyedTerm,
    PartitionRecord,
    TermRecord,
)
from pumphouse.simulation.loop import WALL_S, HostProcess

StuckBatch = tuple[HostProcess, Any, object]  # the process, the client and the batch


class HandlerChecks(KeyChecks):
    """Checks the batches that handlers are called with, and what hosts report."""

    def __init__(self, history: History, options: ProcessorOptions, *, grabs: bool) -> None:
        super().__init__(history, options, grabs=grabs)
        self._reported_stuck: set[StuckBatch] = set()  # batches

    def handler_started(
        self, process: HostProcess, client: Any, epoch: int, batch: Sequence[Event]
    ) -> HandlerCall:
        """A handler is called. `client` is the partition client; a new one may start over."""
        partition = self.partition(client.id)
        numbers = [event.sequence if event.sequence is not None else -1 for event in batch]
        frozen_s, sent_ms = self.frozen_s.get(process, 0.0), batch[0].enqueued_ms
        sent_s = None if sent_ms is None else sent_ms / 1000 - WALL_S
        call = HandlerCall(
            process, client, client.id, numbers[0], numbers[-1], self.now_s, frozen_s, sent_s
        )
        self.record("handle", f"{process} {client.id} {call.first}-{call.last} epoch {epoch}")
        self.check_owner(process, client.id, epoch)
        if self.options.key_order is None:
            self._check_order(partition, call, numbers)
            self._check_alone(partition, call)
        else:
            call.numbers, call.key = tuple(numbers), batch[0].partition_key
            call.batch = (current := client.handlers.current, current.batches)
            self.keyed_call_started(partition, call)
        partition.running.append(call)
        self.figures.batches += 1
        return call

    def _check_order(
        self, partition: PartitionRecord, call: HandlerCall, numbers: list[int]
    ) -> None:
        name, term = call.partition, partition.terms.get(call.process)
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            return self.add_violation("I4", f"{call.process} got {numbers} of {name}", name)
        if term is None or term.client is not call.client:
            term = partition.terms[call.process] = TermRecord(call.client, call.first)
            self._check_first_call(partition, call)
            if (reached := self.checkpointed(name)) >= 0:
                self._check_reported(partition, call, reached + 1)
        self._check_reported(partition, call, term.expected)
        term.expected = max(term.expected, min(call.first, partition.first_retained))
        if term.expected < call.first:
            term.expected = min(call.first, partition.next_expected(term))
        if call.first != term.expected:
            invariant = "I3" if call.first > term.expected else "I4"
            text = f"{call.process} got {call.first} of {name}; {term.expected} comes next"
            self.add_violation(invariant, text, name)
        return None

    def _check_first_call(self, partition: PartitionRecord, call: HandlerCall) -> None:
        """The first batch of a term starts at the checkpoint, without a gap."""
        name, reached = call.partition, self.checkpointed(call.partition)
        row = self.rows.get(name)
        # A strategy that grabs does not wait: the previous owner continues until it notices.
        grabbed = self.grabs and row is not None and row.owner != call.process.name
        if call.first <= reached and not grabbed:
            text = f"{call.process} handles {call.first} of {name} again; checkpoint {reached}"
            self.add_violation("I6", text, name)
        if call.first > partition.handled + 1:
            last = f"the last event handled is {partition.handled}"
            text = f"{call.process} starts {name} at {call.first}; {last}"
            self.add_violation("I3", text, name)

    def _check_reported(self, partition: PartitionRecord, call: HandlerCall, first: int) -> None:
        """The host must have reported the events that retention removed before this call."""
        end = min(call.first, partition.first_retained)
        missing = partition.first_unreported(call.process, first, end)
        if missing is not None:
            text = f"{call.process} gets {call.first} of {call.partition}; {missing} has expired"
            self.add_violation("I18", text, call.partition)

    def _check_alone(self, partition: PartitionRecord, call: HandlerCall) -> None:
        for other in partition.running:
            if other.process is call.process:
                text = f"{call.process} is called twice at once for {call.partition}"
                self.add_violation("I2", text, call.partition)

    def handler_returned(self, call: HandlerCall) -> None:
        if not self._ended(call):
            return
        partition, figures = self.partition(call.partition), self.figures
        term = partition.terms.get(call.process)
        if isinstance(term, KeyedTerm):
            self.keyed_call_returned(term, call)
        elif term is not None and term.client is call.client:
            term.expected, term.handled = call.last + 1, max(term.handled, call.last)
            term.handled_s = self.now_s
        if call.sent_s is not None and call.first > partition.handled:
            figures.worst_gap_s = max(figures.worst_gap_s, self.now_s - call.sent_s)
        partition.user_raised_s = None
        if call.last > partition.last_handled:
            partition.last_handled = call.last
            if partition.uncheckpointed_s is None:
                partition.uncheckpointed_s = self.now_s
        for first, last in ranges_of(call):
            figures.handled += last - first + 1
            figures.duplicates += partition.mark_handled(first, last)
        self.record("handled", f"{call.process} {call.partition} {call.first}-{call.last}")

    def handler_raised(self, call: HandlerCall, error: str) -> None:
        """The handler has raised, or was cancelled."""
        if self._ended(call):
            self.keyed_call_raised(call)
            batch = f"{call.partition} {call.first}-{call.last}"
            self.record("raised", f"{call.process} {batch} {error}")

    def user_handler_raised(self, call: HandlerCall, error: str, *, skipped: bool) -> None:
        """The user's own handler has raised: events it cannot handle are not a violation."""
        if call.process.dead:
            return
        if self.handler_failed is None:
            single = call.first == call.last
            events = f"event {call.first}" if single else f"events {call.first}-{call.last}"
            self.handler_failed = f"{error} ({events} of partition {call.partition})"
        self.partition(call.partition).user_raised_s = self.now_s
        if skipped:
            self.poisoned(call.partition, call.first)

    def is_held_up(self, partition: str) -> bool:
        """Whether the user's own handler, which raises at every try, delays the partition."""
        raised_s, options = self.partition(partition).user_raised_s, self.options
        if raised_s is None:
            return False
        retried_s = options.backoff_most_s + options.lease_s
        return options.poison.then == STOP or self.now_s - raised_s <= retried_s

    def _ended(self, call: HandlerCall) -> bool:
        """Remove a running call. False if its process is dead: the call does not count."""
        self.partition(call.partition).running.remove(call)
        if not call.process.dead:
            self._check_stuck(call)
        return not call.process.dead

    def _check_stuck(self, call: HandlerCall) -> None:
        limit_s, options = self.options.handler_timeout_s, self.options
        if limit_s is None:
            return
        frozen_s = self.frozen_s.get(call.process, 0.0) - call.frozen_s
        took_s = self.now_s - call.at_s - frozen_s
        batch = (call.process, call.client, call.batch or call.client.batches_handed_out)
        # The host's watch checks four times per renewal; a write before a check may delay it.
        check_s = min(options.renew_s, limit_s) / 4 + options.store_s
        # One report per batch is enough, however often its parts are retried and hang again.
        if took_s > limit_s + check_s + 1.0 and batch not in self._reported_stuck:
            text = f"{call.process} handled {call.partition} for {took_s:.1f} s without a report"
            self.add_violation("I11", text, call.partition)

    def _stuck_batches(
        self, process: HostProcess, partition: str, stuck: HandlerStuck
    ) -> Iterator[StuckBatch]:
        """The batches that this report is about, also if their term has ended meanwhile."""
        record = self.partition(partition)
        if (term := record.terms.get(process)) is not None:
            yield process, term.client, term.client.batches_handed_out
        for call in (call for call in record.running if call.process is process):
            if call.batch is None:
                yield process, call.client, call.client.batches_handed_out
            elif call.last == stuck.sequence:
                yield process, call.client, call.batch

    # -- hosts -------------------------------------------------------------------------------------

    def reported(self, process: HostProcess, partition: str | None, error: Exception) -> None:
        """A host reported an error to its error handler."""
        kind = type(error).__name__
        self.figures.reports[kind] += 1
        self.record("report", f"{process} {partition or '-'} {kind}")
        if isinstance(error, HandlerStuck) and partition is not None:
            self.figures.stuck_reports += 1
            self._reported_stuck.update(self._stuck_batches(process, partition, error))
        if isinstance(error, PoisonEvent):
            self._check_poison(process, error)
            self.keyed_event_poisoned(process, error)
        if isinstance(error, EventsExpired) and error.last is not None:
            losses = self.partition(error.partition).reported_losses
            losses.setdefault(process, []).append((error.first, error.last))
        # An ExceptionGroup that is reported for a partition was raised by the partition's handler.
        if isinstance(error, ExceptionGroup) and partition is None:
            self.add_violation("I0", f"{process} failed: {error!r} {error.exceptions!r}")

    def _check_poison(self, process: HostProcess, error: PoisonEvent) -> None:
        """Only an event on which its handler raises may become poison."""
        record = self.partition(error.partition)
        if self.handler_failed is None and error.sequence not in record.poison | record.broken:
            text = f"{process} calls event {error.sequence} of {error.partition} poison"
            self.add_violation("I16", text, error.partition)

    def checkpoint_raised(self, process: HostProcess, partition: str, error: Exception) -> None:
        """A checkpoint of the user's code has raised, though the partition is not lost."""
        if not process.dead:
            text = f"a handler of {process} got {type(error).__name__} from its checkpoint"
            self.add_violation("I16", text, partition)

    def loop_left(self, process: HostProcess, partition: str) -> None:
        """The loop of the user over this partition ends with an exception."""
        self.figures.left_early += 1
        if (term := self.partition(partition).terms.get(process)) is not None:
            term.left = True

    def broken(self, partition: str, sequence: int) -> None:
        """An event on which the handler raises, until the handler is repaired."""
        self.partition(partition).broken.add(sequence)

    def poisoned(self, partition: str, sequence: int) -> None:
        """An event that no handler can handle: it is skipped, and counts as handled."""
        record = self.partition(partition)
        record.poison.add(sequence)
        record.mark_handled(sequence, sequence)

    def expired(self, partition: str, first: int) -> int:
        """Retention removed everything before this event; returns how many were not handled."""
        record = self.partition(partition)
        record.first_retained = first
        lost = first - max(0, record.handled + 1)
        lost -= sum(number < first for number in record.handled_beyond)
        record.mark_handled(record.handled + 1, first - 1)
        self.figures.expired += max(0, lost)
        return max(0, lost)

    def process_died(self, process: HostProcess) -> None:
        """Forget the terms and leases of this process."""
        for partition in self.partitions.values():
            partition.terms.pop(process, None)
            partition.reported_losses.pop(process, None)
            partition.lease_sent_s.pop(process, None)
            partition.lease_epoch.pop(process, None)


def ranges_of(call: HandlerCall) -> Iterable[tuple[int, int]]:
    """The first and last events of its contiguous parts: one, or with concurrency each event."""
    return [(n, n) for n in call.numbers] or [(call.first, call.last)]
