"""Lists at once when the store notifies of a row that concerns this host.

Without notifications a request is noticed at the next renewal, and a hand-over at the next listing.

    store.changes -> following_changes -> LeaseTable.listing_needed -> the next cycle
                     ^^^^^^^^^^^^^^^^^ this module

A notification only starts the next cycle earlier. While notifications fail, hosts list at their
interval.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress

from pumphouse.errors import StoreError
from pumphouse.leases.store import SupportsChanges
from pumphouse.processor.term import Host

# Changes within this time cause one cycle: a host that leaves releases many partitions.
COALESCE_S = 0.02
RETRY_FIRST_S = 0.5
EVENT = "changes_failed"


@asynccontextmanager
async def following_changes(host: Host) -> AsyncGenerator[None, None]:
    """Follow the changes of the group while the block runs, if the store notifies of them."""
    if not isinstance(host.store, SupportsChanges):
        yield
        return
    following = asyncio.create_task(follow(host, host.store), name=f"changes of {host.name}")
    try:
        yield
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def follow(host: Host, store: SupportsChanges) -> None:
    """Ask for a listing after each change that concerns this host, until cancelled."""
    failures, first = 0, True
    while True:
        try:
            async with aclosing(store.changes(host.group)) as changes:
                async for change in changes:
                    host.reporter.recovered(EVENT)
                    failures = 0
                    # The first change only means that notifications have begun.
                    if change.concerns(host.name) and not first:
                        host.leases.listing_needed.set()
                        await host.clock.sleep(COALESCE_S)
                    first = False
        except (StoreError, OSError) as error:
            failures += 1
            host.reporter.failed(EVENT, None, error)
        await host.clock.sleep(
            retry_s(failures, host.options.interval_s) * host.rng.uniform(1, 1.5)
        )


def retry_s(failures: int, interval_s: float) -> float:
    """Seconds before notifications that have failed this many times are requested again."""
    return min(interval_s, RETRY_FIRST_S * 2.0 ** min(failures, 30))
