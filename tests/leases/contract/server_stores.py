"""Checks that hold for the stores of a database server: PostgreSQL and Redis."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol

import pytest

from pumphouse.errors import StoreUnavailable
from pumphouse.leases.model import (
    Checkpoint,
    claim,
    hand_over,
    nominate,
    release,
    renew,
    request_resume,
)
from pumphouse.leases.store import Change, CheckpointStore, SupportsChanges
from tests.leases.contract.calls import checkpoints, first, granted, rows
from tests.leases.contract.stores import GROUP

FORK = """
import asyncio, os
from pumphouse.errors import StoreError
from pumphouse.leases.model import Group
from pumphouse.leases.store_url import open_store

async def main():
    async with open_store({url!r}, **{options!r}) as store:
        if os.fork() == 0:
            try:
                await store.list_ownership(Group("n", "h"))
            except StoreError as error:
                os._exit(7 if "forked" in str(error) else 1)
            finally:
                os._exit(1)
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))

asyncio.run(main())
"""


class NotifyingStore(CheckpointStore, SupportsChanges, Protocol):
    """A store that notifies hosts of changed rows."""


async def check_a_fork_is_refused(url: str, **options: str) -> None:
    code = FORK.format(url=url, options=options)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=dict(os.environ))
    assert await process.wait() == 7


async def check_changes_name_hosts(store: NotifyingStore, other: NotifyingStore) -> None:
    async with aclosing(other.changes(GROUP)) as changes:
        assert await anext(changes) == Change()
        row = await first(store, host="a")
        row = await granted(store, renew(row, 5.0))  # not notified
        row = await granted(store, nominate(row, "b", 30.0))
        assert await anext(changes) == Change("0", frozenset("ab"))
        row = await granted(store, renew(row, 6.0))  # not notified
        row = await granted(store, request_resume(row))
        assert await anext(changes) == Change("0", frozenset("ab"))
        row = await granted(store, hand_over(row, 10.0))
        assert await anext(changes) == Change("0", frozenset("ab"))
        row = await granted(store, claim(row, "0", "c"))
        assert await anext(changes) == Change("0", frozenset("bc"))
        await granted(store, release(row))
        released = await anext(changes)
        assert released == Change("0", None)
        assert released.concerns("anyone")


async def check_a_restart_is_survived(
    store: NotifyingStore, stop: Callable[[], object], start: Callable[[], object]
) -> None:
    async with aclosing(store.changes(GROUP)) as changes:
        assert await anext(changes) == Change()
        row = await first(store)
        await store.update_checkpoint(Checkpoint(GROUP, "0", 5, "50", 1))
        stop()
        with pytest.raises(StoreUnavailable):
            await store.list_ownership(GROUP)
        with pytest.raises(StoreUnavailable, match="notifications ended"):
            await anext(changes)
        start()
        assert (await rows(store))["0"].etag == row.etag
        assert (await checkpoints(store))["0"].sequence == 5
        async with aclosing(store.changes(GROUP)) as again:
            assert await anext(again) == Change()
            await granted(store, nominate(row, "b", 30))
            assert (await anext(again)).partition == "0"
