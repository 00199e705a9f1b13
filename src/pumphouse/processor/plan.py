"""What a host does next, from what it holds and what it has just heard.

Everything here is a function of its arguments: what a row that came back means for what we hold,
until when a lease binds, which rows to write, which pumps to start and stop, how long to wait.

    listing, census, wants -> judge, choose, reconcile, next_delay -> cycle, leases, pumps
                              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

Times are seconds of the host's own monotonic clock. Two rules keep them safe:

* A lease runs from *before* a write that was granted was sent: whatever the store's clock says, it
  has begun counting later than we have. Nothing else makes it longer: how old a row is, a store may
  tell in whole seconds only, or not at all.
* News is as old as its question. A listing that was asked for before a write of ours came back says
  nothing about that write.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from random import Random

from pumphouse.events import Position
from pumphouse.leases.census import Census
from pumphouse.leases.model import (
    Checkpoint,
    Listing,
    Ownership,
    claim,
    hand_over,
    nominate,
    release,
    renew,
)
from pumphouse.processor.options import ProcessorOptions

JOIN_S = 1.0  # a newcomer's first cycle only joins; whoever joins with it is seen by then
RERUN_S = 0.015  # "at once" leaves the loop a breath, as the .NET processor does
JITTER = 0.1
WHOLE_S = 1.0  # by so much a store that tells whole seconds may tell a deadline too late
RENEW_SLACK = 1.1  # renewals belong to the cycle; the watch steps in when it is this late


# -- what we hold ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lease:
    """A partition that is ours, by the last word we have of its row."""

    row: Ownership
    since_s: float  # the lease counts from here: before its last granted write was sent
    seen_s: float  # when that word reached us; what was asked for before is older news
    asked_s: float  # when a renewal was last sent, whatever came of it
    deadline_s: float = math.inf  # a successor waits until then
    doubtful: bool = False  # somebody wrote over our row, and the store could not say what
    due: bool = False  # a write of ours was never answered: it counts only once it is renewed

    @property
    def partition(self) -> str:
        return self.row.partition

    def binds_until(self, lease_s: float) -> float:
        """From then on nothing may be delivered or checkpointed."""
        return min(self.since_s + lease_s, self.deadline_s - WHOLE_S)


def hold(row: Ownership, sent_s: float, now_s: float) -> Lease:
    """What a write that was granted gives us."""
    return Lease(row, sent_s, now_s, sent_s, _deadline(row, sent_s))


def _deadline(row: Ownership, sent_s: float) -> float:
    # The store looked at the row after we asked, so the successor cannot be earlier than this.
    return math.inf if row.deadline_s is None or not row.successor else sent_s + row.deadline_s


def judge(lease: Lease, row: Ownership | None, sent_s: float, now_s: float) -> Lease | None:
    """What a lease becomes once its row was seen; None if it is no longer ours."""
    if lease.seen_s > sent_s or row is None:
        return lease
    if row.etag == lease.row.etag:
        return replace(lease, doubtful=False)
    if row.owner == lease.row.owner and row.epoch == lease.row.epoch:
        return changed(lease, row, sent_s, now_s)
    # Epochs only rise, so this row is from before our claim. (0 is none: an official SDK wrote it.)
    if 0 < row.epoch < lease.row.epoch:
        return lease
    return None


def changed(lease: Lease, row: Ownership, sent_s: float, now_s: float) -> Lease:
    """Still ours. Somebody asks for it, or something of ours was written though we never heard."""
    if lease.row.successor and not row.successor:
        return lease  # old news: who has asked is never forgotten
    return replace(
        lease,
        row=row,
        seen_s=now_s,
        deadline_s=min(lease.deadline_s, _deadline(row, sent_s)),
        doubtful=False,
        due=lease.due or row.successor == lease.row.successor,
    )


def is_old_news(lease: Lease, row: Ownership | None, sent_s: float) -> bool:
    """Whether a listing tells our own row as it was before our last write.

    By its etag we would renew in vain, and a few old listings in a row would cost us the lease. One
    that is in doubt is judged all the same: a refusal has told that there is something newer.
    """
    if row is None or lease.doubtful or row.etag == lease.row.etag:
        return False
    ours = row.owner == lease.row.owner and row.epoch == lease.row.epoch
    return ours and sent_s - row.age_s < lease.since_s


def is_ours(row: Ownership, me: str, asked: Set[int]) -> bool:
    """Whether a row that we do not hold is one we asked for: unknown claims, and hand-offs."""
    return row.owner == me and row.epoch in asked


# -- renewing -------------------------------------------------------------------------------------


def due_in_cycle(lease: Lease, now_s: float, options: ProcessorOptions) -> bool:
    """Whether a cycle renews it: it would be late by the next one, and is not quite fresh."""
    age_s = now_s - lease.asked_s
    late = age_s >= options.renew_s / 2 and age_s + options.interval_s > options.renew_s
    return (late or lease.due) and not lease.doubtful


def due_on_watch(lease: Lease, now_s: float, options: ProcessorOptions) -> bool:
    """Whether it must be renewed at once because no cycle did."""
    late = now_s - lease.asked_s >= options.renew_s * RENEW_SLACK
    # One that is in doubt would be refused again; it waits for a listing.
    return (late or lease.due) and not lease.doubtful


def renewed(lease: Lease, now_s: float, rate: float | None) -> Ownership:
    """The row that renews a lease. A successor's deadline is not put off by it."""
    return renew(as_of(lease, now_s), rate)


def as_of(lease: Lease, now_s: float) -> Ownership:
    """Its row, with what is left of a successor's deadline."""
    left_s = None if lease.row.deadline_s is None else lease.deadline_s - now_s
    return replace(lease.row, deadline_s=left_s)


def rate_of(before: float | None, events: int, elapsed_s: float) -> float | None:
    """Events per second, smoothed over a few renewals."""
    if elapsed_s <= 0:
        return before
    now = events / elapsed_s
    return now if before is None else before + 0.5 * (now - before)


# -- choosing what to write -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Situation:
    """What a cycle knows when it chooses."""

    census: Census
    listing: Listing
    held: Set[str]  # partitions that are ours
    busy: Set[str]  # partitions of which an earlier pump of ours has not ended yet
    wants: tuple[str, ...]  # the strategy's wishes, in its order
    grabs: bool  # whether the strategy takes what others hold, rather than ask for it
    pins: bool = False  # whether it gives to nobody what it has once taken

    @property
    def rows(self) -> dict[str, Ownership]:
        return {row.partition: row for row in self.listing.ownerships}


@dataclass(frozen=True, slots=True)
class Choice:
    """Rows to write."""

    claims: tuple[Ownership, ...] = ()  # ours once granted
    nominations: tuple[Ownership, ...] = ()  # ours once the owner, or the deadline, says so
    returns: tuple[Ownership, ...] = ()  # rows in our name that we do not hold and cannot keep

    @property
    def asked(self) -> tuple[str, ...]:
        return tuple(row.partition for row in (*self.claims, *self.nominations))


def choose(now: Situation, options: ProcessorOptions, epochs: Mapping[str, int]) -> Choice:
    """What to write after a listing. `epochs` are those known from checkpoints."""
    rows, me = now.rows, now.census.me
    kept, returned = _strays(now, options.max_partitions)
    wanted = dict.fromkeys((*now.census.due, *now.wants))
    # What goes to its successor, or was ours once and is one too many, is not taken up again.
    left = {*now.held, *now.busy, *kept, *(row.partition for row in returned)}
    chosen = [p for p in wanted if p not in left and not _is_let_in(rows.get(p), options, epochs)]
    taken = [p for p in chosen if _is_takable(p, now)]
    return Choice(
        claims=tuple(
            claim(rows.get(p), p, me, epochs.get(p, 0), pinned=now.pins) for p in (*kept, *taken)
        ),
        nominations=tuple(
            nominate(rows[p], me, _grant_s(rows[p], options)) for p in chosen if p not in taken
        ),
        returns=tuple(given_up(row, options) for row in returned),
    )


def given_up(row: Ownership, options: ProcessorOptions) -> Ownership:
    """The row that follows when we leave: its successor's, or nobody's.

    A successor that lives looks often while it waits; as long as between two renewals is plenty.
    """
    return hand_over(row, options.renew_s) if row.successor else release(row)


def _grant_s(row: Ownership, options: ProcessorOptions) -> float:
    """What an owner is granted to finish: as long as was said, or else what its lease has left.

    Asking for a partition writes its row, which makes it young again. An owner that is dead would
    otherwise keep it for a lease more. One that lives hears of it at its next renewal.
    """
    if options.hand_off_s is not None:
        return options.hand_off_s
    return max(options.renew_s, options.lease_s - row.age_s)


def _is_takable(partition: str, now: Situation) -> bool:
    if now.grabs or partition in now.census.free or partition in now.census.due:
        return True
    # Without an epoch it is a row of an official SDK. Its owner does not know of hand-offs: our
    # asking makes its next renewal fail, it leaves, and the partition would rest to the deadline.
    return now.rows[partition].epoch == 0


def _is_let_in(row: Ownership | None, options: ProcessorOptions, epochs: Mapping[str, int]) -> bool:
    """Whether an official SDK is at the door: what it could not keep is left to it for a lease.

    It had taken the row from one of us, whose reader was still attached. Theirs have the epoch 0
    and are refused at that, upon which they release the row and come back at their next cycle. If
    they had been let in, the checkpoint would be theirs by now, without an epoch of ours.
    """
    if row is None or row.owner or row.epoch or row.expired(options.lease_s):
        return False
    return epochs.get(row.partition, 0) > 0


def _strays(now: Situation, most: int | None) -> tuple[list[str], list[Ownership]]:
    """Rows in our name that we do not hold: those to take up again, and those to give away.

    They are from an earlier life of ours, or were given up while the store was silent.
    """
    strays = [row for row in now.listing.ownerships if _is_stray(row, now)]
    room = len(strays) if most is None else max(0, most - len(now.held))
    kept = [row.partition for row in strays if not row.successor][:room]
    return kept, [row for row in strays if row.partition not in kept]


def _is_stray(row: Ownership, now: Situation) -> bool:
    ours = row.owner == now.census.me and row.partition in now.census.rates
    return ours and row.partition not in now.held and row.partition not in now.busy


def epochs_needed(now: Situation) -> bool:
    """Whether a row that we may claim tells no epoch, so that the checkpoints must be asked."""
    rows = now.rows
    return any(p not in rows or rows[p].epoch == 0 for p in (*now.wants, *now.census.due))


def epochs_of(checkpoints: Iterable[Checkpoint]) -> dict[str, int]:
    return {found.partition: found.epoch for found in checkpoints}


# -- where reading starts -------------------------------------------------------------------------


def start_position(checkpoint: Checkpoint, otherwise: Position) -> Position:
    """Behind the checkpoint if it says where (by its offset first, as all clients do)."""
    if checkpoint.offset is not None:
        return Position("offset", checkpoint.offset)
    if checkpoint.sequence is not None:
        return Position("sequence", str(checkpoint.sequence))
    return otherwise


# -- pumps ----------------------------------------------------------------------------------------


def reconcile(owned: Set[str], pumping: Set[str]) -> tuple[list[str], list[str]]:
    """Which pumps to start and which to stop, so that exactly what we own is pumped."""
    return sorted(owned - pumping), sorted(pumping - owned)


def backoff(failures: int, options: ProcessorOptions, rng: Random) -> float:
    """How long a pump that died so many times in a row waits before it is started again."""
    delay_s = options.backoff_first_s * 2.0 ** min(failures - 1, 30)
    return min(delay_s, options.backoff_most_s) * (1 - JITTER * rng.random())


# -- when to look again ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cycle came to, as far as the next one depends on it."""

    elapsed_s: float
    joined: bool = True  # others can see us; if not, the cycle was a newcomer's first
    waiting: bool = False  # an owner was asked for a partition, or there may be more to take
    hurries: bool = False  # the strategy is eager, and there may be more to claim


def next_delay(came: Outcome, options: ProcessorOptions, rng: Random) -> float:
    """How long to wait for the next cycle."""
    jitter = 1 - JITTER * rng.random()
    if not came.joined:
        return min(JOIN_S, options.interval_s) * jitter
    if came.hurries:
        return RERUN_S
    # A partition that was handed over rests until we look: look often while we wait.
    pace_s = options.interval_s / 10 if came.waiting else options.interval_s
    return max(RERUN_S, pace_s * jitter - came.elapsed_s)
