"""Applications that share `watch` keep their partitions, also after a kill and a restart.

Slow: `make test-spark` runs it (`-m cluster`), `make test` does not. The options of sharing have
quick tests at the end.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks._alert_score import Truth, due_by, overall, score
from pumphouse.cli.homes.run import own_name
from pumphouse.client.connection_string import parse_connection_string
from pumphouse.errors import OptionError
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.pipeline import PipelineOptions
from pumphouse.homes.schema import ACTIVITY_HUB, DAY_MS, MINUTE_MS, Alert, decode_alert
from pumphouse.homes.simulator.incidents import Incidents
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.watch import stage as watch
from pumphouse.homes.watch.sharing import Sharing, parse_sharing
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.routing import partition_for
from pumphouse.leases.model import Group
from pumphouse.leases.store_url import open_store
from tests.homes.applications import destroy, end, hub_of, pipeline, status, until_running
from tests.homes.streams import put_in_turn, read_all
from tests.homes.watch.activity_columns import FIRST_MINUTE, activities
from tests.spark.support.processes import until_job

PARTITIONS, EACH = 16, 8
# From four to noon: people leave, and two hours later an alert is due of a window that they forgot.
# There are such in more than half of the partitions around each cut.
SIMULATOR = HomeSimulator(160, 498, Incidents(130, 60, 250, 60))
START, HALF, LATER, END = (FIRST_MINUTE + minute for minute in (240, 540, 570, 720))


@pytest.fixture
def hub() -> Iterator[EmbeddedHub]:
    with hub_of(PARTITIONS) as hub:
        yield hub


class SharedHub:
    """The hub, the lease store and the alerts of the applications."""

    def __init__(self, hub: EmbeddedHub, folder: Path) -> None:
        self.hub, self.folder = hub, folder
        self.namespace = HomesNamespace(hub.connection_string())
        self.store = f"sqlite:///{folder}/leases.db"

    def start(self, name: str, stack: ExitStack) -> subprocess.Popen[bytes]:
        words = ("--stages", "watch", "--master", "local[2]", "--assignment", f"fixed:{EACH}")
        shared = ("--store", self.store, "--host", name, "--checkpoints", f"{self.folder}/state")
        process = stack.enter_context(pipeline(self.hub, self.folder / name, *words, *shared))
        until_running(process, self.folder / name, "watch")
        return process

    def send(self, first: int, after: int) -> None:
        """Send the activities of these minutes in order."""
        made = [activities(SIMULATOR, minute) for minute in range(first, after)]
        put_in_turn(self.namespace, ACTIVITY_HUB, made)

    def owned(self, name: str) -> set[str]:
        async def ask() -> set[str]:
            namespace = parse_connection_string(self.hub.connection_string()).authority
            async with open_store(self.store) as store:
                listed = await store.list_ownership(Group(namespace, ACTIVITY_HUB, "watch"))
            return {row.partition for row in listed.ownerships if row.owner == name}

        return asyncio.run(ask())

    def alerts(self) -> list[Alert]:
        return [decode_alert(event.body) for event in read_all(self.namespace, "alerts")]

    def recall(self, due: list[Truth]) -> float:
        return overall(score(due, self.alerts())).recall

    def is_done(self, name: str, partitions: set[str]) -> bool:
        """Whether it has read all events of its partitions."""
        stage = status(self.folder / name)["watch"]
        homes = [event.partition_key or "" for event in read_all(self.namespace, ACTIVITY_HUB)]
        held = sum(partition_of(home) in partitions for home in homes)
        return bool(stage["lag_events"] == 0 and stage["taken"].get(ACTIVITY_HUB, 0) >= held)


def due(end_minute: int) -> list[Truth]:
    """The incidents whose alerts must be raised up to a minute. A sensor that is silent from the
    start is unknown, so the first minutes are left out."""
    return due_by(SIMULATOR.truth(START + 15, end_minute), (end_minute - 6) * MINUTE_MS)


def partition_of(home: str) -> str:
    return str(partition_for(home, PARTITIONS))


@pytest.mark.cluster
@pytest.mark.xdist_group("homes")
@pytest.mark.timeout(2400)
def test_each_application_keeps_its_partitions_and_raises_alerts_once(
    hub: EmbeddedHub, tmp_path: Path
) -> None:
    shared = SharedHub(hub, tmp_path)
    shared.send(START, HALF)
    with ExitStack() as stack:
        first = shared.start("first", stack)
        second = shared.start("second", stack)
        until_job(lambda: len(shared.owned("first")) == len(shared.owned("second")) == EACH)
        until_job(lambda: shared.recall(due(HALF)) == 1.0)
        firsts, others = shared.owned("first"), shared.owned("second")
        assert not firsts & others
        windows = [i for i in SIMULATOR.truth(START, HALF) if i.kind == "forgotten-window"]
        over_half = [i for i in windows if i.due > HALF * MINUTE_MS]
        assert any(partition_of(i.home) in firsts for i in over_half)  # need the history

        destroy(first)
        shared.send(HALF, LATER)
        theirs = [i for i in due(LATER) if partition_of(i.home) in others]
        until_job(lambda: shared.recall(theirs) == 1.0)  # the second application continues
        assert shared.owned("second") == others
        first = shared.start("first", stack)
        until_job(lambda: shared.recall(due(LATER)) == 1.0)
        assert (shared.owned("first"), shared.owned("second")) == (firsts, others)

        before = {alert.id for alert in shared.alerts()}
        end(second, tmp_path / "second")  # a restart, as for a new version
        second = shared.start("second", stack)
        until_job(lambda: shared.is_done("second", others))
        assert (shared.owned("first"), shared.owned("second")) == (firsts, others)
        assert len(shared.alerts()) == len(before)

        third = shared.start("third", stack)  # a spare application without partitions
        shared.send(LATER, END)
        until_job(lambda: shared.recall(due(END)) == 1.0)
        assert shared.owned("third") == set()
        alerts = shared.alerts()
        new = [alert for alert in alerts if alert.id not in before]
        assert any(partition_of(alert.home) in firsts for alert in new)
        destroy(first)
        until_job(lambda: shared.owned("third") == firsts)
        until_job(lambda: shared.is_done("third", firsts))
        assert len(shared.alerts()) == len(alerts)
        for process, name in ((second, "second"), (third, "third")):
            end(process, tmp_path / name)
    whole = overall(score(SIMULATOR.truth(START - DAY_MS // MINUTE_MS, END), shared.alerts()))
    assert (whole.precision, whole.repeats) == (1.0, 0)


# -- the options of sharing -------------------------------------------------------------------


def test_an_assignment_that_moves_partitions_is_refused() -> None:
    for assignment in ("steady", "balanced", "eph"):
        with pytest.raises(OptionError, match=f"'{assignment}' of watch: use fixed:N"):
            Sharing(assignment, "leases.db", "a")
    with pytest.raises(OptionError, match="unknown strategy 'fix'"):
        Sharing("fix", "leases.db", "a")


def test_sharing_needs_a_store_and_a_host() -> None:
    with pytest.raises(OptionError, match="fixed:2 needs a store: use sqlite"):
        parse_sharing("fixed:2", None, "a")
    with pytest.raises(OptionError, match="fixed:2 needs a host: use a name"):
        parse_sharing("fixed:2", "leases.db", " ")
    with pytest.raises(OptionError, match="host 'a' needs an assignment"):
        parse_sharing(None, None, "a")
    with pytest.raises(OptionError, match="works in one process only"):
        parse_sharing("fixed:2", "memory:", "a")
    for host in ("..", "a/b", "../watch", "a b"):
        with pytest.raises(OptionError, match="name of a folder"):
            parse_sharing("fixed:2", "leases.db", host)
    assert parse_sharing(None, "leases.db", None) is None
    assert "leases.db" not in repr(parse_sharing("fixed:2", "leases.db", "a"))


def test_the_default_host_is_the_same_at_every_start(tmp_path: Path) -> None:
    assert own_name(tmp_path / "a") == own_name(tmp_path / "a")
    assert own_name(tmp_path / "a") != own_name(tmp_path / "b")
    assert re.fullmatch(r"watch-[A-Za-z0-9._-]+", own_name(tmp_path))


def test_each_application_has_its_own_checkpoint_folder() -> None:
    """A start clears its own folder, not that of another host with a similar name."""
    names = ["watch-1", "watch-2"]
    folders = [
        watch.host_folder("/c/watch", Sharing("fixed:2", "leases.db", name)) for name in names
    ]
    assert folders == ["/c/watch/hosts/watch-1", "/c/watch/hosts/watch-2"]
    assert watch.host_folder("/c/watch", None) == "/c/watch"


def test_only_watch_can_share_its_partitions(tmp_path: Path) -> None:
    sharing = Sharing("fixed:2", "leases.db", "a")
    assert PipelineOptions(tmp_path, ("watch",), sharing=sharing).sharing is sharing
    with pytest.raises(OptionError, match=r"only the stage watch can share.*got sift, watch"):
        PipelineOptions(tmp_path, ("sift", "watch"), sharing=sharing)
