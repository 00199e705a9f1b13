"""The simulated store: the semantics of each kind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pumphouse.errors import OptionError
from pumphouse.leases.model import Granted, Group, Refused, claim
from pumphouse.simulation import Scenario, simulate
from pumphouse.simulation.history import History
from pumphouse.simulation.hub import HUB, NAMESPACE
from pumphouse.simulation.invariants.checks import Checks
from pumphouse.simulation.loop import HostProcess, SimLoop
from pumphouse.simulation.run import OPTIONS
from pumphouse.simulation.store import SimStore

SMALL: dict[str, Any] = {"hosts": 3, "partitions": 4, "hours": 0.3}


def run(work: Any) -> Any:
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        return runner.run(work)


def watched(semantics: str) -> tuple[SimStore, Checks]:
    checks = Checks(History(), OPTIONS, grabs=False)
    return SimStore(checks, Group(NAMESPACE, HUB), OPTIONS.lease_s, semantics), checks


@pytest.mark.parametrize(
    ("semantics", "age_s", "has_row"),
    [("memory", 9.5, True), ("blob", 8, False), ("bloblease", 0, True)],
)
def test_the_semantics_decide_ages_and_refusals(
    semantics: str, age_s: float, has_row: bool
) -> None:
    async def scene() -> None:
        store, _ = watched(semantics)
        await asyncio.sleep(0.25)
        (granted,) = store.claim(HostProcess("one"), [claim(None, "0", "one")])
        assert isinstance(granted, Granted)
        await asyncio.sleep(9.5)
        (row,) = store.list_rows().ownerships
        assert row.age_s == pytest.approx(age_s)
        (refused,) = store.claim(HostProcess("two"), [claim(None, "0", "two")])
        assert isinstance(refused, Refused)
        assert (refused.current is not None) == has_row

    run(scene())


def test_an_unknown_semantics_is_refused() -> None:
    with pytest.raises(OptionError, match="unknown store 'etcd'"):
        simulate(Scenario(**SMALL, store="etcd"))
