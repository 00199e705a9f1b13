"""Writes of the official SDKs to a MemoryStore: without epochs, and past its checks."""

from __future__ import annotations

from dataclasses import replace

from pumphouse.leases.model import Checkpoint, Granted, Group, Ownership, Refused
from pumphouse.leases.store import ClaimOutcome
from pumphouse.leases.stores.memory import MemoryStore


def claim_as_sdk(store: MemoryStore, group: Group, row: Ownership) -> ClaimOutcome:
    """Compare and set as the official clients do: every field but the owner is lost."""
    rows = store._rows_of(group)
    stored = store._stored(rows, row.partition)
    if row.etag != ("" if stored is None else stored.etag):
        return Refused(row, stored)
    written = Ownership(row.partition, row.owner, etag=store._new_etag())
    rows.rows[row.partition] = (replace(written), store._clock.monotonic())
    return Granted(written)


def update_checkpoint_as_sdk(store: MemoryStore, checkpoint: Checkpoint) -> None:
    """Overwrite the stored checkpoint, without an epoch, as the official clients do."""
    written = replace(checkpoint, epoch=0, etag=store._new_etag())
    store._rows_of(checkpoint.group).checkpoints[checkpoint.partition] = written
