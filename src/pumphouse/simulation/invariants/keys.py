"""Checks of fleets with concurrency: order of each key, and how many handlers run (I3, I6, I22).

HandlerChecks -> KeyChecks -> violations
                 ^^^^^^^^^ this module

A host whose lease has ended may still have a handler running: it was suspended, it hangs, or it
takes longer than a hand-over allows. Another host then takes the partition, and its handlers may
run at the same time as that one, which no lease can prevent. Such a host is in `taken_s`; it starts
no handler (I1). An owner that gives its partition up has no handler running (I2).
"""

from __future__ import annotations

import math
from bisect import bisect_right

from pumphouse.errors import PoisonEvent
from pumphouse.leases.model import Ownership
from pumphouse.processor.handling.key_order import ORDERED, Concurrency
from pumphouse.processor.options import SKIP
from pumphouse.simulation.invariants.fleet_state import TOLERANCE_S
from pumphouse.simulation.invariants.records import HandlerCall, KeyedTerm, PartitionRecord
from pumphouse.simulation.invariants.rows import RowChecks
from pumphouse.simulation.loop import HostProcess

DRAIN_SHARE = 0.5  # of `stop_s`: how long events below the last started one are handled at the end


class KeyChecks(RowChecks):
    """Checks the calls of handlers that share a partition."""

    @property
    def _concurrency(self) -> Concurrency:
        concurrency = self.options.key_order
        assert concurrency is not None
        return concurrency

    def sent(self, partition_id: str, first: int, keys: list[str | None]) -> None:
        """Events with these keys were sent. There are no keys without concurrency."""
        by_key = self.partition(partition_id).by_key
        for number, key in enumerate(keys, first):
            by_key.setdefault(key, []).append(number)

    # -- calls ------------------------------------------------------------------------------------

    def keyed_call_started(self, partition: PartitionRecord, call: HandlerCall) -> None:
        term = self._keyed_term(partition, call)
        self._note_active(term, call)
        self._check_repeated(call)
        self._check_buffer(partition, term, call)
        if self._is_ordered(call):
            self._check_key_order(partition, term, call)
        elif handled := [n for n in call.numbers if n < term.expected or n in term.beyond]:
            self._violated(call, f"gets {handled[0]} again, which it has handled")
        self._check_at_once(partition, call)

    def _is_ordered(self, call: HandlerCall) -> bool:
        return call.key is not None or self._concurrency.keyless == ORDERED

    def _violated(self, call: HandlerCall, text: str, name: str = "I22") -> None:
        self.add_violation(
            name, f"{call.process}: partition {call.partition} {text}", call.partition
        )

    def _keyed_term(self, partition: PartitionRecord, call: HandlerCall) -> KeyedTerm:
        term = partition.terms.get(call.process)
        if isinstance(term, KeyedTerm) and term.client is call.client:
            return term
        reached = self.checkpointed(call.partition)
        start = call.first if reached < 0 else min(call.first, reached + 1)
        term = partition.terms[call.process] = KeyedTerm(call.client, start, start=start)
        if call.first > partition.handled + 1:
            text = f"starts at {call.first}; the last event handled is {partition.handled}"
            self._violated(call, text, "I3")
        return term

    def _note_active(self, term: KeyedTerm, call: HandlerCall) -> None:
        if call.client.reason is None:
            term.active_s = self.now_s

    def _check_repeated(self, call: HandlerCall) -> None:
        """No event before the checkpoint comes again."""
        reached, row = self.checkpointed(call.partition), self.rows.get(call.partition)
        # A strategy that grabs does not wait: the previous owner continues until it notices.
        grabbed = self.grabs and row is not None and row.owner != call.process.name
        if call.first <= reached and not grabbed:
            self._violated(call, f"handles {call.first} again; its checkpoint is {reached}", "I6")

    def _check_buffer(self, partition: PartitionRecord, term: KeyedTerm, call: HandlerCall) -> None:
        """No event starts too far above the first unhandled one: what is in memory is bounded."""
        most = self._concurrency.ahead_events_max + self.options.batch_events_max
        self._pass_handled(partition, term, call.process)
        losses = partition.reported_losses.get(call.process, [])
        lost = any(a <= call.last and b >= term.expected for a, b in losses)
        if call.last - term.expected > most and not lost:
            self._violated(call, f"starts {call.last}, but {term.expected} is not handled")

    def _check_key_order(
        self, partition: PartitionRecord, term: KeyedTerm, call: HandlerCall
    ) -> None:
        numbers = partition.by_key[call.key]
        index = term.index(call.key, numbers)
        for number in call.numbers:
            while index < len(numbers) and numbers[index] < number:
                if not self._may_skip(partition, call, numbers[index]):
                    break
                index += 1
            if numbers[index : index + 1] != [number]:
                text = f"gets {number} of key {call.key}; {numbers[index : index + 1]} comes next"
                return self._violated(call, text)
            index += 1
        return None

    def _may_skip(self, partition: PartitionRecord, call: HandlerCall, number: int) -> bool:
        return number in partition.poison or partition.has_reported(call.process, number)

    def _check_at_once(self, partition: PartitionRecord, call: HandlerCall) -> None:
        running = [other for other in partition.running if not other.process.dead]
        most = self._concurrency.handlers
        if sum(other.process is call.process for other in running) >= most:
            self._violated(call, f"has more than {most} handlers at once")
        for other in running:
            if other.key == call.key and self._is_ordered(call) and self._excludes(other, call):
                text = f"has two handlers of key {call.key} at once, the other of {other.process}"
                self._violated(call, text)

    def _excludes(self, other: HandlerCall, call: HandlerCall) -> bool:
        """Whether a call has to wait for another one of the same key."""
        if other.process is call.process:
            return True
        taken_s = self.partition(call.partition).taken_s.get(other.process, -math.inf)
        return not self.grabs and taken_s < other.at_s

    # -- the end of calls -------------------------------------------------------------------------

    def keyed_call_returned(self, term: KeyedTerm, call: HandlerCall) -> None:
        if term.client is not call.client:
            return
        partition = self.partition(call.partition)
        self._note_active(term, call)
        term.beyond.update(number for number in call.numbers if number >= term.expected)
        term.failed.difference_update(call.numbers)
        if self._is_ordered(call):
            term.reached[call.key] = bisect_right(partition.by_key[call.key], call.last)
        self._pass_handled(partition, term, call.process)

    def keyed_call_raised(self, call: HandlerCall) -> None:
        term = self.partition(call.partition).terms.get(call.process)
        if isinstance(term, KeyedTerm) and term.client is call.client:
            self._note_active(term, call)
            term.failed.update(call.numbers)

    def keyed_event_poisoned(self, process: HostProcess, poison: PoisonEvent) -> None:
        """The policy has decided on an event on which the handler always raises."""
        term, number = self.partition(poison.partition).terms.get(process), poison.sequence or 0
        skipped = self.options.poison.then == SKIP
        if isinstance(term, KeyedTerm) and skipped and number >= term.expected:
            term.beyond.add(number)

    def _pass_handled(
        self, partition: PartitionRecord, term: KeyedTerm, process: HostProcess
    ) -> None:
        """Move `expected` over the events that are handled, or were reported as missing."""
        while True:
            if term.expected in term.beyond:
                term.beyond.discard(term.expected)
                term.handled, term.handled_s = term.expected, self.now_s
            elif not partition.has_reported(process, term.expected):
                return
            term.expected += 1

    # -- the end of a term ------------------------------------------------------------------------

    def _check_given_up(
        self,
        partition: PartitionRecord,
        process: HostProcess,
        before: Ownership | None,
        row: Ownership,
    ) -> None:
        super()._check_given_up(partition, process, before, row)
        term = partition.terms.get(process)
        if before is None or not isinstance(term, KeyedTerm) or not term.beyond:
            return
        explained = self._may_leave_out(term)
        if not explained and self._has_lease(partition, process, before.epoch):
            text = f"{process} leaves {row.partition} without handling {term.expected}, though it "
            text += f"handled {max(term.beyond)}"
            self.add_violation("I6", text, row.partition)

    def _may_leave_out(self, term: KeyedTerm) -> bool:
        """Whether the first unhandled event failed, or there was no time left to handle it."""
        drain_s = DRAIN_SHARE * self.options.stop_s
        return term.expected in term.failed or self.now_s - term.active_s > drain_s - TOLERANCE_S
