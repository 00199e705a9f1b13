"""Resuming partitions that poison has stopped: the rows to write, and who still waits. Pure.

listing -> stopped_rows -> model.request_resume -> store.claim_ownership
           ^^^^^^^^^^^^ this module                        -> the owner reads it, and serves
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pumphouse.errors import OptionError
from pumphouse.leases.model import RESUME, STOPPED, Listing, Ownership
from pumphouse.processor.admin.overview import partition_order


def stopped_rows(listing: Listing, lease_s: float, partitions: Sequence[str]) -> list[Ownership]:
    """The rows of the given partitions; without any, those of all stopped partitions.

    OptionError if a given partition is not stopped, or has no live owner that could resume it.
    """
    rows = {row.partition: row for row in listing.ownerships}
    for partition in partitions:
        if problem := why_not(rows.get(partition), lease_s):
            raise OptionError(f"partition {partition} cannot be resumed: {problem}")
    stopped = [row for row in rows.values() if why_not(row, lease_s) == ""]
    chosen = [row for row in stopped if not partitions or row.partition in partitions]
    return sorted(chosen, key=lambda row: partition_order(row.partition))


def why_not(row: Ownership | None, lease_s: float) -> str:
    """Why the owner of this row cannot resume it; "" if it can."""
    if row is None or not row.owner or row.expired(lease_s):
        return "it has no live owner; its next owner starts it by itself"
    return "" if row.state in (STOPPED, RESUME) else f"it is not stopped at {row.owner}"


def waiting(listing: Listing, requested: Iterable[str]) -> list[str]:
    """The partitions whose owners have not read the request yet."""
    rows = {row.partition: row for row in listing.ownerships}
    return [p for p in requested if p in rows and rows[p].state in (STOPPED, RESUME)]
