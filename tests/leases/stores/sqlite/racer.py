"""A process that races for a lease file: `racer.py FILE NAME TURNS`.

Each turn it takes the row of partition 0 over (one epoch more) and counts the checkpoint of
partition 0 up by one, each until it is granted. Every grant is printed at once, one per line, so
that the test knows them after it has killed this process.
"""

from __future__ import annotations

import asyncio
import sys

from pumphouse.leases.model import Checkpoint, Granted, Group, advance, claim
from pumphouse.leases.stores.sqlite.store import SqliteStore

GROUP = Group("house", "sensors", "$Default")


async def take(store: SqliteStore, name: str) -> int:
    while True:
        rows = {row.partition: row for row in (await store.list_ownership(GROUP)).ownerships}
        (outcome,) = await store.claim_ownership(GROUP, [claim(rows.get("0"), "0", name)])
        if isinstance(outcome, Granted):
            return outcome.row.epoch


async def count(store: SqliteStore) -> int:
    while True:
        marks = await store.list_checkpoints(GROUP)
        mark = marks[0] if marks else Checkpoint(GROUP, "0", 0, "0")
        assert mark.sequence is not None
        outcome = await store.update_checkpoint(advance(mark, mark.sequence + 1, None))
        if isinstance(outcome, Granted):
            return mark.sequence + 1


def report(kind: str, number: int) -> None:
    sys.stdout.write(f"{kind} {number}\n")
    sys.stdout.flush()


async def race(path: str, name: str, turns: int) -> None:
    async with SqliteStore(path, deadline_s=60) as store:
        report("ready", 0)
        sys.stdin.readline()
        for _ in range(turns):
            report("epoch", await take(store, name))
            report("count", await count(store))
            await store.beat(GROUP, name)


if __name__ == "__main__":
    asyncio.run(race(sys.argv[1], sys.argv[2], int(sys.argv[3])))
