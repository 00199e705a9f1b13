"""OwnershipLog: the log lines of claims, releases, hand-overs and losses of one host.

    lease table -> OwnershipLog -> reporter
                   ^^^^^^^^^^^^ this module

A release and a hand-over are logged as INFO. A partition that the host loses is a WARNING with the
cause, and an error for `on_error`.
"""

from __future__ import annotations

from collections.abc import Callable

from pumphouse.errors import LeaseLost
from pumphouse.leases.model import Ownership
from pumphouse.processor.health.loop_gaps import Cause, cause_of_expiry
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.plan import Lease, expiry_reason
from pumphouse.processor.reporting import LOST, RELEASED, Reporter

EXPIRED, DEADLINE, TAKEN = "lease_expired", "handover_deadline", "taken"
RELEASED_ELSEWHERE = "released_elsewhere"
TODO = {
    DEADLINE: "shorten the batches or the handler, or raise lease_s; see slow handlers",
    TAKEN: "use the same lease duration on all hosts of the group, and look for a program that "
    "takes partitions without a request",
    RELEASED_ELSEWHERE: "find the program that released the partition of this host",
}


class OwnershipLog:
    """Writes one line for every change of ownership that concerns this host."""

    def __init__(self, reporter: Reporter, options: ProcessorOptions) -> None:
        self._reporter, self._options = reporter, options
        self.explain: Callable[[Lease, float], Cause] = self._explain
        # Whether hosts of this group balance by taking partitions. A loss is then not a problem.
        self.grabs = False

    def claimed(self, row: Ownership, before: Ownership | None, reason: str) -> None:
        """`before` is the row that was listed before the claim."""
        owner = before.owner if before is not None else ""
        previous = owner if owner not in ("", self._reporter.host) else None
        self._log("partition_claimed", row, reason=reason, previous_owner=previous)

    def returned(self, row: Ownership) -> None:
        """A row in our name that we did not hold was given away."""
        event = "partition_handed_over" if row.owner else "partition_released"
        self._log(event, row, reason="not_held", owner=row.owner or None)

    def given_up(self, lease: Lease, row: Ownership, reason: str, now_s: float) -> None:
        """`row` is what is stored after we gave a partition up. Calls `on_ownership`, too."""
        if not row.owner:
            self._log("partition_released", lease.row, reason=reason)
        elif row.owner == lease.row.successor:
            self._log("partition_handed_over", lease.row, reason=reason, owner=row.owner)
        else:
            self.lost(lease, row, now_s)
            self._reporter.changed(LOST, lease.partition)
            return
        self._reporter.changed(RELEASED, lease.partition)

    def requested(self, lease: Lease, now_s: float) -> None:
        """Another host has requested a partition that this host serves."""
        deadline_s, successor = lease.deadline_s - now_s, lease.row.successor
        self._log("partition_requested", lease.row, successor=successor, deadline_s=deadline_s)

    def lost(self, lease: Lease, row: Ownership | None, now_s: float) -> LeaseLost:
        """`row` has another owner; without a row the lease is no longer valid."""
        reason = loss_reason(lease, row, now_s, self._options.lease_s)
        cause = self.explain(lease, now_s) if reason == EXPIRED else None
        owner, epoch = (row.owner, row.epoch) if row is not None else ("", 0)
        seconds = now_s - lease.since_s
        error = LeaseLost(
            lease.partition,
            lease.row.epoch,
            owner,
            epoch,
            reason=reason,
            seconds=seconds,
            why=loss_text(lease, owner, reason, seconds, cause),
        )
        fields = {"reason": reason, "owner": owner or None, "owner_epoch": epoch or None}
        if reason == TAKEN and self.grabs:
            self._log("partition_lost", lease.row, **fields)
            return error
        self._reporter.recorder.changed_ownership("partition_lost", lease.partition)
        self._reporter.occurred(
            "partition_lost",
            lease.partition,
            error,
            epoch=lease.row.epoch,
            **fields,
            cause=cause.kind if cause is not None else None,
            unrenewed_s=seconds,
            todo=cause.todo if cause is not None else TODO[reason],
        )
        return error

    def _explain(self, lease: Lease, now_s: float) -> Cause:
        """Without a watch, only failures of the store are known."""
        unanswered = lease.renewal_sent_s > lease.since_s
        failures = self._reporter.host_failures
        return cause_of_expiry(lease.since_s, unanswered, None, failures, self._options)

    def _log(self, event: str, row: Ownership, **fields: object) -> None:
        """Log a change of ownership, and count it."""
        self._reporter.recorder.changed_ownership(event, row.partition)
        self._reporter.info(event, partition=row.partition, epoch=row.epoch, **fields)


def loss_reason(lease: Lease, row: Ownership | None, now_s: float, lease_s: float) -> str:
    """Why a lease was lost. If it had expired, that is the reason, even if it was taken since."""
    if now_s >= lease.valid_until(lease_s):
        return expiry_reason(lease, lease_s)
    if row is None:
        return EXPIRED
    return TAKEN if row.owner else RELEASED_ELSEWHERE


def loss_text(lease: Lease, owner: str, reason: str, seconds: float, cause: Cause | None) -> str:
    """Why a partition was lost, as part of a sentence."""
    if cause is not None:
        return f"its lease expired, because it was not renewed for {seconds:.1f} s: {cause.text}"
    if reason == DEADLINE:
        return f"{lease.row.successor} requested it, and its handler did not finish in time"
    if reason == TAKEN:
        return f"{owner} took it, though its lease was renewed {seconds:.1f} s ago"
    return "another program released it"
