"""Decisions of a host: what a stored row means for a lease, what to write, when to run next.

Every function here is pure: it decides from its arguments.

    listing, census, targets -> next_lease, choose, next_delay -> lease table, cycle, engine
                                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

Times are seconds of the host's own monotonic clock. Two rules keep them safe:

* A lease runs from *before* its granted write was sent, so it ends here no later than by the
  store's clock. Nothing else extends it: some stores report the age of a row in whole seconds, or
  not at all.
* A response is only as fresh as its request. A listing that was requested before one of our writes
  returned proves nothing about that write.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from random import Random

from pumphouse.errors import OptionError
from pumphouse.events import Event, Position
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
from pumphouse.processor.options import CheckpointPolicy, ProcessorOptions

# The delay after the first cycle of a host, which only joins. After it, hosts that started at the
# same time are visible.
JOIN_S = 1.0
RERUN_S = 0.015  # before a cycle that follows at once: other tasks run meanwhile, as in .NET
JITTER = 0.1
WHOLE_S = 1.0  # a store that reports whole seconds may report a deadline this much too late
RENEWALS_MAX = 10  # a renewal has at least store_s / RENEWALS_MAX to finish
RENEW_SLACK = 1.1  # the cycle renews; the watch renews a lease that is late by this factor


# -- leases ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease on one partition of ours: its row as last known, and until when it is valid."""

    row: Ownership
    since_s: float  # the lease runs from here: before its last granted write was sent
    known_s: float  # when `row` arrived; a response requested before that is older
    renewal_sent_s: float  # when a renewal was last sent, with any outcome
    deadline_s: float = math.inf  # a successor waits until then
    doubtful: bool = False  # a write was refused, and the store did not return the current row
    # A write of ours got no response, so it did not extend the lease. Renew the lease soon.
    renewal_due: bool = False

    @property
    def partition(self) -> str:
        return self.row.partition

    def valid_until(self, lease_s: float) -> float:
        """The time from which on nothing may be delivered or checkpointed."""
        return min(self.since_s + lease_s, self.deadline_s - WHOLE_S)


def granted_lease(row: Ownership, sent_s: float, now_s: float) -> Lease:
    """The lease that a granted write gives."""
    return Lease(row, sent_s, now_s, sent_s, _deadline(row, sent_s))


def _deadline(row: Ownership, sent_s: float) -> float:
    # The store read the row after the request was sent: the successor's deadline is not earlier.
    return math.inf if row.deadline_s is None or not row.successor else sent_s + row.deadline_s


def next_lease(lease: Lease, row: Ownership | None, sent_s: float, now_s: float) -> Lease | None:
    """The lease after a request sent at `sent_s` has read its row; None if it is no longer ours."""
    if lease.known_s > sent_s or row is None:
        return lease
    if row.etag == lease.row.etag:
        return replace(lease, doubtful=False)
    if row.owner == lease.row.owner and row.epoch == lease.row.epoch:
        return updated_lease(lease, row, sent_s, now_s)
    # Epochs only rise, so this row is from before our claim. (0: an official SDK wrote it.)
    if 0 < row.epoch < lease.row.epoch:
        return lease
    return None


def updated_lease(lease: Lease, row: Ownership, sent_s: float, now_s: float) -> Lease:
    """Our lease with a row that has changed.

    Another host has requested the partition, or the response to a write of ours was lost.
    """
    if lease.row.successor and not row.successor:
        return lease  # stale: a request is never withdrawn
    return replace(
        lease,
        row=row,
        known_s=now_s,
        deadline_s=min(lease.deadline_s, _deadline(row, sent_s)),
        doubtful=False,
        renewal_due=lease.renewal_due or row.successor == lease.row.successor,
    )


def is_stale(lease: Lease, row: Ownership | None, sent_s: float) -> bool:
    """Whether a listing has our row from before our last write.

    Its etag would make renewals fail, and a few stale listings in a row would cost the lease. A
    doubtful lease takes any row: a refusal has proved that the row we know is not the newest.
    """
    if row is None or lease.doubtful or row.etag == lease.row.etag:
        return False
    ours = row.owner == lease.row.owner and row.epoch == lease.row.epoch
    return ours and sent_s - row.age_s < lease.since_s


def is_expected(row: Ownership, host: str, epochs: Set[int]) -> bool:
    """Whether a row became ours by a claim without a response, or by a hand-over."""
    return row.owner == host and row.epoch in epochs


def merged_lease(new: Lease, old: Lease) -> Lease:
    """The new lease, with the later `since_s` and the earlier deadline of the two."""
    since_s = max(new.since_s, old.since_s)
    return replace(new, since_s=since_s, deadline_s=min(new.deadline_s, old.deadline_s))


def expiry_reason(lease: Lease, lease_s: float) -> str:
    """Why a lease is no longer valid. For the log."""
    expired = lease.since_s + lease_s <= lease.deadline_s - WHOLE_S
    return "lease_expired" if expired else "handover_deadline"


# -- renewing -------------------------------------------------------------------------------------


def due_in_cycle(lease: Lease, now_s: float, options: ProcessorOptions) -> bool:
    """Whether this cycle renews the lease: the next cycle would be too late.

    A renewal that was sent less than half of `renew_s` ago is not repeated.
    """
    age_s = now_s - lease.renewal_sent_s
    late = age_s >= options.renew_s / 2 and age_s + options.interval_s > options.renew_s
    return (late or lease.renewal_due) and not lease.doubtful


def due_on_watch(lease: Lease, now_s: float, options: ProcessorOptions) -> bool:
    """Whether the watch renews the lease: no cycle has renewed it in time."""
    late = now_s - lease.renewal_sent_s >= options.renew_s * RENEW_SLACK
    # The renewal of a doubtful lease would be refused again; a listing has to come first.
    return (late or lease.renewal_due) and not lease.doubtful


def renewal_deadline_s(leases: Iterable[Lease], now_s: float, options: ProcessorOptions) -> float:
    """The deadline of a renewal: half of what is left, so that another one may follow in time."""
    left_s = min(lease.valid_until(options.lease_s) for lease in leases) - now_s
    return min(options.store_s, max(left_s / 2, options.store_s / RENEWALS_MAX))


def renewal_row(lease: Lease, now_s: float, rate: float | None, state: str = "") -> Ownership:
    """The row that renews a lease. It does not move the deadline of a successor."""
    return renew(row_at(lease, now_s), rate, state)


def row_at(lease: Lease, now_s: float) -> Ownership:
    """The row of a lease, with the remaining time of its successor's deadline."""
    remaining_s = None if lease.row.deadline_s is None else lease.deadline_s - now_s
    return replace(lease.row, deadline_s=remaining_s)


def smoothed_rate(before: float | None, events: int, elapsed_s: float) -> float | None:
    """Events per second, smoothed over a few renewals."""
    if elapsed_s <= 0:
        return before
    measured = events / elapsed_s
    return measured if before is None else before + 0.5 * (measured - before)


# -- choosing what to write -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Situation:
    """What a cycle knows when it chooses."""

    census: Census
    listing: Listing
    held: Set[str]  # partitions that are ours
    busy: Set[str]  # partitions whose previous pump on this host has not ended
    targets: tuple[str, ...]  # the partitions that the strategy asks for, in its order
    grabs: bool  # whether the strategy takes held partitions instead of requesting them
    pins: bool = False  # whether the strategy never hands partitions over: their rows are pinned

    @property
    def rows(self) -> dict[str, Ownership]:
        return {row.partition: row for row in self.listing.ownerships}


@dataclass(frozen=True, slots=True)
class Choice:
    """Rows to write."""

    claims: tuple[Ownership, ...] = ()  # ours after the grant
    nominations: tuple[Ownership, ...] = ()  # ours after a hand-over, or after the deadline
    returns: tuple[Ownership, ...] = ()  # rows in our name that we do not hold and cannot keep

    @property
    def requested(self) -> tuple[str, ...]:
        return tuple(row.partition for row in (*self.claims, *self.nominations))


def choose(now: Situation, options: ProcessorOptions, epochs: Mapping[str, int]) -> Choice:
    """The rows to write after a listing. `epochs` are those known from checkpoints."""
    rows, host = now.rows, now.census.me
    kept, returned = _strays(now, options.max_partitions)
    targets = dict.fromkeys((*now.census.due, *now.targets))
    # A partition that goes to its successor, or is beyond our limit, is not claimed again.
    excluded = {*now.held, *now.busy, *kept, *(row.partition for row in returned)}
    chosen = [
        p
        for p in targets
        if p not in excluded and not _is_left_to_sdk(rows.get(p), options, epochs)
    ]
    taken = [p for p in chosen if _is_takable(p, now)]
    return Choice(
        claims=tuple(
            claim(rows.get(p), p, host, epochs.get(p, 0), pinned=now.pins) for p in (*kept, *taken)
        ),
        nominations=tuple(
            nominate(rows[p], host, _grace_s(rows[p], options)) for p in chosen if p not in taken
        ),
        returns=tuple(given_up_row(row, options) for row in returned),
    )


def given_up_row(row: Ownership, options: ProcessorOptions) -> Ownership:
    """The row that gives a partition up: handed over to its successor, or released.

    A successor polls often while it waits, so one renewal interval is enough to confirm.
    """
    return hand_over(row, options.renew_s) if row.successor else release(row)


def _grace_s(row: Ownership, options: ProcessorOptions) -> float:
    """The time an owner gets to finish: the configured one, or the rest of its lease.

    A request writes the row, which resets its age: without this bound a dead owner would keep the
    partition for another lease. A live owner sees the request at its next renewal.
    """
    if options.hand_off_s is not None:
        return options.hand_off_s
    return max(options.renew_s, options.lease_s - row.age_s)


def _is_takable(partition: str, now: Situation) -> bool:
    if now.grabs or partition in now.census.free or partition in now.census.due:
        return True
    # Epoch 0: an official SDK owns the row and does not know of hand-overs. A request would make
    # its next renewal fail; it would leave, and the partition would be idle until the deadline.
    # A legacy host would overwrite the request with its next checkpoint.
    return now.rows[partition].epoch == 0 or now.rows[partition].legacy


def _is_left_to_sdk(
    row: Ownership | None, options: ProcessorOptions, epochs: Mapping[str, int]
) -> bool:
    """Whether an official SDK is about to take the partition. We leave it free for one lease.

    The SDK took the row from one of our hosts, whose reader was still attached. SDK readers have
    epoch 0 and are refused then; the SDK releases the row and retries in its next cycle. If its
    reader had been admitted, the checkpoint would be the SDK's, without an epoch of ours.
    """
    if row is None or row.owner or row.epoch or row.expired(options.lease_s):
        return False
    return epochs.get(row.partition, 0) > 0


def _strays(now: Situation, most: int | None) -> tuple[list[str], list[Ownership]]:
    """Rows in our name that we do not hold: partitions to claim again, and rows to give away.

    They are from an earlier run of this host, or were given up while the store did not respond.
    """
    strays = [row for row in now.listing.ownerships if _is_stray(row, now)]
    capacity = len(strays) if most is None else max(0, most - len(now.held))
    kept = [row.partition for row in strays if not row.successor][:capacity]
    return kept, [row for row in strays if row.partition not in kept]


def _is_stray(row: Ownership, now: Situation) -> bool:
    ours = row.owner == now.census.me and row.partition in now.census.rates
    return ours and row.partition not in now.held and row.partition not in now.busy


def needs_checkpoint_epochs(now: Situation) -> bool:
    """Whether a row that may be claimed has no epoch, so that its checkpoint must be read."""
    rows = now.rows
    return any(p not in rows or rows[p].epoch == 0 for p in (*now.targets, *now.census.due))


def epochs_of(checkpoints: Iterable[Checkpoint]) -> dict[str, int]:
    return {checkpoint.partition: checkpoint.epoch for checkpoint in checkpoints}


def claim_reason(before: Ownership | None, host: str, lease_s: float) -> str:
    """Why a partition can be claimed, from its row before the claim. For the log."""
    if before is None or not before.owner:
        return "free"
    if before.owner == host:
        # owned_before: from an earlier run of this host, or from a claim without a response.
        return "handed_over" if before.unconfirmed else "owned_before"
    if before.overdue:
        return "handover_deadline"
    return "owner_expired" if before.expired(lease_s) else "stolen"


# -- where reading starts, and when a checkpoint is due -------------------------------------------


def start_position(checkpoint: Checkpoint, otherwise: Position) -> Position:
    """The position after the checkpoint, by its offset if it has one, as in all clients.

    `otherwise` applies if the checkpoint has no position.
    """
    if checkpoint.offset is not None:
        return Position("offset", checkpoint.offset)
    if checkpoint.sequence is not None:
        return Position("sequence", str(checkpoint.sequence))
    return otherwise


@dataclass(frozen=True, slots=True)
class Pending:
    """Events that were handled and are not in the checkpoint yet."""

    last: Event
    events: int
    since_s: float


def add_pending(pending: Pending | None, batch: list[Event], now_s: float) -> Pending:
    if pending is None:
        return Pending(batch[-1], len(batch), now_s)
    return Pending(batch[-1], pending.events + len(batch), pending.since_s)


def checkpoint_due_in(policy: CheckpointPolicy, pending: Pending | None, now_s: float) -> float:
    """Seconds until a checkpoint is due: 0 if it is due now, infinity if it never will be."""
    if pending is None:
        return math.inf
    if policy.every_events is not None and pending.events >= policy.every_events:
        return 0.0
    if policy.every_s is None:
        return math.inf
    return max(0.0, pending.since_s + policy.every_s - now_s)


def sequence_of(event: Event) -> int:
    """The sequence number of an event that was read from a hub."""
    if event.sequence is None:
        raise OptionError(
            "cannot checkpoint an event without a sequence number: read it from a hub"
        )
    return event.sequence


# -- pumps ----------------------------------------------------------------------------------------


def pumps_to_start(owned: Set[str], pumping: Set[str]) -> list[str]:
    """The owned partitions without a pump. A pump ends by itself when its term ends."""
    return sorted(owned - pumping)


def backoff(failures: int, options: ProcessorOptions, rng: Random) -> float:
    """Seconds before a pump that failed this many times in a row is started again."""
    delay_s = options.backoff_first_s * 2.0 ** min(failures - 1, 30)
    return min(delay_s, options.backoff_most_s) * (1 - JITTER * rng.random())


# -- the next cycle -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a cycle, as far as the next one depends on it."""

    elapsed_s: float
    joined: bool = True  # False after the first cycle of a host: others may not see it yet
    waiting: bool = False  # a partition was requested, or there may be more to take
    hurries: bool = False  # the strategy is eager, and there may be more to claim


def is_early(last_s: float, now_s: float, options: ProcessorOptions) -> bool:
    """Whether less than an interval has passed since the last claims, at `last_s`.

    Four fifths count as an interval: the jitter shortens it, and a timer may be early.
    """
    return now_s - last_s < options.interval_s * (1 - 2 * JITTER)


def next_delay(outcome: Outcome, options: ProcessorOptions, rng: Random) -> float:
    """Seconds to wait before the next cycle."""
    jitter = 1 - JITTER * rng.random()
    if not outcome.joined:
        return min(JOIN_S, options.interval_s) * jitter
    if outcome.hurries:
        return RERUN_S
    # A partition that was handed over is idle until we list it: list often while waiting.
    pace_s = options.interval_s / 10 if outcome.waiting else options.interval_s
    return max(RERUN_S, pace_s * jitter - outcome.elapsed_s)
