"""The alerts of a partition acquired from a dead application are not raised again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest

from pumphouse.events import Event
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.schema import ALERTS_HUB, decode_alert
from pumphouse.homes.simulator.incidents import MANY
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.trace_text import TRACE
from pumphouse.homes.watch.raised_alerts import alerts_reader
from pumphouse.homes.watch.rules import history_of_alerts
from pumphouse.homes.watch.stage import NO_FINGERPRINTS, Watcher
from tests.homes.streams import put
from tests.homes.watch.activity_columns import FIRST_MINUTE, as_activity_columns, kept
from tests.homes.watch.test_stage import FOREIGN_RECORDS

SIMULATOR = HomeSimulator(150, 7, MANY)


@dataclass
class Cell:
    """A value of Spark's state and its handle."""

    held: tuple[bytes] | None = None

    def getValueState(self, *_: object) -> Cell:
        return self

    def get(self) -> tuple[bytes] | None:
        return self.held

    def update(self, value: tuple[bytes]) -> None:
        self.held = value


def rows(first: int, after: int) -> pd.DataFrame:
    some = as_activity_columns(
        kept(SIMULATOR.minute(FIRST_MINUTE + minute).columns) for minute in range(first, after)
    )
    columns = {name: getattr(some, name) for name in type(some).__slots__}
    return pd.DataFrame(columns | {TRACE: None})


def raised(watcher: Watcher, *parts: pd.DataFrame) -> list[bytes]:
    """The bodies of the alerts that it raises, batch by batch."""
    cell: Any = Cell()
    watcher.init(cell)
    frames = [frame for part in parts for frame in watcher.handleInputRows("0", iter([part]), None)]
    return [body for frame in frames for body in frame["body"]]


def post(namespace: HomesNamespace, bodies: Sequence[bytes]) -> None:
    put(namespace, ALERTS_HUB, [Event(body, partition_key="h000001") for body in bodies])


@pytest.mark.timeout(120)
def test_an_alert_of_another_application_is_not_raised_again(namespace: HomesNamespace) -> None:
    day = [rows(0, 240), rows(240, 480)]
    everything = raised(Watcher(300_000, NO_FINGERPRINTS), *day)
    assert len(everything) > 3
    look = alerts_reader(namespace.hub_options(ALERTS_HUB), "watch")
    assert look() == []
    post(namespace, [*FOREIGN_RECORDS, *everything[:-1]])
    assert len(look()) == len(everything) - 1
    # It stood by, and gets the partition now: it reads the day, in as many batches as that takes.
    assert raised(Watcher(300_000, NO_FINGERPRINTS, look), *day) == everything[-1:]
    post(namespace, everything[-1:])
    assert raised(Watcher(300_000, NO_FINGERPRINTS, look), *day) == []


def test_a_task_reads_the_alerts_once() -> None:
    looks = []
    everything = raised(Watcher(300_000, NO_FINGERPRINTS), rows(0, 480))

    def look() -> list[Any]:
        looks.append(1)
        return [decode_alert(body) for body in everything]

    watcher = Watcher(300_000, NO_FINGERPRINTS, look)
    assert raised(watcher, rows(0, 480)) == raised(watcher, rows(0, 480)) == []
    assert len(looks) == 1
    assert len(history_of_alerts([]).raised) == 0
