"""Spark applications as tenants of one group: real processes, killed, stopped and started again.

Slow: `make test-spark` runs them (`-m cluster`), `make test` does not. SEED chooses what is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from pumphouse.client.opening import open_client
from pumphouse.errors import PumphouseError
from pumphouse.leases.model import Group, Ownership
from pumphouse.leases.opening import open_store
from tests.azurite.server import Azurite
from tests.soak.fleet import AzuriteStore, Fleet
from tests.soak.run import read_ends

from .tenants.fleet import (
    DAEMON,
    JAVA,
    RUNNER,
    App,
    Hubs,
    Sender,
    all_copied,
    arrived,
    copied,
    hubs_up,
    judge,
    rows_of,
    send_signal,
    shares,
    until,
)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(3000),
]

LEASE_S, INTERVAL_S = 12.0, 2.0
SEED = int(os.environ.get("SEED", "7"))
KILLS = int(os.environ.get("KILLS", "6"))


class Street:
    """Hubs, a store, and the applications that were started there."""

    def __init__(self, folder: Path, hubs: Hubs) -> None:
        self.folder, self.hubs, self.group = folder, hubs, hubs.group
        self.store = f"sqlite:///{folder}/leases.db"
        self.apps: list[App] = []

    def start(self, host: str, master: str = "local[2]", **options: str) -> App:
        given = {
            "connectionString": self.hubs.connection("sensors"),
            "startingPosition": "earliest",
            "assignment": "steady",
            "store": self.store,
            "host": host,
            "leaseDuration": f"{LEASE_S:g}s",
            "renewInterval": "2s",
            "cycleInterval": f"{INTERVAL_S:g}s",
            "maxEventsPerTrigger": "4000",
            "partitionsPerTask": str(-(-self.hubs.partitions // 4)),
        } | options
        job: dict[str, object] = {
            "master": master,
            "target": self.hubs.connection("activity"),
            "checkpoint": str(self.folder / host / "checkpoint"),
            "trigger": "200 milliseconds",
            "options": given,
        }
        app = App(self.folder / host, job)
        self.apps.append(app)
        return app

    def shares(self) -> dict[str, int]:
        return dict(shares(self.store, self.group, LEASE_S))

    def until_shared(self, wanted: dict[str, int]) -> float:
        """Until it is shared like that; how long it took."""
        since = time.monotonic()
        until(lambda: self.shares() == wanted, f"{wanted}, not {self.shares()}")
        return time.monotonic() - since

    def owned(self, host: str) -> set[str]:
        rows = rows_of(self.store, self.group)
        return {one for one, row in rows.items() if row.owner == host}

    def moving(self) -> None:
        """Until something more arrives."""
        before = arrived(self.hubs)
        try:
            until(lambda: arrived(self.hubs) > before)
        except AssertionError:
            told = [f"{app.folder.name}: {app.said()[-3000:]}" for app in self.apps]
            raise AssertionError("\n".join(["nothing arrives", *told])) from None


def street_of(folder: Path, partitions: int) -> Iterator[Street]:
    with hubs_up(folder, partitions) as hubs:
        street = Street(folder, hubs)
        try:
            yield street
        finally:
            for app in street.apps:
                app.go_on()
                app.kill()


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    yield from street_of(tmp_path, 16)


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[Street]:
    """A street with fewer partitions."""
    yield from street_of(tmp_path, 4)


def test_two_applications_share_sixteen_partitions(street: Street) -> None:
    with Sender(street.hubs) as sender:
        street.start("one")
        street.until_shared({"one": 16})
        street.moving()
        two = street.start("two")
        street.until_shared({"one": 8, "two": 8})
        street.moving()
        two.kill()
        took_s = street.until_shared({"one": 16})
        assert took_s >= 0  # printed with -s: by the rules a lease and an interval
        street.moving()
        street.start("two")
        street.until_shared({"one": 8, "two": 8})
        street.moving()
        sender.stop()
        until(lambda: all_copied(street.hubs, sender.sent), "not everything is copied", every_s=2)
    verdict = judge(copied(street.hubs), sender.sent)
    assert verdict.sound, verdict
    # The one that was killed may have had a batch in hand; all other moves were clean.
    assert verdict.repeats <= 2 * 4000, verdict


def test_killed_at_every_stage_of_a_batch(lane: Street) -> None:
    """Driver, runner and worker; after planning, while reading, after writing, before commit."""
    rng = Random(SEED)
    with Sender(lane.hubs, each=10, every_s=0.5) as sender:
        app = lane.start("one", maxEventsPerTrigger="800")
        for kind in kinds(rng, KILLS):
            lane.moving()
            stage = rng.choice(("planned", "reading", "written"))
            at_stage(app, lane.hubs, stage, rng)
            if kind == "driver":
                app.kill()
                app = lane.start("one", maxEventsPerTrigger="800")
            else:
                for one in app.of_kind(kind)[:1]:
                    send_signal(one, signal.SIGKILL)
        lane.moving()
        sender.stop()
        until(lambda: all_copied(lane.hubs, sender.sent), app.said()[-2000:], every_s=2)
    verdict = judge(copied(lane.hubs), sender.sent)
    assert verdict.sound, verdict
    assert verdict.unexplained == 0, verdict  # by their identities all repeats can be told
    assert verdict.repeats <= (KILLS + 1) * 800, verdict


def kinds(rng: Random, count: int) -> list[str]:
    """What is killed: each of them in turn, in a random order."""
    every = ["driver", RUNNER, DAEMON]
    chosen = [every[number % len(every)] for number in range(count)]
    rng.shuffle(chosen)
    return chosen


def at_stage(app: App, hubs: Hubs, stage: str, rng: Random) -> None:
    """Until the application is at that stage of a batch, as far as can be seen from outside."""
    done = app.batches("commits")
    until(lambda: bool(app.batches("offsets") - app.batches("commits") - done), "no batch")
    if stage == "reading":
        time.sleep(rng.uniform(0.02, 0.3))
    if stage == "written":
        before = arrived(hubs)
        deadline = time.monotonic() + 20
        while arrived(hubs) == before and time.monotonic() < deadline:
            time.sleep(0.01)


def test_fixed_keeps_its_four_and_a_fifth_stands_by(street: Street) -> None:
    fixed = {"assignment": "fixed:4", "leaseDuration": "60s", "renewInterval": "5s"}
    names = ["a", "b", "c", "d"]
    with Sender(street.hubs, every_s=0.5) as sender:
        apps = {name: street.start(name, "local[1]", **fixed) for name in names}
        until(lambda: street.shares() == dict.fromkeys(names, 4), str(street.shares()))
        kept = {name: street.owned(name) for name in names}
        street.start("standby", "local[1]", **fixed)
        apps["b"].kill()
        apps["b"] = street.start("b", "local[1]", **fixed)
        street.moving()
        until(lambda: "b" in street.shares())
        epochs = {one: row.epoch for one, row in rows_of(street.store, street.group).items()}
        assert {name: street.owned(name) for name in names} == kept
        assert max(epochs.values()) <= 3
        apps["d"].kill()
        until(lambda: street.shares().get("standby") == 4, str(street.shares()))
        assert street.owned("standby") == kept["d"]
        assert {name: street.owned(name) for name in "abc"} == {n: kept[n] for n in "abc"}
        sender.stop()
        until(lambda: all_copied(street.hubs, sender.sent), "not everything is copied", every_s=2)
    assert judge(copied(street.hubs), sender.sent).sound


def test_stopped_beyond_the_lease_and_continued(lane: Street) -> None:
    with Sender(lane.hubs) as sender:
        one = lane.start("one")
        lane.until_shared({"one": 4})
        lane.moving()
        lane.start("two")
        lane.until_shared({"one": 2, "two": 2})
        one.pause()
        try:
            lane.until_shared({"two": 4})
            lane.moving()
        finally:
            one.go_on()
        lane.until_shared({"one": 2, "two": 2})
        assert one.alive
        lane.moving()
        sender.stop()
        until(lambda: all_copied(lane.hubs, sender.sent), one.said()[-2000:], every_s=2)
    verdict = judge(copied(lane.hubs), sender.sent)
    assert verdict.sound, verdict


def test_java_alone_is_killed_and_its_partitions_are_given_up(lane: Street) -> None:
    """The runner hears that its driver is gone, and releases what it owns at once."""
    with Sender(lane.hubs) as sender:
        one = lane.start("one")
        lane.until_shared({"one": 4})
        lane.moving()
        for each in one.of_kind(JAVA):
            send_signal(each, signal.SIGKILL)
        until(lambda: not lane.shares(), "nothing was released")
        one.kill()
        lane.start("one")
        lane.until_shared({"one": 4})
        sender.stop()
        until(lambda: all_copied(lane.hubs, sender.sent), "not everything is copied", every_s=2)
    assert judge(copied(lane.hubs), sender.sent).sound


# -- beside plain processors and an official client, with blobs -----------------------------------


def test_beside_processors_and_an_official_client(azurite: Azurite, tmp_path: Path) -> None:
    """Four hosts of three kinds share eight partitions and take over from one another."""
    store = AzuriteStore(azurite, f"tenants-{time.monotonic_ns()}")
    (tmp_path / "target").mkdir()
    with (
        Fleet(tmp_path, store, 8) as fleet,
        hubs_up(tmp_path / "target", 8) as target,
    ):
        asyncio.run(make_container(store))
        app = blob_app(tmp_path, fleet, store, target)
        try:
            fleet.start_sender(pause_s=0.2)
            plain = [fleet.join(lease_s=LEASE_S, renew_s=3.0, interval_s=2.0) for _ in range(2)]
            fleet.join_official(lease_s=LEASE_S, interval_s=2.0)
            until(lambda: even(fleet, 4), f"{owners(fleet)}")
            fleet.leave(plain[0].name)
            until(lambda: even(fleet, 3), f"{owners(fleet)}")
            app.kill()
            until(lambda: even(fleet, 2), f"{owners(fleet)}")
            app = blob_app(tmp_path, fleet, store, target)
            until(lambda: even(fleet, 3), f"{owners(fleet)}")
            fleet.stop_sender()
            ends = asyncio.run(read_ends(fleet.hub.connection))
            until(lambda: handled(fleet, target) >= everything(ends), "not everything is handled")
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
        "renewInterval": "3s",
        "cycleInterval": "2s",
    }
    job: dict[str, object] = {
        "master": "local[2]",
        "target": target.connection("activity"),
        "checkpoint": str(folder / "spark" / "checkpoint"),
        "trigger": "200 milliseconds",
        "options": options,
    }
    return App(folder / "spark", job)


def owners(fleet: Fleet) -> Counter[str]:
    async def ask() -> Counter[str]:
        async with open_client(fleet.hub.connection) as client:
            group = Group(client.namespace, client.hub)
        return shares_in(await listed(fleet.store.place, group))

    try:
        return asyncio.run(ask())
    except PumphouseError:  # a busy machine: whoever waits asks again
        return Counter()


async def listed(place: str, group: Group) -> tuple[Ownership, ...]:
    async with open_store(place) as store:
        return (await store.list_ownership(group)).ownerships


def shares_in(rows: tuple[Ownership, ...]) -> Counter[str]:
    return Counter(row.owner for row in rows if row.owner and not row.expired(LEASE_S))


def even(fleet: Fleet, hosts: int) -> bool:
    found = owners(fleet)
    whole = sum(found.values()) == len(fleet.partitions) and len(found) == hosts
    return whole and max(found.values()) - min(found.values()) <= 1


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
