"""Spark applications that share a group: real processes that balance, take over and stand by.

Slow: `make test-spark` runs them (`-m cluster`), `make test` does not. Times in cycles and leases
are measured from when other hosts could see the host, or from when it was killed.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from pumphouse.client.factory import open_client
from pumphouse.errors import PumphouseError
from pumphouse.leases.model import Group
from pumphouse.leases.store_url import open_store
from pumphouse.spark.versions.features import SHARING
from tests.azurite.server import Azurite
from tests.soak.fleet import AzuriteStore, Fleet
from tests.soak.run import read_ends
from tests.spark.support.waiting import until
from tests.spark.tenancy.support.application_group import ApplicationGroup, application_group
from tests.spark.tenancy.support.applications import UNTIL_S, Application
from tests.spark.tenancy.support.copied_events import (
    ContinuousSender,
    Hubs,
    are_all_copied,
    compare,
    read_copies,
    run_hubs,
)
from tests.spark.tenancy.support.lease_view import LeaseView

pytestmark = [
    pytest.mark.needs(SHARING),
    pytest.mark.cluster,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(3000),
]

# A cycle is much longer than a batch, so that a slow machine does not fail the test.
LEASE_S, INTERVAL_S = 30.0, 10.0
OFFICIAL = "official"  # it generates a name


def test_two_applications_share_sixteen_partitions(tmp_path: Path) -> None:
    with (
        application_group(tmp_path, 16, LEASE_S, INTERVAL_S, INTERVAL_S) as group,
        ContinuousSender(group.hubs) as sender,
    ):
        one = group.start("one")
        group.until_shared(one=16)
        group.until_committed(one)
        two = group.start("two")
        group.until_member("two")
        assert group.until_shared(one=8, two=8) <= 2 * INTERVAL_S
        group.until_committed(two)
        two.kill()
        killed_s = time.monotonic()
        in_flight = not_checkpointed(group, two)
        group.until_shared(one=16)
        assert time.monotonic() - killed_s <= LEASE_S + INTERVAL_S
        group.until_committed(one)
        two = group.start("two")
        group.until_member("two")
        assert group.until_shared(one=8, two=8) <= 2 * INTERVAL_S
        group.until_committed(two)
        sender.stop()
        group.until(lambda: are_all_copied(group.hubs, sender.sent), "events are missing")
        comparison = compare(read_copies(group.hubs), sender.sent)
    assert comparison.is_complete_and_ordered, comparison
    # Only the batch in flight of the killed application may be repeated.
    assert comparison.repeated_events <= in_flight, comparison


def not_checkpointed(group: ApplicationGroup, application: Application) -> set[tuple[str, int]]:
    """The events that an application had planned, and not checkpointed, when it was killed."""
    handled = {
        name: -1 if last is None else last for name, last in group.leases.sequences().items()
    }
    return {
        (name, number)
        for name, planned in application.journal().items()
        for number in range(handled.get(name, -1) + 1, planned.last)
    }


def test_fixed_applications_keep_their_partitions_and_a_fifth_stands_by(tmp_path: Path) -> None:
    """With long leases: a restart is slow where five applications share two cores."""
    with (
        application_group(tmp_path, 16, lease_s=120.0, renew_s=10.0, interval_s=1.0) as group,
        ContinuousSender(group.hubs, every_s=1.0) as sender,
    ):
        applications = {name: start_fixed(group, name) for name in "abcd"}
        group.until_shared(a=4, b=4, c=4, d=4)
        kept = {name: group.leases.owned(name) for name in "abcd"}
        start_fixed(group, "standby")
        group.until_member("standby")
        before = group.leases.epochs()
        applications["b"].kill()
        applications["b"] = start_fixed(group, "b")
        until_claimed_again(group, kept["b"], before)
        group.until_progress()
        assert {name: group.leases.owned(name) for name in "abcd"} == kept
        after = group.leases.epochs()
        assert all(after[part] == before[part] for name in "acd" for part in kept[name])
        applications["d"].kill()
        took_s = group.until_shared(a=4, b=4, c=4, standby=4)
        assert took_s <= group.lease_s + 4 + 4 * group.interval_s  # one claim in each cycle
        assert group.leases.owned("standby") == kept["d"]
        assert all(group.leases.owned(name) == kept[name] for name in "abc")
        sender.stop()
        group.until(lambda: are_all_copied(group.hubs, sender.sent), "events are missing")
        comparison = compare(read_copies(group.hubs), sender.sent)
    assert comparison.is_complete_and_ordered, comparison


def start_fixed(group: ApplicationGroup, name: str) -> Application:
    return group.start(name, "local[1]", assignment="fixed:4")


def until_claimed_again(
    group: ApplicationGroup, partitions: set[str], before: dict[str, int]
) -> None:
    """Wait until each has been claimed again."""

    def are_claimed() -> bool:
        epochs = group.leases.epochs()
        return all(epochs[name] > before[name] for name in partitions)

    group.until(are_claimed, "the restarted application does not claim its partitions")


# -- with processors and an official client, on blobs ---------------------------------------------


def test_an_application_shares_with_processors_and_an_official_client(
    azurite: Azurite, tmp_path: Path
) -> None:
    """Four hosts of three kinds share eight partitions and take over from each other."""
    store = AzuriteStore(azurite, f"tenants-{time.monotonic_ns()}")
    (tmp_path / "target").mkdir()
    with Fleet(tmp_path, store, 8) as fleet, run_hubs(tmp_path / "target", 8) as target:
        asyncio.run(make_container(store))
        leases = LeaseView(store.url, consumer_group_of(fleet))
        application = start_on_blobs(tmp_path, fleet, store, target)
        try:
            fleet.start_sender(pause_s=0.2)
            until_balanced(leases, {"spark"})
            times = {"lease_s": LEASE_S, "interval_s": 3.0}
            plain = [fleet.join(renew_s=5.0, **times) for _ in range(2)]
            official = fleet.join_official(**times)
            first, second = (host.name for host in plain)
            until_balanced(leases, {"spark", first, second, OFFICIAL})  # the query hands over
            fleet.leave(first)
            until_balanced(leases, {"spark", second, OFFICIAL})  # and claims again
            application.kill()
            until_balanced(leases, {second, OFFICIAL})
            application = start_on_blobs(tmp_path, fleet, store, target)
            until_balanced(leases, {"spark", second, OFFICIAL})
            fleet.leave(official.name)
            until_balanced(leases, {"spark", second})
            fleet.stop_sender()
            ends = asyncio.run(read_ends(fleet.hub.connection))
            until(
                lambda: handled_events(fleet, target) >= all_events(ends), UNTIL_S,
                application.output(),
            )  # fmt: skip
        finally:
            application.kill()


def start_on_blobs(folder: Path, fleet: Fleet, store: AzuriteStore, target: Hubs) -> Application:
    options = {
        "connectionString": fleet.hub.connection,
        "startingPosition": "earliest",
        "assignment": "steady",
        "store": store.url,
        "host": "spark",
        "leaseDuration": f"{LEASE_S:g}s",
        "renewInterval": "5s",
        "cycleInterval": "3s",
    }
    job: dict[str, object] = {
        "master": "local[2]",
        "format": "eventhubs",
        "target": target.connection("activity"),
        "checkpoint": str(folder / "spark" / "checkpoint"),
        "trigger": "200 milliseconds",
        "options": options,
    }
    return Application(folder / "spark", job)


def consumer_group_of(fleet: Fleet) -> Group:
    async def read() -> Group:
        async with open_client(fleet.hub.connection) as client:
            return Group(client.namespace, client.hub)

    return asyncio.run(read())


def until_balanced(leases: LeaseView, hosts: set[str]) -> None:
    """Wait until exactly these hosts own all partitions, none two more than another."""

    def is_balanced() -> bool:
        try:
            shares = leases.shares(LEASE_S)
        except PumphouseError:  # a busy machine: read it again
            return False
        owners = {host if is_ours(host) else OFFICIAL for host in shares}
        complete = sum(shares.values()) == 8 and owners == hosts
        return complete and max(shares.values()) - min(shares.values()) <= 1

    until(is_balanced, UNTIL_S, f"not balanced among {sorted(hosts)}", every_s=0.5)


def is_ours(host: str) -> bool:
    return host == "spark" or host.startswith("host-")


def handled_events(fleet: Fleet, target: Hubs) -> set[tuple[str, int]]:
    """What any host has handled: from the records of the hosts, and from the copies."""
    fleet.reader.read_new()
    done = {
        (line.partition, number)
        for line in fleet.reader.records
        if line.event == "out"
        for number in range(line.first, line.last + 1)
    }
    copies = read_copies(target)
    return done | {(name, copy.number) for name, events in copies.items() for copy in events}


def all_events(ends: dict[str, int]) -> set[tuple[str, int]]:
    return {(name, number) for name, last in ends.items() for number in range(last + 1)}


async def make_container(store: AzuriteStore) -> None:
    async with open_store(store.url, **store.options):
        pass
