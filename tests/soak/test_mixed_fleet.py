"""Our hosts and official ones in one group: they share, hand over both ways, and come to rest."""

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
QUIET_S = 6.0  # several cycles of either kind in which nothing changes hands

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def fleet(azurite: Azurite, tmp_path: Path) -> Iterator[Fleet]:
    store = AzuriteStore(azurite, f"mixed-{time.monotonic_ns()}")
    asyncio.run(make_container(store))
    with Fleet(tmp_path, store, PARTITIONS) as fleet:
        fleet.start_sender()
        yield fleet


async def make_container(store: AzuriteStore) -> None:
    async with open_store(store.place, **store.options):
        pass


def owners(fleet: Fleet) -> Counter[str]:
    async def ask() -> Counter[str]:
        async with open_client(fleet.hub.connection) as client:
            group = Group(client.namespace, client.hub)
        async with open_store(fleet.store.place) as store:
            rows = (await store.list_ownership(group)).ownerships
        return Counter(row.owner for row in rows if not row.expired(LEASE_S))

    return asyncio.run(ask())


def is_even(fleet: Fleet) -> bool:
    counts = owners(fleet)
    whole = sum(counts.values()) == PARTITIONS and "" not in counts
    return whole and len(counts) == len(fleet.hosts) and spread(counts) <= 1


def spread(counts: Counter[str]) -> int:
    return max(counts.values()) - min(counts.values())


def until_settled(fleet: Fleet, what: str) -> None:
    """Even, and nothing has changed hands for a while, and every partition is being handled."""
    fleet.until_all_move(what)
    fleet.until(lambda: is_quiet(fleet) and is_even(fleet), f"the fleet to settle: {what}")
    fleet.until_all_move(what)


def is_quiet(fleet: Fleet) -> bool:
    changes = [line.at_s for line in fleet.pages.lines if line.word in ("open", "end")]
    return bool(changes) and time.monotonic() - max(changes) > QUIET_S


def is_marked(fleet: Fleet) -> bool:
    """An official host forgets a checkpoint that is under way when it is told to leave."""
    lines = [line for line in fleet.pages.lines if line.host.startswith("sdk")]
    marks = {(line.host, line.partition, line.last) for line in lines if line.word == "mark"}
    over = {(line.host, line.stay) for line in lines if line.word == "end"}
    live = [line for line in lines if line.host in fleet.hosts]
    done = [line for line in live if line.word == "out" and (line.host, line.stay) not in over]
    last = {(line.host, line.partition): line.last for line in done}
    return all((*place, number) in marks for place, number in last.items())


def end(fleet: Fleet) -> Verdict:
    """Everything is handled and checkpointed, everybody leaves: the verdict."""
    fleet.stop_sender()
    ends = asyncio.run(read_ends(fleet.hub.connection))
    fleet.until(lambda: fleet.reached() == ends, "everything to be handled")
    fleet.until(lambda: is_marked(fleet), "official hosts to write their last checkpoints")
    for name in sorted(fleet.hosts):
        fleet.leave(name)
    fleet.pages.turn()
    evidence = asyncio.run(evidence_of(fleet, ends))
    assert list(final_checkpoints(evidence, {})) == []
    return verify_mixed(evidence)


def until_shared(fleet: Fleet, what: str) -> None:
    """Evenly owned, and events that came after that were handled in every partition."""
    fleet.until(lambda: is_even(fleet), f"the fleet to share: {what}")
    fleet.until_all_move(what)


def test_both_kinds_share_and_go_on_from_each_others_checkpoints(fleet: Fleet) -> None:
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
