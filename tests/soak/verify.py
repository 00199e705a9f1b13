"""The checks of a soak: the invariants of a fleet, from the records of its processes. Pure.

Records, the log of the hub and the last checkpoints go in, violations come out.

    records -> terms_of -> one check per invariant -> Verdict
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

A *term* is one call of `serve`: it has a partition until it ends there. The terms of a partition
are ordered by epoch. A term ends *cleanly* if its row was released or handed over and no error was
reported on the way: then no event may be repeated. After a term that was killed, suspended or lost,
events may be repeated from its last checkpoint on.

In a term with concurrency, events of different keys are handled at the same time, in any order.
Those of one key are handled in order, and one at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from tests.soak.records import Record, digest

CLEAN_ENDS = ("shutdown", "hand-off")
# A host that is suspended between its last batch and its release may lose its lease meanwhile.
RELEASE_S_MAX = 1.5


@dataclass(slots=True)
class Batch:
    first: int
    last: int
    in_s: float
    digest: str
    out_s: float | None = None  # None: the process ended while it handled the batch


@dataclass(slots=True)
class Term:
    """One call of `serve` of one host, as far as it was recorded."""

    partition: str
    host: str
    number: int
    opened_s: float
    epoch: int
    handlers: int = 1  # the most calls at once
    batches: list[Batch] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)  # the granted ones
    ended: str = ""  # the reason; "" if its process was killed
    ended_s: float = 0.0
    released_s: float | None = None
    error_reported: bool = False  # after its last batch

    @property
    def clean(self) -> bool:
        return (
            self.ended in CLEAN_ENDS
            and self.released_s is not None
            and self.released_s - self.ended_s < RELEASE_S_MAX
            and not self.error_reported
        )

    @property
    def name(self) -> str:
        return f"partition {self.partition}, {self.host} epoch {self.epoch}"

    @property
    def began_s(self) -> float:
        """When it was handed its first batch."""
        return self.batches[0].in_s

    @property
    def first(self) -> int:
        """The lowest event that it was handed."""
        return min(batch.first for batch in self.batches)

    @property
    def last(self) -> int:
        """The highest event that it was handed."""
        return max(batch.last for batch in self.batches)

    @property
    def last_out_s(self) -> float:
        """When it had handled everything that it was handed; infinite if it never had."""
        return max(_done_s(batch) for batch in self.batches)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known after all processes have stopped."""

    records: Sequence[Record]
    log: Mapping[str, Sequence[bytes]]  # the bodies by partition, from sequence 0 on
    keys: Mapping[str, Sequence[str]]  # the partition keys of the same events
    checkpoints: Mapping[str, int | None]  # the last ones


@dataclass(frozen=True, slots=True)
class Verdict:
    violations: tuple[str, ...]
    events: int
    duplicates: int
    worst_repeat: int  # the most events that one term repeated
    moves: int
    clean_moves: int
    refused: int  # late checkpoints that the store refused
    most_calls: int  # of one term at once

    def __str__(self) -> str:
        return (
            f"{self.events} events, {self.moves} moves ({self.clean_moves} clean), "
            f"{self.duplicates} handled again (at most {self.worst_repeat} at once), "
            f"{self.refused} late checkpoints refused, at most {self.most_calls} calls at once, "
            f"{len(self.violations)} violations"
        )


def verify(evidence: Evidence) -> Verdict:
    """Check every invariant. For a fleet of our hosts only."""
    terms = terms_of(evidence.records)
    checks = (
        *COMMON_CHECKS,
        final_checkpoints,
        epochs_have_one_host,
        fenced_for_good,
        clean_is_clean,
        outages_do_not_raise,
    )
    return evaluate(evidence, terms, checks)


def verify_mixed(evidence: Evidence) -> Verdict:
    """Check the invariants that hold with official clients, which have no epochs."""
    return evaluate(evidence, terms_of(evidence.records), COMMON_CHECKS)


Terms = Mapping[str, Sequence[Term]]
Check = Callable[[Evidence, Terms], Iterable[str]]


def evaluate(evidence: Evidence, terms: Terms, checks: Iterable[Check]) -> Verdict:
    moves = [pair for series in terms.values() for pair in successions(series)]
    handled = {p: [b for term in series for b in term.batches] for p, series in terms.items()}
    counts = [sum(b.last - b.first + 1 for b in series) for series in handled.values()]
    distinct = [len(covered(series)) for series in handled.values()]
    return Verdict(
        violations=tuple(violation for check in checks for violation in check(evidence, terms)),
        events=sum(len(events) for events in evidence.log.values()),
        duplicates=sum(counts) - sum(distinct),
        worst_repeat=max((repeated(*pair) for pair in moves), default=0),
        moves=len(moves),
        clean_moves=sum(before.clean for before, _ in moves),
        refused=sum(
            record.event == "late" and record.note == "refused" for record in evidence.records
        ),
        most_calls=max(map(most_calls, all_terms(terms)), default=0),
    )


# -- from records to terms ------------------------------------------------------------------------


def terms_of(records: Iterable[Record]) -> dict[str, list[Term]]:
    """The terms of every partition, in the order of their epochs."""
    by_key: dict[tuple[str, int], Term] = {}
    for record in records:
        term = by_key.get((record.host, record.term))
        if record.event == "open":
            term = Term(record.partition, record.host, record.term, record.at_s, record.epoch)
            term.handlers = int(record.note) if record.note != "-" else 1
            by_key[record.host, record.term] = term
        elif term is not None and record.partition == term.partition:
            add_record(term, record)
    by_partition: defaultdict[str, list[Term]] = defaultdict(list)
    for term in sorted(by_key.values(), key=lambda term: (term.epoch, term.opened_s)):
        by_partition[term.partition].append(term)
    return dict(by_partition)


def add_record(term: Term, record: Record) -> None:
    term.epoch = max(term.epoch, record.epoch)  # an owner may raise it during its term
    match record.event:
        case "in":
            term.batches.append(Batch(record.first, record.last, record.at_s, record.note))
            term.error_reported = False
        case "out":
            in_hand(term, record).out_s = record.at_s
        case "checkpoint":
            term.checkpoints.append(record.last)
        case "late" if record.note == "granted":
            term.checkpoints.append(record.last)
        case "end":
            term.ended, term.ended_s = record.note, record.at_s
        case "released":
            term.released_s = record.at_s
        case "error" if term.released_s is None:
            term.error_reported = True


def in_hand(term: Term, record: Record) -> Batch:
    """The batch of this record that the term was handed last."""
    return next(batch for batch in reversed(term.batches) if batch.first == record.first)


def successions(terms: Sequence[Term]) -> Iterator[tuple[Term, Term]]:
    """Consecutive terms with batches, of two different hosts."""
    handling = [term for term in terms if term.batches]
    for before, after in pairwise(handling):
        if before.host != after.host:
            yield before, after


def covered(batches: Iterable[Batch]) -> set[int]:
    return {number for b in batches for number in range(b.first, b.last + 1)}


def repeated(before: Term, after: Term) -> int:
    return max(0, before.last + 1 - after.first)


# -- invariants of any fleet ----------------------------------------------------------------------


def acknowledged_are_kept(evidence: Evidence, terms: Terms) -> Iterator[str]:
    """Acknowledged events are in the log of the hub, even after it was killed."""
    kept = {p: {int(body) for body in bodies} for p, bodies in evidence.log.items()}
    for record in evidence.records:
        if record.event == "ack":
            missing = set(range(record.first, record.last + 1)) - kept.get(record.partition, set())
            if missing:
                yield f"partition {record.partition}: acknowledged and gone: {first_few(missing)}"


def everything_is_handled(evidence: Evidence, terms: Terms) -> Iterator[str]:
    for partition, bodies in evidence.log.items():
        done = [b for s in terms.get(partition, ()) for b in s.batches if b.out_s is not None]
        if missing := set(range(len(bodies))) - covered(done):
            yield f"partition {partition}: never handled: {first_few(missing)}"


def handled_is_what_was_sent(evidence: Evidence, terms: Terms) -> Iterator[str]:
    """A sequence number means the same event before and after the hub was killed."""
    for term in all_terms(terms):
        bodies = evidence.log.get(term.partition, ())
        for b in term.batches:
            if digest(bodies[b.first : b.last + 1]) != b.digest:
                yield f"{term.name}: events {b.first} to {b.last} are not those of the log"


def order_is_kept(evidence: Evidence, terms: Terms) -> Iterator[str]:
    """Within a term without concurrency the events are contiguous."""
    for term in all_terms(terms):
        for batch, following in pairwise(term.batches if term.handlers == 1 else ()):
            if following.first != batch.last + 1:
                yield f"{term.name}: event {following.first} came after {batch.last}"


def keys_are_in_order(evidence: Evidence, terms: Terms) -> Iterator[str]:
    """Within a term the events of a key come in order, without a gap, and one at a time."""
    for term in all_terms(terms):
        keys, numbers = evidence.keys.get(term.partition, ()), numbers_of_keys(evidence, term)
        latest: dict[str, Batch] = {}
        for batch in term.batches if term.handlers > 1 else ():
            key = keys[batch.first]
            before = latest.get(key)
            handled = term.first - 1 if before is None else before.last
            if batch.first != following(numbers[key], handled):
                yield f"{term.name}: event {batch.first} of {key} came after {handled}"
            if before is not None and _done_s(before) > batch.in_s:
                yield f"{term.name}: events {before.last} and {batch.first} of {key} at once"
            latest[key] = batch


def numbers_of_keys(evidence: Evidence, term: Term) -> dict[str, list[int]]:
    """The sequence numbers of each key of the partition of a term, in order."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for number, key in enumerate(evidence.keys.get(term.partition, ())):
        numbers[key].append(number)
    return numbers


def following(numbers: Sequence[int], number: int) -> int | None:
    """The first of these numbers that is greater; None if there is none."""
    index = bisect_right(numbers, number)
    return numbers[index] if index < len(numbers) else None


def not_too_many_at_once(evidence: Evidence, terms: Terms) -> Iterator[str]:
    """No more calls of a term run at once than its handlers."""
    for term in all_terms(terms):
        if (most := most_calls(term)) > term.handlers:
            yield f"{term.name}: {most} calls at once, and it has {term.handlers} handlers"


def most_calls(term: Term) -> int:
    """The most calls of a term that ran at once."""
    changes = sorted(change for b in term.batches for change in ((b.in_s, 1), (_done_s(b), -1)))
    return max(accumulate((change for _, change in changes), initial=0))


def nothing_is_passed_by(evidence: Evidence, terms: Terms) -> Iterator[str]:
    """When a term begins, every earlier event was handled: checkpoints are never ahead."""
    for series in terms.values():
        done = sorted((b for s in series for b in s.batches if b.out_s is not None), key=_done_s)
        starts = sorted((s for s in series if s.batches), key=lambda term: term.began_s)
        handled: set[int] = set()
        reached = 0
        for term in starts:
            while done and _done_s(done[0]) <= term.began_s:
                handled |= covered([done.pop(0)])
            while reached in handled:
                reached += 1
            if term.first > reached:
                yield f"{term.name}: began at {term.first}, only {reached} were handled"


def _done_s(batch: Batch) -> float:
    return batch.out_s if batch.out_s is not None else float("inf")


COMMON_CHECKS: tuple[Check, ...] = (
    acknowledged_are_kept,
    everything_is_handled,
    handled_is_what_was_sent,
    order_is_kept,
    keys_are_in_order,
    not_too_many_at_once,
    nothing_is_passed_by,
)


# -- invariants of a fleet of our hosts -----------------------------------------------------------


def final_checkpoints(evidence: Evidence, terms: Terms) -> Iterator[str]:
    """After a clean end the checkpoint is at the last event."""
    for partition, bodies in evidence.log.items():
        stored = evidence.checkpoints.get(partition)
        if bodies and stored != len(bodies) - 1:
            yield f"partition {partition}: the checkpoint is {stored}, the end {len(bodies) - 1}"


def epochs_have_one_host(evidence: Evidence, terms: Terms) -> Iterator[str]:
    """An epoch of a partition belongs to one host."""
    for partition, series in terms.items():
        hosts: defaultdict[int, set[str]] = defaultdict(set)
        for term in series:
            hosts[term.epoch].add(term.host)
        for epoch, names in hosts.items():
            if len(names) > 1:
                yield f"partition {partition}: epoch {epoch} is of {', '.join(sorted(names))}"


def fenced_for_good(evidence: Evidence, terms: Terms) -> Iterator[str]:
    """No event before a granted checkpoint is repeated, and an earlier owner is fenced off.

    The next owner stamps the checkpoint before it reads it. So it begins behind every checkpoint of
    the earlier owners, unless one of them was granted too late. A process can be suspended between
    the lease check and a call of each handler.
    """
    for series in terms.values():
        for number, after in enumerate(series):
            if not after.batches:
                continue
            first, began_s = after.first, after.began_s
            for before in series[:number]:
                if over := [checkpoint for checkpoint in before.checkpoints if checkpoint >= first]:
                    reached = f"{before.name} has checkpointed {max(over)}"
                    yield f"{after.name}: began at {first}; {reached}"
                late = [b for b in before.batches if b.in_s > began_s]
                if before.host != after.host and len(late) > before.handlers:
                    yield f"{before.name}: was handed {len(late)} batches after {after.name} began"


def clean_is_clean(evidence: Evidence, terms: Terms) -> Iterator[str]:
    """In a clean move no event is handled twice, and handlers do not overlap."""
    for series in terms.values():
        for before, after in successions(series):
            if not before.clean:
                continue
            if after.first != before.last + 1:
                ended = f"{before.name} ended cleanly at {before.last}"
                yield f"{after.name}: began at {after.first}; {ended}"
            if before.last_out_s > after.began_s:
                yield f"{after.name}: began while {before.name} was still at work"


def outages_do_not_raise(evidence: Evidence, terms: Terms) -> Iterator[str]:
    """A checkpoint in a handler raises nothing but OwnershipLost, and no event becomes poison."""
    for record in evidence.records:
        if record.event == "raised":
            yield f"partition {record.partition}: {record.host} got {record.note} in its handler"
        if record.event == "error" and record.note == "PoisonEvent":
            yield f"partition {record.partition}: an event became poison at {record.host}"


def all_terms(terms: Terms) -> Iterator[Term]:
    return (term for series in terms.values() for term in series)


def first_few(numbers: Iterable[int]) -> str:
    """The first five numbers, as text."""
    ordered = sorted(numbers)
    more = f" and {len(ordered) - 5} more" if len(ordered) > 5 else ""
    return ", ".join(map(str, ordered[:5])) + more
