"""Did a fleet keep its promises? Judged from what its processes wrote down, and nothing else.

Pure: lines, the hub's log and the last checkpoints go in, violations come out.

    books -> stays_of -> one check per promise -> Verdict
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

A *stay* is one call of a handler: it has a partition until it ends there. Stays of a partition are
ordered by epoch. One ended *cleanly* if its row was released or handed over and nothing was
reported on the way; then nothing may be repeated. One that was killed, stopped or lost may be
repeated from its last checkpoint on, and from no earlier place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.soak.records import Line, digest

CLEAN_ENDS = ("shutdown", "hand-off")
# Whoever was stopped between its last batch and its release may have lost its lease in between.
LEISURE_S = 1.5
LATE_BATCHES_MAX = 1  # a process can be stopped between being allowed a batch and taking it


@dataclass(slots=True)
class Batch:
    first: int
    last: int
    in_s: float
    digest: str
    out_s: float | None = None  # None: the process ended with it in hand


@dataclass(slots=True)
class Stay:
    """One call of one host's handler, as far as it was written down."""

    partition: str
    host: str
    number: int
    opened_s: float
    epoch: int
    batches: list[Batch] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)  # checkpoints that were granted
    ended: str = ""  # the reason it gave; "" if it had no time to give one
    ended_s: float = 0.0
    released_s: float | None = None
    spoilt: bool = False  # something was reported after its last batch

    @property
    def clean(self) -> bool:
        return (
            self.ended in CLEAN_ENDS
            and self.released_s is not None
            and self.released_s - self.ended_s < LEISURE_S
            and not self.spoilt
        )

    @property
    def name(self) -> str:
        return f"partition {self.partition}, {self.host} epoch {self.epoch}"

    @property
    def began_s(self) -> float:
        """When it was handed its first batch."""
        return self.batches[0].in_s


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known once everything has stopped."""

    lines: Sequence[Line]
    log: Mapping[str, Sequence[bytes]]  # what is in the hub, by partition, from sequence 0 on
    checkpoints: Mapping[str, int | None]  # the last ones


@dataclass(frozen=True, slots=True)
class Verdict:
    violations: tuple[str, ...]
    events: int
    duplicates: int
    worst_repeat: int  # the most events that one stay repeated
    moves: int
    clean_moves: int
    refused: int  # late checkpoints, by the store

    def __str__(self) -> str:
        return (
            f"{self.events} events, {self.moves} moves ({self.clean_moves} clean), "
            f"{self.duplicates} handled again (at most {self.worst_repeat} at once), "
            f"{self.refused} late checkpoints refused, {len(self.violations)} violations"
        )


def verify(evidence: Evidence) -> Verdict:
    """Hold everything against every promise. For a fleet of ours alone."""
    stays = stays_of(evidence.lines)
    checks = (*FOR_ALL, final_checkpoints, epochs_have_one_host, fenced_for_good, clean_is_clean)
    return _judged(evidence, stays, checks)


def verify_mixed(evidence: Evidence) -> Verdict:
    """The promises that hold beside official clients, which have no epochs and fence nobody."""
    return _judged(evidence, stays_of(evidence.lines), FOR_ALL)


Stays = Mapping[str, Sequence[Stay]]
Check = Callable[[Evidence, Stays], Iterable[str]]


def _judged(evidence: Evidence, stays: Stays, checks: Iterable[Check]) -> Verdict:
    moves = [pair for of in stays.values() for pair in successions(of)]
    handled = {p: [b for stay in of for b in stay.batches] for p, of in stays.items()}
    counts = [sum(b.last - b.first + 1 for b in of) for of in handled.values()]
    distinct = [len(covered(of)) for of in handled.values()]
    return Verdict(
        violations=tuple(found for check in checks for found in check(evidence, stays)),
        events=sum(len(events) for events in evidence.log.values()),
        duplicates=sum(counts) - sum(distinct),
        worst_repeat=max((repeated(*pair) for pair in moves), default=0),
        moves=len(moves),
        clean_moves=sum(before.clean for before, _ in moves),
        refused=sum(line.word == "late" and line.note == "refused" for line in evidence.lines),
    )


# -- from lines to stays --------------------------------------------------------------------------


def stays_of(lines: Iterable[Line]) -> dict[str, list[Stay]]:
    """The stays of every partition, in the order of their epochs."""
    found: dict[tuple[str, int], Stay] = {}
    for line in lines:
        stay = found.get((line.host, line.stay))
        if line.word == "open":
            stay = Stay(line.partition, line.host, line.stay, line.at_s, line.epoch)
            found[line.host, line.stay] = stay
        elif stay is not None and line.partition == stay.partition:
            _add(stay, line)
    by_partition: defaultdict[str, list[Stay]] = defaultdict(list)
    for stay in sorted(found.values(), key=lambda stay: (stay.epoch, stay.opened_s)):
        by_partition[stay.partition].append(stay)
    return dict(by_partition)


def _add(stay: Stay, line: Line) -> None:
    stay.epoch = max(stay.epoch, line.epoch)  # a rightful owner may raise it while it stays
    match line.word:
        case "in":
            stay.batches.append(Batch(line.first, line.last, line.at_s, line.note))
            stay.spoilt = False
        case "out":
            stay.batches[-1].out_s = line.at_s
        case "mark":
            stay.marks.append(line.last)
        case "late" if line.note == "granted":
            stay.marks.append(line.last)
        case "end":
            stay.ended, stay.ended_s = line.note, line.at_s
        case "released":
            stay.released_s = line.at_s
        case "error" if stay.released_s is None:
            stay.spoilt = True


def successions(stays: Sequence[Stay]) -> Iterator[tuple[Stay, Stay]]:
    """Each stay in which something was handled, and the one after it; between two hosts."""
    handling = [stay for stay in stays if stay.batches]
    for before, after in pairwise(handling):
        if before.host != after.host:
            yield before, after


def covered(batches: Iterable[Batch]) -> set[int]:
    return {number for b in batches for number in range(b.first, b.last + 1)}


def repeated(before: Stay, after: Stay) -> int:
    return max(0, before.batches[-1].last + 1 - after.batches[0].first)


# -- promises that hold in any fleet --------------------------------------------------------------


def acknowledged_are_kept(evidence: Evidence, stays: Stays) -> Iterator[str]:
    """What the hub has acknowledged is in its log, whatever became of the hub."""
    kept = {p: {int(body) for body in bodies} for p, bodies in evidence.log.items()}
    for line in evidence.lines:
        if line.word == "ack":
            missing = set(range(line.first, line.last + 1)) - kept.get(line.partition, set())
            if missing:
                yield f"partition {line.partition}: acknowledged and gone: {some(missing)}"


def everything_is_handled(evidence: Evidence, stays: Stays) -> Iterator[str]:
    for partition, bodies in evidence.log.items():
        done = [b for s in stays.get(partition, ()) for b in s.batches if b.out_s is not None]
        if missing := set(range(len(bodies))) - covered(done):
            yield f"partition {partition}: never handled: {some(missing)}"


def handled_is_what_was_sent(evidence: Evidence, stays: Stays) -> Iterator[str]:
    """A sequence number means the same event before and after the hub was killed."""
    for stay in flat(stays):
        bodies = evidence.log.get(stay.partition, ())
        for b in stay.batches:
            if digest(bodies[b.first : b.last + 1]) != b.digest:
                yield f"{stay.name}: events {b.first} to {b.last} are not those of the log"


def order_is_kept(evidence: Evidence, stays: Stays) -> Iterator[str]:
    """Within a stay every event comes right after the one before it."""
    for stay in flat(stays):
        for one, next_one in pairwise(stay.batches):
            if next_one.first != one.last + 1:
                yield f"{stay.name}: event {next_one.first} came after {one.last}"


def nothing_is_passed_by(evidence: Evidence, stays: Stays) -> Iterator[str]:
    """Wherever a stay begins, everything before was handled by then: marks never run ahead."""
    for of in stays.values():
        done = sorted((b for s in of for b in s.batches if b.out_s is not None), key=_done_s)
        starts = sorted((s for s in of if s.batches), key=lambda stay: stay.began_s)
        handled: set[int] = set()
        reached = 0
        for stay in starts:
            while done and _done_s(done[0]) <= stay.began_s:
                handled |= covered([done.pop(0)])
            while reached in handled:
                reached += 1
            if stay.batches[0].first > reached:
                yield f"{stay.name}: began at {stay.batches[0].first}, only {reached} were handled"


def _done_s(batch: Batch) -> float:
    return batch.out_s if batch.out_s is not None else float("inf")


FOR_ALL: tuple[Check, ...] = (
    acknowledged_are_kept,
    everything_is_handled,
    handled_is_what_was_sent,
    order_is_kept,
    nothing_is_passed_by,
)


# -- promises of a fleet of ours ------------------------------------------------------------------


def final_checkpoints(evidence: Evidence, stays: Stays) -> Iterator[str]:
    """After a clean end the checkpoint is at the last event."""
    for partition, bodies in evidence.log.items():
        found = evidence.checkpoints.get(partition)
        if bodies and found != len(bodies) - 1:
            yield f"partition {partition}: the checkpoint is {found}, the end {len(bodies) - 1}"


def epochs_have_one_host(evidence: Evidence, stays: Stays) -> Iterator[str]:
    """And they rise: who comes later has a higher one."""
    for partition, of in stays.items():
        hosts: defaultdict[int, set[str]] = defaultdict(set)
        for stay in of:
            hosts[stay.epoch].add(stay.host)
        for epoch, names in hosts.items():
            if len(names) > 1:
                yield f"partition {partition}: epoch {epoch} is of {', '.join(sorted(names))}"


def fenced_for_good(evidence: Evidence, stays: Stays) -> Iterator[str]:
    """Nothing before a granted checkpoint is repeated; after it, no earlier owner gets one in.

    The next owner stamps the checkpoint before it reads it. So wherever it begins, every mark of an
    owner before it lies below: one that was granted too late would not.
    """
    for of in stays.values():
        for number, after in enumerate(of):
            if not after.batches:
                continue
            first, began_s = after.batches[0].first, after.began_s
            for before in of[:number]:
                if over := [mark for mark in before.marks if mark >= first]:
                    yield f"{after.name}: began at {first}; {before.name} has marked {max(over)}"
                late = [b for b in before.batches if b.in_s > began_s]
                if before.host != after.host and len(late) > LATE_BATCHES_MAX:
                    yield f"{before.name}: was handed {len(late)} batches after {after.name} began"


def clean_is_clean(evidence: Evidence, stays: Stays) -> Iterator[str]:
    """On a clean move nothing is handled twice, and two handlers never meet."""
    for of in stays.values():
        for before, after in successions(of):
            if not before.clean:
                continue
            last = before.batches[-1]
            if after.batches[0].first != last.last + 1:
                began = after.batches[0].first
                yield f"{after.name}: began at {began}; {before.name} ended cleanly at {last.last}"
            if last.out_s is None or last.out_s > after.began_s:
                yield f"{after.name}: began while {before.name} was still at work"


def flat(stays: Stays) -> Iterator[Stay]:
    return (stay for of in stays.values() for stay in of)


def some(numbers: Iterable[int]) -> str:
    """The first few of them."""
    ordered = sorted(numbers)
    more = f" and {len(ordered) - 5} more" if len(ordered) > 5 else ""
    return ", ".join(map(str, ordered[:5])) + more
