"""The checks: violations by events, deadlines and retention."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pumphouse.errors import EventsExpired
from pumphouse.events import Event
from pumphouse.leases.model import Group, Ownership
from pumphouse.simulation.history import History
from pumphouse.simulation.hub import HUB, NAMESPACE
from pumphouse.simulation.invariants.checks import Checks
from pumphouse.simulation.loop import HostProcess, SimLoop
from pumphouse.simulation.run import OPTIONS
from pumphouse.simulation.store import SimStore


def run(work: Any) -> Any:
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        return runner.run(work)


def watched(semantics: str) -> tuple[SimStore, Checks]:
    checks = Checks(History(), OPTIONS, grabs=False)
    return SimStore(checks, Group(NAMESPACE, HUB), OPTIONS.lease_s, semantics), checks


def test_a_violation_names_invariant_and_partition() -> None:
    async def scene() -> Checks:
        _, checks = watched("memory")
        owner, two = HostProcess("one"), HostProcess("two")
        checks.row_written(owner, None, Ownership("0", "one", 3, "a"))
        checks.row_written(two, Ownership("0", "one", 3, "a"), Ownership("0", "two", 3, "b"))
        return checks

    checks = run(scene())
    assert [violation.name for violation in checks.violations] == ["I1", "I1"]
    assert "0 goes from one to two, and the epoch from 3 to 3" in str(checks.violations[0])
    assert any("one writes 0 one epoch 3" in line for line in checks.scene)


def handle(checks: Checks, process: HostProcess, first: int, last: int) -> None:
    batch = [Event(b"", {}, None, "0", n, str(128 * n), 0) for n in range(first, last + 1)]
    checks.handler_returned(checks.handler_started(process, Client, 1, batch))


class Client:
    """The attributes of a partition client that the checks read."""

    id, epoch, batches_handed_out, reason = "0", 1, 1, None


@pytest.mark.parametrize(
    ("first", "last_reported", "broken"),
    [(4, 6, []), (7, 6, []), (8, 6, ["I3"]), (4, None, []), (7, None, ["I18"]), (7, 5, ["I18"])],
)
def test_only_reported_losses_can_be_gaps(
    first: int, last_reported: int | None, broken: list[str]
) -> None:
    async def scene() -> Checks:
        _, checks = watched("memory")
        process = HostProcess("one")
        row = Ownership("0", "one", 1, "a")
        checks.row_written(process, None, row)
        checks.row_granted(process, row, checks.now_s)
        handle(checks, process, 0, 3)
        assert checks.expired("0", 7) == 3
        if last_reported is not None:
            checks.reported(process, "0", EventsExpired("0", 4, last_reported))
        handle(checks, process, first, 9)
        return checks

    checks = run(scene())
    assert [violation.name for violation in checks.violations] == broken
    assert checks.figures.expired == 3


@pytest.mark.parametrize(("late_s", "broken"), [(0.1, ["I6"]), (28.5, [])])
def test_an_owner_follows_the_deadline_that_it_received(late_s: float, broken: list[str]) -> None:
    """A delayed listing shows a deadline too early, and the owner cannot know."""

    async def scene() -> Checks:
        _, checks = watched("blob")
        owner, two = HostProcess("one"), HostProcess("two")
        row = Ownership("0", "one", 1, "a")
        checks.row_written(owner, None, row)
        checks.row_granted(owner, row, checks.now_s)
        requested_s = checks.now_s
        requested = replace(row, etag="b", successor="two", deadline_s=30.0)
        checks.row_written(two, row, requested)
        handle(checks, owner, 0, 3)
        checks.row_received(owner, replace(requested, deadline_s=30.0 - late_s), requested_s)
        checks.row_written(owner, requested, Ownership("0", "two", 2, "c", deadline_s=10.0))
        return checks

    assert [violation.name for violation in run(scene()).violations] == broken
