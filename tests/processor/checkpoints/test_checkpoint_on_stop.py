"""Manual checkpoints and clean moves: what was handled is not handled again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from pumphouse.events import Event
from pumphouse.processor.options import FixedPartitionOptions, PoisonPolicy, fixed_engine_options
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.outage_store import FORMS, OutageStore
from tests.processor.support.user_code import APIS, LEASE_S, Errors, HostOptions, host_of
from tests.processor.support.virtual_time import run

Checkpoint = Callable[..., Awaitable[None]]
MOVING = [api for api in APIS if api != "fixed"]  # fixed partitions are never handed over


async def keep_sending(env: HubAndStore, sent: list[int]) -> None:
    """Send to every partition, until cancelled."""
    while True:
        for partition in env.partitions:
            await env.send("x", "y", "z", partition=partition)
            sent.append(3)
        await asyncio.sleep(0.5)


@pytest.mark.parametrize("api", MOVING)
def test_a_hand_over_repeats_nothing_with_manual_checkpoints(api: str) -> None:
    """The handler checkpoints every tenth event; hosts join and leave while events flow."""

    async def scenario() -> None:
        handled: Counter[tuple[str | None, int | None]] = Counter()
        sent: list[int] = []
        errors: Errors = []
        calls = 0

        async def handle(checkpoint: Checkpoint, events: list[Event]) -> None:
            nonlocal calls
            calls += 1
            handled.update((event.partition, event.sequence) for event in events)
            if calls % 10 == 0:
                await checkpoint()

        async with HubAndStore(4) as env:
            sending = asyncio.create_task(keep_sending(env, sent))
            async with host_of(api, env, env.store, handle, errors, "host-a") as first:
                await until(lambda: len(first.owned) == 4)
                for name in ("host-b", "host-c"):
                    async with host_of(api, env, env.store, handle, errors, name) as joined:
                        await until(lambda: len(joined.owned) == 2 and len(first.owned) == 2)
                        await asyncio.sleep(30)
                    await until(lambda: len(first.owned) == 4)
                sending.cancel()
                await until(lambda: len(handled) >= sum(sent))
        assert [events for events, times in handled.items() if times > 1] == []
        assert errors == []

    run(scenario())


@pytest.mark.parametrize("on_stop", [True, False])
@pytest.mark.parametrize("api", APIS)
def test_a_stop_writes_what_was_handled_unless_it_is_switched_off(api: str, on_stop: bool) -> None:
    async def scenario() -> None:
        handled: list[bytes] = []
        errors: Errors = []

        async def handle(checkpoint: Checkpoint, events: list[Event]) -> None:
            handled.extend(event.body for event in events)

        async with HubAndStore(1) as env:
            await env.send("a", "b", "c")
            options = HostOptions(checkpoint_on_stop=on_stop)
            async with host_of(api, env, env.store, handle, errors, options=options):
                await until(lambda: len(handled) == 3)
            checkpoint = await env.checkpoint()
            assert checkpoint is not None, "an owner stamps the checkpoint"
            assert checkpoint.sequence == (2 if on_stop else None)

    run(scenario())


@pytest.mark.parametrize("api", ["class", "functions", "fixed"])
def test_after_poison_the_events_before_it_are_not_repeated(api: str) -> None:
    async def scenario() -> None:
        handled: Counter[bytes] = Counter()
        errors: Errors = []

        async def handle(checkpoint: Checkpoint, events: list[Event]) -> None:
            if any(event.body == b"bad" for event in events):
                raise ValueError("cannot")
            handled.update(event.body for event in events)

        async with HubAndStore(1) as env:
            await env.send("a", "b", "bad", "c")
            options = HostOptions(poison=PoisonPolicy(retries=0))
            async with host_of(api, env, env.store, handle, errors, options=options):
                await env.until_checkpoint(1)
            assert handled == {b"a": 1, b"b": 1}
            checkpoint = await env.checkpoint()
            assert checkpoint is not None
            assert checkpoint.sequence == 1

    run(scenario())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("api", APIS)
def test_a_stop_waits_for_a_store_that_is_away_for_a_moment(api: str, form: str) -> None:
    async def scenario() -> None:
        handled: list[bytes] = []
        errors: Errors = []

        async def handle(checkpoint: Checkpoint, events: list[Event]) -> None:
            handled.extend(event.body for event in events)

        async with HubAndStore(1) as env:
            store = OutageStore(env.store)
            await env.send("a", "b", "c")
            async with host_of(api, env, store, handle, errors):
                await until(lambda: len(handled) == 3)
                away = asyncio.create_task(store.outage(form, LEASE_S / 6))
                await asyncio.sleep(0)
            await away
            checkpoint = await env.checkpoint()
            assert checkpoint is not None
            assert checkpoint.sequence == 2

    run(scenario())


@pytest.mark.parametrize(
    ("should", "on_stop", "expected"),
    [(True, None, True), (False, None, False), (False, True, True), (True, False, False)],
)
def test_a_fixed_processor_follows_should_checkpoint_by_default(
    should: bool, on_stop: bool | None, expected: bool
) -> None:
    """A processor that re-reads everything at its start must not find a checkpoint."""
    fixed = FixedPartitionOptions(should_checkpoint=should, checkpoint_on_stop=on_stop)
    assert fixed_engine_options(fixed, 1).checkpoint_on_stop is expected
