"""Hosts of Pumphouse that are killed beside the unmodified JavaScript Event Processor Host."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from tests.azurite.fixtures import Storage
from tests.processor.legacy.test_javascript_hosts import (
    HUB,
    LEASES,
    PARTITIONS,
    MixedGroup,
    mixed_group,
    package,
    parsed,
)

__all__ = ["package"]  # a fixture
ROOT = Path(__file__).parents[3]
RANDOM_S = float(os.environ.get("MIXED_SECONDS", "60"))


class KillableHost:
    """A host of ours in a process, and what it has reported."""

    def __init__(self, group: MixedGroup, name: str) -> None:
        self._group, self.name = group, name
        self.checkpoints: dict[str, int] = {}

    async def start(self) -> None:
        storage, leases = self._group.storage, (LEASES.lease_duration_s, LEASES.renew_interval_s)
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.processor.legacy.reporting_host", self.name,
            storage.direct, storage.container, self._group.hub.connection_string(HUB),
            *map(str, leases),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read())
        self._group.theirs[self.name] = self.process  # ended with the group

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            report = parsed(line)
            if "sequence" in report:
                self._group.handled[report["partition"]][report["sequence"]] += 1
            else:
                self.checkpoints[report["partition"]] = report["checkpoint"]

    async def kill(self) -> dict[str, list[int]]:
        """Kill it; how often the events up to its last checkpoints were handled until then."""
        listing = await self._group.store.list_ownership(self._group.group)
        owned = {row.partition for row in listing.ownerships if row.owner == self.name}
        await self._group.kill_theirs(self.name)
        await self._reading
        reached = {p: at for p, at in self.checkpoints.items() if p in owned}
        return {p: self.counts(p, at) for p, at in reached.items()}

    def counts(self, partition: str, until: int) -> list[int]:
        handled = self._group.handled[partition]
        return [handled[sequence] for sequence in range(until + 1)]


async def check(group: MixedGroup, host: KillableHost, before: dict[str, list[int]]) -> None:
    """Nothing is lost, and nothing before a checkpoint of the killed host is handled again."""
    await group.until_handled()
    assert before, "the killed host had checkpoints"
    for partition, counts in before.items():
        assert host.counts(partition, len(counts) - 1) == counts


@pytest.mark.timeout(600)
async def test_a_killed_host_repeats_only_events_after_its_last_checkpoint(
    storage: Storage, tmp_path: Path
) -> None:
    async with mixed_group(storage, tmp_path) as group:
        await group.add_theirs("js-1")
        await group.until_even()
        host = KillableHost(group, "anna")
        await host.start()
        await group.until_even()
        await group.until(lambda owners: len(host.checkpoints) >= PARTITIONS // 2)
        before = await host.kill()
        await group.until_even()
        await KillableHost(group, "bert").start()
        await group.until_even()
        owners = await group.owners()
        assert max(owners.values()) - min(owners.values()) <= 1
        await group.stop_sending()
        await check(group, host, before)


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_a_random_minute_beside_javascript_hosts(storage: Storage, tmp_path: Path) -> None:
    """Hosts of both kinds start and are killed; in the end four share the partitions evenly."""
    rng, number = Random(7), 0
    async with mixed_group(storage, tmp_path) as group:

        async def start_theirs(name: str) -> None:
            await group.add_theirs(f"js-{name}")

        async def start_ours(name: str) -> None:
            await KillableHost(group, f"host-{name}").start()

        async def kill(name: str) -> None:
            if len(group.theirs) > 2:
                await group.kill_theirs(rng.choice(sorted(group.theirs)))

        steps: list[Callable[[str], Awaitable[None]]] = [start_theirs, start_ours, kill]
        for start in (start_theirs, start_ours):
            await start("first")
        await group.until_even()
        ends_s = asyncio.get_running_loop().time() + RANDOM_S
        while asyncio.get_running_loop().time() < ends_s:
            number += 1
            await (kill if len(group.theirs) >= 5 else rng.choice(steps))(str(number))
            await asyncio.sleep(rng.uniform(1, 8))
        while len(group.theirs) > 4:
            await kill("")
        while len(group.theirs) < 4:
            number += 1
            await start_ours(str(number))
        await group.until_even()
        owners = await group.owners()
        assert max(owners.values()) - min(owners.values()) <= 1
        await group.stop_sending()
        await group.until_handled()
        for epochs in group.epochs.values():
            assert epochs == sorted(epochs)
