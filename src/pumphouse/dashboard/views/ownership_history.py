"""Who owned what, and what happened in between: claims, hand-offs, steals, expiries, releases.

listing, listing, ... -> changes -> lanes on the page
                         ^^^^^^^ this module

Two looks are compared row by row. What came and went between them is not seen, but the epoch
tells that something did.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pumphouse.leases.model import Listing, Ownership
from pumphouse.processor.admin.overview import partition_order

NEARLY = 0.9
CLAIM, HAND_OFF, STEAL = "claim", "hand-off", "steal"
EXPIRE, RELEASE, RENEWED = "expire", "release", "re-claim"
CHANGE_MEANINGS = {
    CLAIM: "a host took a partition that nobody had",
    HAND_OFF: "the owner finished its batch and gave the partition to the host that asked",
    STEAL: "a host took the partition from an owner that did not give it in time",
    EXPIRE: "the owner was silent for as long as its lease, so nobody owns it now",
    RELEASE: "the owner gave it up, as hosts do when they stop",
    RENEWED: "the same host has it under a higher epoch",
}


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one partition, seen at `at_ms`."""

    at_ms: int
    partition: str
    word: str
    before: str  # "" if nobody had it
    after: str  # "" if nobody has it
    epoch: int

    @property
    def sentence(self) -> str:
        """For the list beside the lanes, and for those who cannot see them."""
        part = f"partition {self.partition}"
        return {
            CLAIM: f"{self.after} claimed {part}",
            HAND_OFF: f"{self.before} handed {part} to {self.after}",
            STEAL: f"{self.after} stole {part} from {self.before}",
            EXPIRE: f"the lease of {self.before} on {part} expired",
            RELEASE: f"{self.before} released {part}",
            RENEWED: f"{self.after} took {part} again",
        }[self.word]


def changes(
    before: Listing, after: Listing, lease_s: float, took_s: float, at_ms: int
) -> tuple[Change, ...]:
    """What happened between two looks that lie `took_s` apart, in the order of partitions."""
    earlier = {row.partition: row for row in before.ownerships}
    rows = sorted(after.ownerships, key=lambda row: partition_order(row.partition))
    return tuple(
        change
        for row in rows
        for change in between(earlier.get(row.partition), row, lease_s, took_s, at_ms)
    )


def between(
    old: Ownership | None, new: Ownership, lease_s: float, took_s: float, at_ms: int
) -> Iterator[Change]:
    had, has = live_owner(old, lease_s), live_owner(new, lease_s)
    if old is not None and had and has not in ("", had) and ran_out(old, new, lease_s, took_s):
        yield Change(at_ms, new.partition, EXPIRE, had, "", old.epoch)
        yield Change(at_ms, new.partition, CLAIM, "", has, new.epoch)
        return
    word = judge(old, new, had, has, took_s)
    if word:
        yield Change(at_ms, new.partition, word, had, has, new.epoch)


def ran_out(old: Ownership, new: Ownership, lease_s: float, took_s: float) -> bool:
    """Whether the old lease had run out when the new owner wrote its row, between the two looks.

    An owner that lives renews several times in a lease, so a little less than a whole one will do:
    two looks are never measured to the moment.
    """
    return old.age_s + took_s - new.age_s >= NEARLY * lease_s


def live_owner(row: Ownership | None, lease_s: float) -> str:
    return "" if row is None or row.expired(lease_s) else row.owner


def judge(old: Ownership | None, new: Ownership, had: str, has: str, took_s: float) -> str:
    """The word for what happened; "" if nothing did."""
    if old is None or not had:
        return CLAIM if has else ""
    if not has:
        # An owner that is still written there did not give it up: it fell silent.
        return EXPIRE if new.owner else RELEASE
    if had == has:
        return RENEWED if new.epoch > old.epoch else ""
    return STEAL if taken(old, new, took_s) else HAND_OFF


def taken(old: Ownership, new: Ownership, took_s: float) -> bool:
    """Whether the new owner helped itself: without asking, or once its patience was used up.

    An official SDK neither asks nor knows epochs. One of ours asks first, so a change of hands
    with no deadline passed is a gift.
    """
    if new.epoch <= old.epoch:
        return True
    return old.deadline_s is not None and old.deadline_s - took_s <= 0
