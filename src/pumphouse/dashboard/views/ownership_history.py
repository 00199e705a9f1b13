"""Changes of ownership between two listings: claim, hand-over, steal, expiry, release.

listing, listing, ... -> changes -> timeline on the page
                         ^^^^^^^ this module

Two listings are compared row by row. A change that was undone between them is visible only in the
epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pumphouse.leases.model import Listing, Ownership
from pumphouse.processor.admin.overview import partition_order

# A lease counts as expired after this share of it, because listings are not taken at exact times.
EXPIRED_SHARE = 0.9
CLAIM, HAND_OFF, STEAL = "claim", "hand-off", "steal"
EXPIRE, RELEASE, RE_CLAIM = "expire", "release", "re-claim"
CHANGE_MEANINGS = {
    CLAIM: "a host claimed a partition without an owner",
    HAND_OFF: "the owner finished its batch and handed the partition to the requesting host",
    STEAL: "a host took the partition because the owner did not hand it over in time",
    EXPIRE: "the owner did not renew its lease; the partition has no owner",
    RELEASE: "the owner released the partition, for instance because it stops",
    RE_CLAIM: "the same host claimed the partition with a higher epoch",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one partition, observed at `at_ms`."""

    at_ms: int
    partition: str
    kind: str
    before: str  # "" without a previous owner
    after: str  # "" without a new owner
    epoch: int

    @property
    def sentence(self) -> str:
        """The change as text, for the list below the timeline."""
        partition = f"partition {self.partition}"
        return {
            CLAIM: f"{self.after} claimed {partition}",
            HAND_OFF: f"{self.before} handed {partition} to {self.after}",
            STEAL: f"{self.after} stole {partition} from {self.before}",
            EXPIRE: f"the lease of {self.before} on {partition} expired",
            RELEASE: f"{self.before} released {partition}",
            RE_CLAIM: f"{self.after} re-claimed {partition}",
        }[self.kind]


def changes(
    before: Listing, after: Listing, lease_s: float, elapsed_s: float, at_ms: int
) -> tuple[Change, ...]:
    """The changes between two listings `elapsed_s` apart, in the order of partitions."""
    earlier = {row.partition: row for row in before.ownerships}
    rows = sorted(after.ownerships, key=lambda row: partition_order(row.partition))
    return tuple(
        change
        for row in rows
        for change in row_changes(earlier.get(row.partition), row, lease_s, elapsed_s, at_ms)
    )


def row_changes(
    old: Ownership | None, new: Ownership, lease_s: float, elapsed_s: float, at_ms: int
) -> Iterator[Change]:
    """The changes of one partition: none, one, or an expiry and a claim."""
    old_owner, new_owner = live_owner(old, lease_s), live_owner(new, lease_s)
    if (
        old is not None
        and old_owner
        and new_owner not in ("", old_owner)
        and had_expired(old, new, lease_s, elapsed_s)
    ):
        yield Change(at_ms, new.partition, EXPIRE, old_owner, "", old.epoch)
        yield Change(at_ms, new.partition, CLAIM, "", new_owner, new.epoch)
        return
    kind = classify(old, new, old_owner, new_owner, elapsed_s)
    if kind:
        yield Change(at_ms, new.partition, kind, old_owner, new_owner, new.epoch)


def had_expired(old: Ownership, new: Ownership, lease_s: float, elapsed_s: float) -> bool:
    """Whether the old lease had expired when the new owner wrote its row."""
    return old.age_s + elapsed_s - new.age_s >= EXPIRED_SHARE * lease_s


def live_owner(row: Ownership | None, lease_s: float) -> str:
    return "" if row is None or row.expired(lease_s) else row.owner


def classify(
    old: Ownership | None, new: Ownership, old_owner: str, new_owner: str, elapsed_s: float
) -> str:
    """The kind of change; "" if there is none."""
    if old is None or not old_owner:
        return CLAIM if new_owner else ""
    if not new_owner:
        # If the row still has an owner, the owner did not release it: its lease expired.
        return EXPIRE if new.owner else RELEASE
    if old_owner == new_owner:
        return RE_CLAIM if new.epoch > old.epoch else ""
    return STEAL if was_stolen(old, new, elapsed_s) else HAND_OFF


def was_stolen(old: Ownership, new: Ownership, elapsed_s: float) -> bool:
    """Whether the new owner sent no request, or took the partition after its request's deadline.

    The official SDKs send no requests and use no epochs. Our hosts send a request first, so a
    change of owner before the deadline is a hand-over.
    """
    if new.epoch <= old.epoch:
        return True
    return old.deadline_s is not None and old.deadline_s - elapsed_s <= 0
