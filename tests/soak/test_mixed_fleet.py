"""Our hosts and official ones in one group: they share, hand over both ways, and settle."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumphouse.client.factory import open_client
from pumphouse.leases.model import Group
from pumphouse.leases.store_url import open_store
from tests.azurite.server import Azurite
from tests.soak.fleet import AzuriteStore, Fleet
from tests.soak.run import evidence_of, read_ends
from tests.soak.verify import Verdict, final_checkpoints, verify_mixed

PARTITIONS = 6
LEASE_S = 6.0
QUIET_S = 6.0  # several cycles of either kind without a change of ownership

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def fleet(azurite: Azurite, tmp_path: Path) -> Iterator[Fleet]:
    store = AzuriteStore(azurite, f"mixed-{time.monotonic_ns()}")
    asyncio.run(make_container(store))
    with Fleet(tmp_path, store, PARTITIONS) as fleet:
        fleet.start_sender()
        yield fleet


async def make_container(store: AzuriteStore) -> None:
    async with open_store(store.url, **store.options):
        pass


def owners(fleet: Fleet) -> Counter[str]:
    async def ask() -> Counter[str]:
        async with open_client(fleet.hub.connection) as client:
            group = Group(client.namespace, client.hub)
        async with open_store(fleet.store.url) as store:
            rows = (await store.list_ownership(group)).ownerships
        return Counter(row.owner for row in rows if not row.expired(LEASE_S))

    return asyncio.run(ask())


def is_even(fleet: Fleet) -> bool:
    counts = owners(fleet)
    whole = sum(counts.values()) == PARTITIONS and "" not in counts
    return whole and len(counts) == len(fleet.hosts) and spread(counts) <= 1


def spread(counts: Counter[str]) -> int:
    return max(counts.values()) - min(counts.values())


def until_settled(fleet: Fleet, expected: str) -> None:
    """Even, without a change of ownership for a while, and every partition makes progress."""
    fleet.until_all_move(expected)
    fleet.until(lambda: is_quiet(fleet) and is_even(fleet), f"the fleet to settle: {expected}")
    fleet.until_all_move(expected)


def is_quiet(fleet: Fleet) -> bool:
    changes = [record.at_s for record in fleet.reader.records if record.event in ("open", "end")]
    return bool(changes) and time.monotonic() - max(changes) > QUIET_S


def is_marked(fleet: Fleet) -> bool:
    """An official host drops a checkpoint that is under way when it stops."""
    records = [record for record in fleet.reader.records if record.host.startswith("sdk")]
    checkpoints = {
        (record.host, record.partition, record.last)
        for record in records
        if record.event == "checkpoint"
    }
    over = {(record.host, record.term) for record in records if record.event == "end"}
    live = [record for record in records if record.host in fleet.hosts]
    done = [
        record
        for record in live
        if record.event == "out" and (record.host, record.term) not in over
    ]
    last = {(record.host, record.partition): record.last for record in done}
    return all((*key, number) in checkpoints for key, number in last.items())


def end(fleet: Fleet) -> Verdict:
    """Handle and checkpoint everything, stop all hosts, return the verdict."""
    fleet.stop_sender()
    ends = asyncio.run(read_ends(fleet.hub.connection))
    fleet.until(lambda: fleet.reached() == ends, "everything to be handled")
    fleet.until(lambda: is_marked(fleet), "official hosts to write their last checkpoints")
    for name in sorted(fleet.hosts):
        fleet.leave(name)
    fleet.reader.read_new()
    evidence = asyncio.run(evidence_of(fleet, ends))
    assert list(final_checkpoints(evidence, {})) == []
    return verify_mixed(evidence)


def until_shared(fleet: Fleet, expected: str) -> None:
    """Evenly owned, and events that came after that were handled in every partition."""
    fleet.until(lambda: is_even(fleet), f"the fleet to share: {expected}")
    fleet.until_all_move(expected)


def test_both_kinds_share_and_continue_from_each_others_checkpoints(fleet: Fleet) -> None:
    """The short form: partitions go from ours to an official host, and back when it is killed."""
    fleet.join()
    official = fleet.join_official().name
    until_shared(fleet, "an official host beside ours")
    fleet.kill(official)
    until_shared(fleet, "ours after the official host was killed")
    verdict = end(fleet)
    assert verdict.violations == ()
    assert verdict.moves >= PARTITIONS // 2


@pytest.mark.soak
def test_an_official_host_joins_ours_and_either_is_killed(fleet: Fleet) -> None:
    ours = fleet.join().name
    until_settled(fleet, "ours alone")
    official = fleet.join_official().name
    until_settled(fleet, "an official host beside ours")
    fleet.kill(official)
    until_settled(fleet, "ours after the official host was killed")
    fleet.join_official()
    until_settled(fleet, "another official host")
    fleet.kill(ours)
    until_settled(fleet, "the official host after ours was killed")
    fleet.join()
    until_settled(fleet, "both again")
    assert end(fleet).violations == ()


@pytest.mark.soak
def test_ours_join_official_hosts_and_either_leaves(fleet: Fleet) -> None:
    official = [fleet.join_official().name for _ in range(2)]
    until_settled(fleet, "two official hosts")
    ours = fleet.join().name
    until_settled(fleet, "ours beside two official hosts")
    fleet.leave(official[0])
    until_settled(fleet, "ours after an official host has left")
    fleet.leave(ours)
    until_settled(fleet, "the official host after ours has left")
    fleet.join()
    fleet.leave(official[1])
    until_settled(fleet, "ours alone")
    assert end(fleet).violations == ()
