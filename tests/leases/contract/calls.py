"""Calls that most tests of the contract make."""

from __future__ import annotations

from pumphouse.leases.model import Checkpoint, Granted, Group, Member, Ownership, Refused, claim
from pumphouse.leases.store import CheckpointOutcome, CheckpointStore, ClaimOutcome
from tests.leases.contract.stores import GROUP


async def write(store: CheckpointStore, row: Ownership, group: Group = GROUP) -> ClaimOutcome:
    (outcome,) = await store.claim_ownership(group, [row])
    return outcome


async def granted(store: CheckpointStore, row: Ownership, group: Group = GROUP) -> Ownership:
    return row_of(await write(store, row, group))


def row_of(outcome: ClaimOutcome) -> Ownership:
    assert isinstance(outcome, Granted), outcome
    return outcome.row


def checkpoint_of(outcome: CheckpointOutcome) -> Checkpoint:
    assert isinstance(outcome, Granted), outcome
    return outcome.row


async def refused(store: CheckpointStore, row: Ownership, group: Group = GROUP) -> None:
    outcome = await write(store, row, group)
    assert isinstance(outcome, Refused), outcome
    assert outcome.requested == row


async def first(store: CheckpointStore, partition: str = "0", host: str = "a") -> Ownership:
    """The first row of a partition, claimed by a host."""
    return await granted(store, claim(None, partition, host))


async def rows(store: CheckpointStore, group: Group = GROUP) -> dict[str, Ownership]:
    listed = (await store.list_ownership(group)).ownerships
    by_partition = {row.partition: row for row in listed}
    assert len(by_partition) == len(listed)
    return by_partition


async def members(store: CheckpointStore, group: Group = GROUP) -> dict[str, Member]:
    listed = (await store.list_ownership(group)).members
    by_name = {member.name: member for member in listed}
    assert len(by_name) == len(listed)
    return by_name


async def checkpoints(store: CheckpointStore, group: Group = GROUP) -> dict[str, Checkpoint]:
    listed = await store.list_checkpoints(group)
    by_partition = {checkpoint.partition: checkpoint for checkpoint in listed}
    assert len(by_partition) == len(listed)
    return by_partition


def kept(row: Ownership) -> tuple[object, ...]:
    """The fields of a row that change only by a write."""
    return row.partition, row.owner, row.epoch, row.etag, row.successor, row.rate, row.pinned
