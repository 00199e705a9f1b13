"""Processors with leases in Redis: immediate hand-overs; a failover repeats events, skips none."""

from __future__ import annotations

import uuid

from pumphouse.leases.stores.redis.scripts import Keys
from pumphouse.leases.stores.redis.store import RedisStore
from pumphouse.processor.options import ProcessorOptions
from tests.processor.stores.notified_moves import check_moves_do_not_wait_for_an_interval
from tests.processor.support.fleet import Fleet
from tests.redis.server import RedisServer


async def test_partitions_move_without_waiting_for_an_interval(redis: RedisServer) -> None:
    store = RedisStore(redis.url(), prefix=f"t_{uuid.uuid4().hex}")
    await check_moves_do_not_wait_for_an_interval(store)


async def test_a_store_that_goes_back_repeats_events_and_skips_none(redis: RedisServer) -> None:
    """As after a failover to a replica that had not received the last writes."""
    prefix = f"t_{uuid.uuid4().hex}"
    store = RedisStore(redis.url(), prefix=prefix)
    options = ProcessorOptions(interval_s=0.2, renew_s=0.5, lease_s=20)
    async with Fleet(4, store=store, options=options) as fleet:
        await fleet.add("anna")
        await fleet.send(3)
        await fleet.until_handled()
        keys = Keys(prefix, fleet.group)
        before = {key: redis.administer("HGETALL", key) for key in (keys.rows, keys.checkpoints)}
        await fleet.add("bert")
        await fleet.until_even()
        await fleet.send(3)
        await fleet.until_handled()
        for key, values in before.items():
            redis.administer("DEL", key)
            for field, value in values.items():
                redis.administer("HSET", key, field, value)
        await fleet.send(3)
        await fleet.until_handled()
        await fleet.until_even()
        await fleet.send(3)
        await fleet.until_handled()
