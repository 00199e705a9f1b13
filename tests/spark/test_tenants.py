"""Spark applications as tenants of one group: real processes that share, take over and stand by.

Slow: `make test-spark` runs them (`-m cluster`), `make test` does not. What may take so many cycles
or a lease is measured from when others could see the host, or from when it was killed.
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
from tests.azurite.server import Azurite
from tests.soak.fleet import AzuriteStore, Fleet
from tests.soak.run import read_ends

from .tenants.fleet import App, Hubs, Sender, all_copied, copied, hubs_up, judge, until
from .tenants.leases import Leases
from .tenants.street import Street, street_of

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(3000),
]

# Judged by the clock are the leases, not the machine: a cycle is long beside what a batch takes.
LEASE_S, INTERVAL_S = 30.0, 10.0
OFFICIAL = "official"  # it makes a name up for itself


def test_two_applications_share_sixteen_partitions(tmp_path: Path) -> None:
    with (
        street_of(tmp_path, 16, LEASE_S, INTERVAL_S, INTERVAL_S) as street,
        Sender(street.hubs) as sender,
    ):
        one = street.start("one")
        street.until_shared(one=16)
        street.until_done(one)
        two = street.start("two")
        street.until_member("two")
        assert street.until_shared(one=8, two=8) <= 2 * INTERVAL_S
        street.until_done(two)
        two.kill()
        killed_s = time.monotonic()
        in_hand = not_checkpointed(street, two)
        street.until_shared(one=16)
        assert time.monotonic() - killed_s <= LEASE_S + INTERVAL_S
        street.until_done(one)
        two = street.start("two")
        street.until_member("two")
        assert street.until_shared(one=8, two=8) <= 2 * INTERVAL_S
        street.until_done(two)
        sender.stop()
        street.until(lambda: all_copied(street.hubs, sender.sent), "not everything is copied")
        verdict = judge(copied(street.hubs), sender.sent)
    assert verdict.sound, verdict
    # All moves but one were clean: only what the killed one had in hand may have come twice.
    assert verdict.events <= in_hand, verdict


def not_checkpointed(street: Street, app: App) -> set[tuple[str, int]]:
    """What an application had planned when it was killed, and not checkpointed yet."""
    marks = {one: -1 if at is None else at for one, at in street.leases.sequences().items()}
    return {
        (one, number)
        for one, stretch in app.journal().items()
        for number in range(marks.get(one, -1) + 1, stretch.last)
    }


def test_fixed_keeps_its_four_and_a_fifth_stands_by(tmp_path: Path) -> None:
    """Long leases: a restart takes its time where five of them share two cores."""
    with (
        street_of(tmp_path, 16, lease_s=120.0, renew_s=10.0, interval_s=1.0) as street,
        Sender(street.hubs, every_s=1.0) as sender,
    ):
        apps = {name: start_fixed(street, name) for name in "abcd"}
        street.until_shared(a=4, b=4, c=4, d=4)
        kept = {name: street.leases.owned(name) for name in "abcd"}
        start_fixed(street, "standby")
        street.until_member("standby")
        before = street.leases.epochs()
        apps["b"].kill()
        apps["b"] = start_fixed(street, "b")
        until_taken_up(street, kept["b"], before)
        street.until_moving()
        assert {name: street.leases.owned(name) for name in "abcd"} == kept
        after = street.leases.epochs()
        assert all(after[one] == before[one] for name in "acd" for one in kept[name])
        apps["d"].kill()
        took_s = street.until_shared(a=4, b=4, c=4, standby=4)
        assert took_s <= street.lease_s + 4 + 4 * street.interval_s  # one in each cycle
        assert street.leases.owned("standby") == kept["d"]
        assert all(street.leases.owned(name) == kept[name] for name in "abc")
        sender.stop()
        street.until(lambda: all_copied(street.hubs, sender.sent), "not everything is copied")
        verdict = judge(copied(street.hubs), sender.sent)
    assert verdict.sound, verdict


def start_fixed(street: Street, name: str) -> App:
    return street.start(name, "local[1]", assignment="fixed:4")


def until_taken_up(street: Street, partitions: set[str], before: dict[str, int]) -> None:
    """Until each has been claimed anew."""

    def anew() -> bool:
        epochs = street.leases.epochs()
        return all(epochs[one] > before[one] for one in partitions)

    street.until(anew, "the one that was started again does not take its partitions up")


# -- beside plain processors and an official client, with blobs -----------------------------------


def test_beside_processors_and_an_official_client(azurite: Azurite, tmp_path: Path) -> None:
    """Four hosts of three kinds share eight partitions and take over from one another."""
    store = AzuriteStore(azurite, f"tenants-{time.monotonic_ns()}")
    (tmp_path / "target").mkdir()
    with Fleet(tmp_path, store, 8) as fleet, hubs_up(tmp_path / "target", 8) as target:
        asyncio.run(make_container(store))
        leases = Leases(store.place, group_of(fleet))
        app = blob_app(tmp_path, fleet, store, target)
        try:
            fleet.start_sender(pause_s=0.2)
            until_even(leases, {"spark"})
            times = {"lease_s": LEASE_S, "interval_s": 3.0}
            plain = [fleet.join(renew_s=5.0, **times) for _ in range(2)]
            official = fleet.join_official(**times)
            first, second = (host.name for host in plain)
            until_even(leases, {"spark", first, second, OFFICIAL})  # from the query to the others
            fleet.leave(first)
            until_even(leases, {"spark", second, OFFICIAL})  # and back to it
            app.kill()
            until_even(leases, {second, OFFICIAL})
            app = blob_app(tmp_path, fleet, store, target)
            until_even(leases, {"spark", second, OFFICIAL})
            fleet.leave(official.name)
            until_even(leases, {"spark", second})
            fleet.stop_sender()
            ends = asyncio.run(read_ends(fleet.hub.connection))
            until(lambda: handled(fleet, target) >= everything(ends), app.said())
        finally:
            app.kill()


def blob_app(folder: Path, fleet: Fleet, store: AzuriteStore, target: Hubs) -> App:
    options = {
        "connectionString": fleet.hub.connection,
        "startingPosition": "earliest",
        "assignment": "steady",
        "store": store.place,
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
    return App(folder / "spark", job)


def group_of(fleet: Fleet) -> Group:
    async def ask() -> Group:
        async with open_client(fleet.hub.connection) as client:
            return Group(client.namespace, client.hub)

    return asyncio.run(ask())


def until_even(leases: Leases, hosts: set[str]) -> None:
    """Until exactly these have all partitions, nobody two more than another."""

    def even() -> bool:
        try:
            found = leases.shares(LEASE_S)
        except PumphouseError:  # a busy machine: it is asked again
            return False
        named = {host if is_ours(host) else OFFICIAL for host in found}
        whole = sum(found.values()) == 8 and named == hosts
        return whole and max(found.values()) - min(found.values()) <= 1

    until(even, f"not even among {sorted(hosts)}", every_s=0.5)


def is_ours(host: str) -> bool:
    return host == "spark" or host.startswith("host-")


def handled(fleet: Fleet, target: Hubs) -> set[tuple[str, int]]:
    """What any of them has handled: by the books of the hosts, and by the copies of the query."""
    fleet.pages.turn()
    done = {
        (line.partition, number)
        for line in fleet.pages.lines
        if line.word == "out"
        for number in range(line.first, line.last + 1)
    }
    return done | {(one, row.number) for one, rows in copied(target).items() for row in rows}


def everything(ends: dict[str, int]) -> set[tuple[str, int]]:
    return {(one, number) for one, last in ends.items() for number in range(last + 1)}


async def make_container(store: AzuriteStore) -> None:
    async with open_store(store.place, **store.options):
        pass
