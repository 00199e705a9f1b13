"""Checks of a fleet in a fault-free phase: it recovers, shares evenly, rests, and survives a crash.

Safety is checked all the time (invariants/). The checks here apply only to a fleet without faults:
it must settle within a bounded time, and then nothing may move. The texts of I3 and so on are in
invariants/records.py.

    fault schedule -> FaultFreePhase -> I3, I6, I7, I8, I9, I10, I12, I13
                      ^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from pumphouse.simulation.faults.profiles import NO_FAULTS
from pumphouse.simulation.fleet import Fleet, Host
from pumphouse.simulation.store import LATE_S_MAX

POLLS = 10  # per interval
QUICK_POLLS = 200
SLACK_S = 3.0  # for the duration of calls, and the whole seconds of a blob store
REST_CYCLES = 4
ONE_PER_CYCLE = ("balanced", "eph", "eph_js", "fixed")
MOVE_WRITES = 4  # requested, handed over, confirmed, and one conflict


@dataclass(frozen=True, slots=True)
class RestStart:
    """The counters at the start of a rest."""

    moved: tuple[int, int, int]
    calls: Counter[str]
    refused: int
    checkpoints_due: float
    started_over: int


class FaultFreePhase:
    """Checks a fleet without faults."""

    def __init__(self, fleet: Fleet, rng: Random) -> None:
        self.fleet, self.rng = fleet, rng
        self.name = fleet.strategy.name.partition(":")[0]
        self.slow = self.name in ONE_PER_CYCLE
        self.even = self.name != "fixed"  # fixed hosts are not balanced
        self.by_rate = fleet.strategy.name == "steady:rates"  # moves partitions as rates change

    @property
    def interval_s(self) -> float:
        hosts = list(self.fleet.hosts.values())
        return (
            hosts[0].adapter.engine.options.interval_s if hosts else self.fleet.options.interval_s
        )

    @property
    def settle_s(self) -> float:
        """The longest time to balance after the last change."""
        options, partitions = self.fleet.options, len(self.fleet.hub.partitions)
        cycles = partitions + 6 if self.slow else 8
        waits_s = options.lease_s + options.granted_s + options.backoff_most_s
        return waits_s + cycles * self.interval_s + 20 * SLACK_S

    async def run(self) -> None:
        """Run all checks in turn; stops at the first violation."""
        await self.end_faults()
        steps = (self.settle, self.rest, self.survive, self.settle, self.replace, self.settle)
        for step in steps:
            if not self.fleet.checks.violations:
                await step()

    async def end_faults(self) -> None:
        fleet = self.fleet
        fleet.set_faults(NO_FAULTS)
        for host in list(fleet.hosts.values()):
            fleet.thaw(host)
        await fleet.all_done()
        while len(fleet.hosts) < fleet.size:
            await fleet.add()
        await asyncio.sleep(LATE_S_MAX)  # delayed calls still belong to the faulty phase

    # -- balance -----------------------------------------------------------------------------------

    async def settle(self) -> None:
        """I3, I7 to I10, I12: every partition is owned, evenly, and its events are handled."""
        fleet = self.fleet
        ends = {partition: log.end for partition, log in fleet.hub.logs.items()}
        if await self._until(lambda: not self._unsettled(ends), self.settle_s):
            return
        for name, text in self._unsettled(ends):
            fleet.checks.add_violation(name, f"{text} after {self.settle_s:.0f} s without a fault")

    def _unsettled(self, ends: dict[str, int]) -> list[tuple[str, str]]:
        fleet, problems = self.fleet, []
        counts = fleet.owned()
        if unowned := fleet.unowned():
            problems.append(("I8", f"no host owns {' '.join(unowned)}"))
        if self.even and fleet.spread() > 1:
            problems.append(("I7", f"hosts own {counts}"))
        if self.even and min(counts.values()) < len(fleet.hub.partitions) // len(counts):
            problems.append(("I9", f"hosts own {counts}"))
        if busy := [n for n, host in fleet.hosts.items() if not host.adapter.engine.settled]:
            problems.append(("I7", f"{' '.join(busy)} not settled"))
        late = {p for p, end in ends.items() if end - 1 > fleet.checks.partition(p).handled}
        late = {p for p in late if not fleet.checks.is_held_up(p)}
        if late:
            problems.append(("I3", f"events of {' '.join(sorted(late))} are not handled"))
        if waits := [p for p, row in fleet.store.rows.items() if row.successor]:
            problems.append(("I12", f"{' '.join(waits)} waits for a hand-over"))
        if doubts := fleet.store.in_doubt():
            problems.append(("I10", f"a write of {' '.join(doubts)} is still in doubt"))
        return problems

    async def _until(
        self, condition: Callable[[], bool], longest_s: float, polls: int = POLLS
    ) -> bool:
        until_s = self.fleet.loop.time() + longest_s
        while not condition():
            if self.fleet.loop.time() >= until_s or self.fleet.checks.violations:
                return False
            await asyncio.sleep(self.interval_s / polls)
        return True

    # -- rest --------------------------------------------------------------------------------------

    async def rest(self) -> None:
        """I7, I10: nothing moves, and calls to the store stay within their budget.

        With steady:rates busy partitions may move as rates change, each by one hand-over.
        """
        fleet, checks = self.fleet, self.fleet.checks
        window_s = REST_CYCLES * max(self.interval_s, fleet.options.renew_s)
        await asyncio.sleep(SLACK_S)  # the pumps of the last moves still read their checkpoints
        start = self._rest_start()
        worst = await self._watch(window_s)
        moves, claims, releases = (
            now - then for now, then in zip(self._moved(), start.moved, strict=True)
        )
        moves += sum(bool(row.successor) for row in fleet.store.rows.values())  # requested
        if claims or releases or (moves and not self.by_rate):
            text = f"moves, claims, releases at rest: {start.moved} before, {self._moved()} now"
            checks.add_violation("I7", text)
        # With steady:rates, half of an exchange may be done, but every partition has an owner.
        if self.even and worst > 1 + 2 * self.by_rate:
            checks.add_violation("I7", f"at rest a host owned {worst} partitions more than another")
        self._check_budget(start, window_s, moves)
        self._check_checkpoints()

    def _rest_start(self) -> RestStart:
        store, checks = self.fleet.store, self.fleet.checks
        return RestStart(
            self._moved(),
            store.calls.copy(),
            store.refused,
            self._checkpoints_due(),
            checks.figures.left_early,
        )

    def _check_budget(self, start: RestStart, window_s: float, moves: int) -> None:
        """I10: calls to the store at rest."""
        fleet, options = self.fleet, self.fleet.options
        hosts, partitions = len(fleet.hosts), len(fleet.hub.partitions)
        # A host that waits for a partition lists ten times as often.
        listings = hosts * (window_s / (0.9 * self.interval_s) + 2) + 10 * moves
        checkpoints = self._checkpoints_due() - start.checkpoints_due
        budget = {
            "list": listings,
            "beat": listings,
            "row": partitions * (window_s / (0.85 * options.renew_s) + 2) + MOVE_WRITES * moves,
            "list checkpoints": 2 + 2 * moves + self._started_over() - start.started_over,
            "checkpoint": checkpoints + self._checkpoints_in(window_s) + 2 * moves,
        }
        for kind, most in budget.items():
            if (made := fleet.store.calls[kind] - start.calls[kind]) > most:
                text = f"{made} calls ({kind}) in {window_s:.0f} s at rest; at most {most:.0f}"
                fleet.checks.add_violation("I10", text)
        # An owner learns of a request by a refusal; a request may collide with a renewal.
        if fleet.store.refused - start.refused > 2 * moves + hosts * self.by_rate:
            fleet.checks.add_violation("I10", "a write was refused at rest")

    def _checkpoints_due(self) -> float:
        """How many checkpoints were due so far: by hand, or by the number of events.

        With concurrency, one by hand may need two writes: at once, and again when the events below
        it are handled.
        """
        figures, options = self.fleet.checks.figures, self.fleet.options
        writes = 1 if options.key_order is None else 2
        every = options.checkpoints.every_events
        return writes * figures.by_hand + (figures.handled / every if every else 0)

    def _started_over(self) -> int:
        """How many reading loops may have restarted.

        These are the loops that an exception of the user's handler ended, and one for each
        partition that such an exception delays now.
        """
        checks = self.fleet.checks
        return checks.figures.left_early + sum(map(checks.is_held_up, checks.partitions))

    def _checkpoints_in(self, seconds: float) -> float:
        """How many checkpoints the policy may write in this time, and one that was due before."""
        fleet, every_s = self.fleet, self.fleet.options.checkpoints.every_s
        if fleet.handler is not None:
            return math.inf  # the user's handler may write any number
        return len(fleet.hub.partitions) * (2 + (seconds / every_s if every_s else 0))

    def _check_checkpoints(self) -> None:
        """I6: a crash would repeat no more than the checkpoint policy allows."""
        fleet, policy = self.fleet, self.fleet.options.checkpoints
        if policy.every_s is None or fleet.handler is not None:
            return
        most_s = policy.every_s + fleet.options.store_s + SLACK_S
        for partition, record in fleet.checks.partitions.items():
            since_s = record.uncheckpointed_s
            late_s = 0.0 if since_s is None else fleet.loop.time() - since_s
            retained = record.last_handled >= record.first_retained
            if late_s > most_s and retained:
                text = f"events of {partition} handled {late_s:.0f} s ago are in no checkpoint"
                fleet.checks.add_violation("I6", text, partition)

    async def _watch(self, seconds: float) -> int:
        """Wait; returns the worst spread during that time."""
        worst, until_s = 0, self.fleet.loop.time() + seconds
        while self.fleet.loop.time() < until_s:
            worst = max(worst, self.fleet.spread())
            await asyncio.sleep(self.interval_s / POLLS)
        return worst

    def _moved(self) -> tuple[int, int, int]:
        figures = self.fleet.checks.figures
        return figures.moves, figures.claims, figures.releases

    # -- one crash ---------------------------------------------------------------------------------

    async def survive(self) -> None:
        """I8: the partitions of a crashed host are claimed within a lease and an interval."""
        fleet = self.fleet
        owners = [host for host in fleet.hosts.values() if host.adapter.engine.owned]
        if len(fleet.hosts) < 2 or not owners:
            return
        victim = self.rng.choice(owners)
        orphans = victim.adapter.engine.owned
        fleet.checks.record("host", f"{victim.process} is killed in a fault-free phase")
        fleet.crash(victim)
        # A new host may come before the lease has expired, and request partitions of the dead one.
        delay_s = self.rng.choice([0.1, 0.5, 1.5]) * fleet.options.lease_s
        joining = fleet.loop.create_task(self._join(delay_s))
        cycles = 1 + len(orphans) * self.slow
        bound_s = fleet.options.lease_s + cycles * self.interval_s + SLACK_S
        if not await self._until(lambda: not fleet.unowned(), bound_s):
            text = f"{' '.join(fleet.unowned())} of {victim.name} not taken in {bound_s:.0f} s"
            fleet.checks.add_violation("I8", text)
        await joining

    async def _join(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self.fleet.add()

    # -- one replacement ---------------------------------------------------------------------------

    async def replace(self) -> None:
        """I13: a new host requests partitions while their owner leaves, as in a deployment."""
        fleet = self.fleet
        await fleet.add()
        if len(fleet.hub.partitions) >= len(fleet.hosts) > 1 and self.even:
            await self._until(lambda: bool(self._requested()), 3 * self.interval_s, QUICK_POLLS)
        leaver = self.rng.choice(self._requested() or list(fleet.hosts.values()))
        fleet.checks.record("host", f"{leaver.process} is replaced")
        await fleet.leave(leaver)

    def _requested(self) -> list[Host]:
        """Hosts with a partition that another host has requested."""
        rows, hosts = self.fleet.store.rows.values(), self.fleet.hosts
        return [hosts[row.owner] for row in rows if row.successor and row.owner in hosts]
