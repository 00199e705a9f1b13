"""The states of one partition in a query that shares its consumer group. Pure.

A query owns a partition from its claim until it has handed it over or lost it. Spark reads in
micro-batches and commits a batch as a whole, so a partition that another host requests is handed
over only after the batch in flight has ended and its checkpoint is written.

Everything that changes a state is in `TRANSITIONS`; docs/internals/tenancy.md draws it. A pair that
is not in the table keeps the state: a commit that arrives after the partition was lost changes
nothing.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    NOT_OWNED = "not owned"
    OWNED = "owned"  # ours, and no batch in flight reads it
    READING = "reading"  # a batch that reads it is being planned, or is in flight
    DRAINING = "draining"  # to be released when the batch in flight has ended
    RELEASING = "releasing"  # to be released when the checkpoint is written
    RELEASED = "released"
    LOST = "lost"  # the lease expired, another host took it, or its pump failed


class Change(Enum):
    CLAIMED = "claimed"
    BATCH_PLANNED = "batch planned"
    BATCH_ENDED = "batch ended"  # committed, or never run
    STOP_REQUESTED = "stop requested"  # by another host, or because the query ends
    CHECKPOINTED = "checkpointed"  # everything that was read and committed
    OWNERSHIP_LOST = "ownership lost"


OWNED_STATES = (State.OWNED, State.READING, State.DRAINING, State.RELEASING)

TRANSITIONS = {
    (State.NOT_OWNED, Change.CLAIMED): State.OWNED,
    (State.RELEASED, Change.CLAIMED): State.OWNED,
    (State.LOST, Change.CLAIMED): State.OWNED,
    (State.OWNED, Change.BATCH_PLANNED): State.READING,
    (State.OWNED, Change.STOP_REQUESTED): State.RELEASING,
    (State.READING, Change.BATCH_ENDED): State.OWNED,
    (State.READING, Change.STOP_REQUESTED): State.DRAINING,
    (State.DRAINING, Change.BATCH_ENDED): State.RELEASING,
    # Spark replays a batch of an earlier run after another host has requested the partition.
    (State.RELEASING, Change.BATCH_PLANNED): State.DRAINING,
    (State.RELEASING, Change.CHECKPOINTED): State.RELEASED,
    **{(state, Change.OWNERSHIP_LOST): State.LOST for state in OWNED_STATES},
}


def next_state(state: State, change: Change) -> State:
    return TRANSITIONS.get((state, change), state)


def may_plan(state: State) -> bool:
    """Whether a new batch may read the partition."""
    return state in (State.OWNED, State.READING)
