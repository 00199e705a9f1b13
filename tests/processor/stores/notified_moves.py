"""Hand-overs of hosts whose store notifies them of changed rows."""

from __future__ import annotations

from pumphouse.leases.store import CheckpointStore
from pumphouse.processor.options import ProcessorOptions
from tests.processor.support.fleet import Fleet

# Without notifications an owner would see a request after a minute, and a successor its partition
# after six seconds.
SLOW = ProcessorOptions(interval_s=60, renew_s=60, lease_s=180)
WITHOUT_S = 50.0


async def check_moves_do_not_wait_for_an_interval(store: CheckpointStore) -> None:
    async with Fleet(8, store=store, options=SLOW) as fleet:
        await fleet.add("anna")
        await fleet.send(5)
        await fleet.until_handled()
        started_s = fleet.clock.monotonic()
        await fleet.add("bert")
        await fleet.until_even()
        await fleet.leave("anna")
        await fleet.send(5)
        await fleet.until_handled()
        assert fleet.clock.monotonic() - started_s < WITHOUT_S
        assert fleet.duplicates() == 0
        fleet.check_clean()
