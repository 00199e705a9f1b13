"""When the weather clears up: does the fleet recover, share evenly, rest, and survive one crash?

Safety is checked all the time (checks.py). Here stands what can only be asked of a fleet that is
left alone: it must get there within a bounded time, and then nothing may move.

    storm -> FaultFreePhase -> I3, I6, I7, I8, I9, I10, I12, I13
             ^^^^ this module
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from random import Random

from pumphouse.simulation.faults.profiles import NO_FAULTS
from pumphouse.simulation.fleet import Fleet, Host
from pumphouse.simulation.store import LATE_S_MAX

LOOKS = 10  # in an interval
QUICK_LOOKS = 200
SLACK_S = 3.0  # calls take a while, and a blob store shows whole seconds
REST_CYCLES = 4
ONE_PER_CYCLE = ("balanced", "eph", "eph_js", "fixed")
MOVE_WRITES = 4  # asked for, handed over, confirmed, and one that met another's


class FaultFreePhase:
    """Looks at a fleet that is left alone."""

    def __init__(self, fleet: Fleet, rng: Random) -> None:
        self.fleet, self.rng = fleet, rng
        self.name = fleet.strategy.name.partition(":")[0]
        self.slow = self.name in ONE_PER_CYCLE
        self.even = self.name != "fixed"  # which promises something else than even numbers
        self.restless = fleet.strategy.name == "steady:rates"  # it follows events as they change

    @property
    def interval_s(self) -> float:
        hosts = list(self.fleet.hosts.values())
        return hosts[0].face.engine.options.interval_s if hosts else self.fleet.options.interval_s

    @property
    def settle_s(self) -> float:
        """How long it may take to get even after the last change."""
        options, partitions = self.fleet.options, len(self.fleet.hub.partitions)
        cycles = partitions + 6 if self.slow else 8
        waits_s = options.lease_s + options.granted_s + options.backoff_most_s
        return waits_s + cycles * self.interval_s + 20 * SLACK_S

    async def run(self) -> None:
        """All that can be asked, in turn; ends early once a promise was broken."""
        await self.clear_up()
        steps = (self.settle, self.rest, self.survive, self.settle, self.replace, self.settle)
        for step in steps:
            if not self.fleet.checks.violations:
                await step()

    async def clear_up(self) -> None:
        fleet = self.fleet
        fleet.set_faults(NO_FAULTS)
        for host in list(fleet.hosts.values()):
            fleet.thaw(host)
        await fleet.all_done()
        while len(fleet.hosts) < fleet.wanted:
            await fleet.add()
        await asyncio.sleep(LATE_S_MAX)  # what is still on its way belongs to the storm

    # -- getting even ------------------------------------------------------------------------------

    async def settle(self) -> None:
        """I3, I7 to I10, I12: soon everything is owned, evenly, and handled."""
        fleet = self.fleet
        ends = {partition: log.end for partition, log in fleet.hub.logs.items()}
        if await self._until(lambda: not self._unsettled(ends), self.settle_s):
            return
        for name, text in self._unsettled(ends):
            fleet.checks.add_violation(name, f"{text} after {self.settle_s:.0f} s without a fault")

    def _unsettled(self, ends: dict[str, int]) -> list[tuple[str, str]]:
        fleet, found = self.fleet, []
        counts = fleet.owned()
        if unowned := fleet.unowned():
            found.append(("I8", f"nobody owns {' '.join(unowned)}"))
        if self.even and fleet.spread() > 1:
            found.append(("I7", f"hosts own {counts}"))
        if self.even and min(counts.values()) < len(fleet.hub.partitions) // len(counts):
            found.append(("I9", f"hosts own {counts}"))
        if busy := [n for n, host in fleet.hosts.items() if not host.face.engine.settled]:
            found.append(("I7", f"{' '.join(busy)} not settled"))
        late = {p for p, end in ends.items() if end - 1 > fleet.checks.track(p).handled}
        late = {p for p in late if not fleet.checks.excused(p)}
        if late:
            found.append(("I3", f"events of {' '.join(sorted(late))} are not handled"))
        if waits := [p for p, row in fleet.store.rows.items() if row.successor]:
            found.append(("I12", f"{' '.join(waits)} waits for a hand-off"))
        if doubts := fleet.store.in_doubt():
            found.append(("I10", f"a write of {' '.join(doubts)} is still in doubt"))
        return found

    async def _until(
        self, condition: Callable[[], bool], longest_s: float, looks: int = LOOKS
    ) -> bool:
        until_s = self.fleet.loop.time() + longest_s
        while not condition():
            if self.fleet.loop.time() >= until_s or self.fleet.checks.violations:
                return False
            await asyncio.sleep(self.interval_s / looks)
        return True

    # -- resting -----------------------------------------------------------------------------------

    async def rest(self) -> None:
        """I7, I10: nothing moves, and the store is asked for no more than was promised.

        Weighed by rates, what is busy may move on as that changes: from one to one, in order.
        """
        fleet, checks, options = self.fleet, self.fleet.checks, self.fleet.options
        window_s = REST_CYCLES * max(self.interval_s, options.renew_s)
        moved, before = self._moved(), fleet.store.calls.copy()
        refused, marks = fleet.store.refused, self._marks_wanted()
        started_over = fleet.checks.figures.left_early
        worst = await self._watch(window_s)
        moves, claims, releases = (
            now - then for now, then in zip(self._moved(), moved, strict=True)
        )
        moves += sum(bool(row.successor) for row in fleet.store.rows.values())  # on their way
        if claims or releases or (moves and not self.restless):
            checks.add_violation(
                "I7", f"something moved at rest: {moved} before, {self._moved()} now"
            )
        # Half of an exchange may be done, no more; and nothing is ever left to nobody meanwhile.
        if self.even and worst > 1 + 2 * self.restless:
            checks.add_violation("I7", f"at rest some host had {worst} more than another")
        hosts, partitions = len(fleet.hosts), len(fleet.hub.partitions)
        cycles = window_s / (0.9 * self.interval_s) + 2
        # Who waits for a partition looks ten times as often.
        looks = hosts * cycles + 10 * moves
        budget = {
            "list": looks,
            "beat": looks,
            "row": partitions * (window_s / (0.85 * options.renew_s) + 2) + MOVE_WRITES * moves,
            "list checkpoints": 2 + 2 * moves + self._started_over() - started_over,
            "checkpoint": self._marks_wanted() - marks + self._marks_in(window_s) + 2 * moves,
        }
        for kind, most in budget.items():
            if (made := fleet.store.calls[kind] - before[kind]) > most:
                text = f"{made} calls ({kind}) in {window_s:.0f} s at rest; at most {most:.0f}"
                checks.add_violation("I10", text)
        # An owner hears of it by a refusal that somebody has asked; who asks may meet a renewal.
        if fleet.store.refused - refused > 2 * moves + hosts * self.restless:
            checks.add_violation("I10", "a write was refused at rest")
        self._check_marks()

    def _marks_wanted(self) -> float:
        """How many checkpoints were wanted so far: by hand, or because of so many events."""
        figures, every = self.fleet.checks.figures, self.fleet.options.checkpoints.every_events
        return figures.by_hand + (figures.handled / every if every else 0)

    def _started_over(self) -> int:
        """How many loops somebody's own handler has ended; some of them are still to start over."""
        checks = self.fleet.checks
        return checks.figures.left_early + sum(map(checks.excused, checks.tracks))

    def _marks_in(self, seconds: float) -> float:
        """How many checkpoints the policy may want in such a time, and one that was due before."""
        fleet, every_s = self.fleet, self.fleet.options.checkpoints.every_s
        if fleet.handler is not None:
            return math.inf  # it may write as many as it likes
        return len(fleet.hub.partitions) * (2 + (seconds / every_s if every_s else 0))

    def _check_marks(self) -> None:
        """I6: a crash would repeat no more than the policy of checkpoints says."""
        fleet, policy = self.fleet, self.fleet.options.checkpoints
        if policy.every_s is None or fleet.handler is not None:
            return
        most_s = policy.every_s + fleet.options.store_s + SLACK_S
        for partition, track in fleet.checks.tracks.items():
            late_s = 0.0 if track.unmarked_s is None else fleet.loop.time() - track.unmarked_s
            if late_s > most_s and track.done >= track.first:  # retention has left something of it
                text = f"what was handled of {partition} {late_s:.0f} s ago is in no checkpoint"
                fleet.checks.add_violation("I6", text, partition)

    async def _watch(self, seconds: float) -> int:
        """Wait so long; the worst spread that was seen meanwhile."""
        worst, until_s = 0, self.fleet.loop.time() + seconds
        while self.fleet.loop.time() < until_s:
            worst = max(worst, self.fleet.spread())
            await asyncio.sleep(self.interval_s / LOOKS)
        return worst

    def _moved(self) -> tuple[int, int, int]:
        figures = self.fleet.checks.figures
        return figures.moves, figures.claims, figures.releases

    # -- one crash ---------------------------------------------------------------------------------

    async def survive(self) -> None:
        """I8: what a host that crashes has owned is taken within a lease and an interval."""
        fleet = self.fleet
        owners = [host for host in fleet.hosts.values() if host.face.engine.owned]
        if len(fleet.hosts) < 2 or not owners:
            return
        victim = self.rng.choice(owners)
        orphans = victim.face.engine.owned
        fleet.checks.record("host", f"{victim.process} is killed in good weather")
        fleet.crash(victim)
        # Sometimes somebody comes before the lease has run out, and asks the dead one.
        soon_s = self.rng.choice([0.1, 0.5, 1.5]) * fleet.options.lease_s
        coming = fleet.loop.create_task(self._come(soon_s))
        cycles = 1 + len(orphans) * self.slow
        bound_s = fleet.options.lease_s + cycles * self.interval_s + SLACK_S
        if not await self._until(lambda: not fleet.unowned(), bound_s):
            text = f"{' '.join(fleet.unowned())} of {victim.name} not taken in {bound_s:.0f} s"
            fleet.checks.add_violation("I8", text)
        await coming

    async def _come(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self.fleet.add()

    # -- one that comes, one that goes -------------------------------------------------------------

    async def replace(self) -> None:
        """I13: a newcomer asks, and who was asked leaves in that moment, as in a deployment."""
        fleet = self.fleet
        await fleet.add()
        if len(fleet.hub.partitions) >= len(fleet.hosts) > 1 and self.even:
            await self._until(lambda: bool(self._asked()), 3 * self.interval_s, QUICK_LOOKS)
        leaver = self.rng.choice(self._asked() or list(fleet.hosts.values()))
        fleet.checks.record("host", f"{leaver.process} is replaced")
        await fleet.leave(leaver)

    def _asked(self) -> list[Host]:
        """Hosts that somebody has asked for a partition."""
        rows, hosts = self.fleet.store.rows.values(), self.fleet.hosts
        return [hosts[row.owner] for row in rows if row.successor and row.owner in hosts]
