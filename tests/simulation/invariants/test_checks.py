"""The checks: violations by events, deadlines and retention."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pumphouse.errors import EventsExpired, HandlerStuck
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


STUCK_S = 100.0  # longer than handler_timeout_s of OPTIONS, and its check


def hang_and_lose_the_lease(checks: Checks, owner: HostProcess, client: Any, event: Event) -> Any:
    """A handler hangs; its host loses the lease and is granted it again, in a new term."""
    call = checks.handler_started(owner, client, 1, [event])
    client.reason = "lost"
    before, row = Ownership("0", "one", 1, "a"), Ownership("0", "one", 2, "b")
    checks.row_written(owner, before, row)
    checks.row_granted(owner, row, checks.now_s)
    return call


@pytest.mark.parametrize(("is_reported", "broken"), [(True, []), (False, ["I11"])])
@pytest.mark.parametrize("concurrent", [False, True])
def test_a_report_about_a_stuck_handler_of_a_lost_term_counts(
    concurrent: bool, is_reported: bool, broken: list[str]
) -> None:
    async def scene() -> Checks:
        client: Any = KeyedClient() if concurrent else Client()
        if concurrent:
            checks, owner = keyed_fleet("a")
        else:
            (_, checks), owner = watched("memory"), HostProcess("one")
            claim(checks, owner, None, Ownership("0", "one", 1, "a"))
        call = hang_and_lose_the_lease(checks, owner, client, keyed_event(0, "a"))
        await asyncio.sleep(STUCK_S)
        if is_reported:
            checks.reported(owner, "0", HandlerStuck("0", STUCK_S, 0))
        checks.handler_returned(call)
        return checks

    assert [violation.name for violation in run(scene()).violations] == broken


# -- concurrency ----------------------------------------------------------------------------------

KEYED = replace(OPTIONS, concurrency=2)


class CurrentCall:
    """The attributes of a call that the checks read."""

    batches = 1


class KeyedClient:
    """The attributes of a partition client that the checks of concurrency read."""

    id, epoch, batches_handed_out, reason = "0", 1, 1, None

    def __init__(self) -> None:
        self.handlers = SimpleNamespace(current=CurrentCall())


def keyed_event(number: int, key: str) -> Event:
    return Event(b"", {}, key, "0", number, str(128 * number), 0)


def keyed_fleet(keys: str) -> tuple[Checks, HostProcess]:
    """A host that owns a partition with an event for each letter."""
    checks, owner = Checks(History(), KEYED, grabs=False), HostProcess("one")
    checks.sent("0", 0, list(keys))
    claim(checks, owner, None, Ownership("0", "one", 1, "a"))
    return checks, owner


def claim(
    checks: Checks, process: HostProcess, before: Ownership | None, row: Ownership
) -> Ownership:
    checks.row_written(process, before, row)
    checks.row_granted(process, row, checks.now_s)
    return row


def test_a_key_has_an_order_and_one_handler() -> None:
    async def scene() -> list[str]:
        (checks, owner), client = keyed_fleet("abab"), KeyedClient()
        calls = [
            checks.handler_started(owner, client, 1, [keyed_event(number, key)])
            for number, key in ((0, "a"), (1, "b"))
        ]
        checks.handler_returned(calls[1])
        checks.handler_returned(checks.handler_started(owner, client, 1, [keyed_event(3, "b")]))
        assert not checks.violations
        checks.handler_started(owner, client, 1, [keyed_event(2, "a")])
        return [violation.text for violation in checks.violations]

    assert run(scene()) == [
        "one: partition 0 gets 2 of key a; [0] comes next",
        "one: partition 0 has two handlers of key a at once, the other of one",
    ]


def test_there_are_no_more_handlers_than_allowed() -> None:
    async def scene() -> list[str]:
        (checks, owner), client = keyed_fleet("abc"), KeyedClient()
        for number, key in enumerate("abc"):
            checks.handler_started(owner, client, 1, [keyed_event(number, key)])
        return [violation.text for violation in checks.violations]

    assert run(scene()) == ["one: partition 0 has more than 2 handlers at once"]


@pytest.mark.parametrize(("is_taken", "broken"), [(False, ["I2", "I22"]), (True, [])])
def test_handlers_of_two_hosts_overlap_only_if_the_first_was_late(
    is_taken: bool, broken: list[str]
) -> None:
    """A host that gives a partition up has no handler running. A zombie may have one."""

    async def scene() -> Checks:
        (checks, owner), heir = keyed_fleet("ab"), HostProcess("two")
        checks.handler_started(owner, KeyedClient(), 1, [keyed_event(0, "a")])
        await asyncio.sleep(KEYED.lease_s if is_taken else 1.0)
        before, row = Ownership("0", "one", 1, "a"), Ownership("0", "two", 2, "b")
        checks.row_written(heir if is_taken else owner, before, row)
        checks.row_granted(heir, row, checks.now_s)
        checks.handler_started(heir, KeyedClient(), 2, [keyed_event(0, "a")])
        return checks

    assert [violation.name for violation in run(scene()).violations] == broken


@pytest.mark.parametrize("has_failed", [False, True])
def test_an_owner_leaves_out_only_what_failed(has_failed: bool) -> None:
    async def scene() -> list[str]:
        (checks, owner), client = keyed_fleet("ab"), KeyedClient()
        first = checks.handler_started(owner, client, 1, [keyed_event(0, "a")])
        checks.handler_returned(checks.handler_started(owner, client, 1, [keyed_event(1, "b")]))
        if has_failed:
            checks.handler_raised(first, "it is bad")
        else:
            checks.partition("0").running.remove(first)
        checks.row_written(owner, Ownership("0", "one", 1, "a"), Ownership("0", "", 1, "b"))
        return [violation.text for violation in checks.violations]

    left_out = "one leaves 0 without handling 0, though it handled 1"
    assert run(scene()) == ([] if has_failed else [left_out])
