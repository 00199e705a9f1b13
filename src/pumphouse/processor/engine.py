"""The engine of a processor: cycles, renewals and pumps of one host, in one task group.

All three faces stand on it. A face gives it one coroutine, `serve(partition_client)`, which is
called for every partition that becomes ours and returns when that partition ends here:

    engine = Engine(connection, serve, group="$Default", store=store, strategy="steady")
    async with engine:              # start() ... stop(); stop is bounded by options.stop_s
        await engine.run()          # until cancelled; raises if the engine itself failed

    async def serve(partition: PartitionClient) -> None:
        async for batch in partition.batches():     # ends when the partition does
            ...
            await partition.checkpoint()
        partition.reason                            # shutdown, lost, hand-off

* `serve` runs once at a time per partition. Once it has returned, and not before, a partition that
  was asked for is handed over, or, when we stop, released.
* If it raises, or returns though the partition is still ours, that is reported, and after a
  back-off it is called again with a new client, which starts behind the checkpoint.
* `on_error(partition or None, exception)` hears of everything that went wrong; `on_ownership(word,
  partition)` of claimed, renewed, asked, lost and released. Neither may block.
* `pause(partition)` and `resume(partition)` (None: all) keep ownership. `owned`, `settled`, `host`,
  `options`, `last_report` tell how it stands. `abandon()` ends like a crash: nothing is released.

    connect, store -> Engine -> Cycle, watch -> LeaseTable -> OwnershipTerm, Pump -> serve
                      ^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from random import Random
from typing import Any, Self

from pumphouse.client.base import DEFAULT_GROUP, ConnectionString, HubClient
from pumphouse.client.factory import open_client
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import OptionError, OwnershipLost, PumphouseError, StoreError
from pumphouse.leases.model import Group
from pumphouse.leases.store import CheckpointStore, SupportsInitialise
from pumphouse.leases.strategies import Strategy, limited, parse_strategy
from pumphouse.processor.cycle import Cycle, Report
from pumphouse.processor.lease_table import LeaseTable
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.plan import Lease, Outcome, due_on_watch, next_delay, reconcile
from pumphouse.processor.pump import House, Serve
from pumphouse.processor.supervisor import PartitionSupervisor
from pumphouse.processor.term import StopReason, to_end

log = logging.getLogger("pumphouse.processor")

Connect = str | ConnectionString | Callable[[], HubClient]
OnError = Callable[[str | None, Exception], Awaitable[None] | None]
OnOwnership = Callable[[str, str], None]

TWO_OF_A_NAME = "another host calls itself {!r} too; give every host a name of its own"
STOPPED_EARLY = "{} was stopped while it started"


class Engine:
    """One host: it owns partitions with others and serves what it owns."""

    def __init__(
        self,
        connect: Connect,
        serve: Serve,
        *,
        store: CheckpointStore,
        group: str = DEFAULT_GROUP,
        strategy: str | Strategy = "steady",
        host: str = "",
        options: ProcessorOptions | None = None,
        on_error: OnError | None = None,
        on_ownership: OnOwnership | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self.options = options or ProcessorOptions()
        self.rng = rng or Random()
        self.host = host or f"host-{self.rng.getrandbits(32):08x}"
        self.strategy = choose_strategy(strategy, self.options.max_partitions)
        self.clock: Clock = clock or SystemClock()
        self.last_report: Report | None = None
        self._connect, self._serve, self._store, self._group = connect, serve, store, group
        self._on_error, self._on_ownership = on_error, on_ownership
        self._opened = AsyncExitStack()
        self._starting: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[bool] | None = None
        self._stopping = asyncio.Event()
        self._supervisors: dict[str, PartitionSupervisor] = {}
        self._paused: set[str] = set()
        self._all_paused = False
        self._telling: set[asyncio.Future[Any]] = set()  # callbacks that are coroutines

    def __repr__(self) -> str:
        owned = " ".join(self.owned) or "nothing"
        state = "settled" if self.settled else "unsettled"
        return f"<Engine {self.host} | owns {owned} | {self.pumps} pumps | {state}>"

    # -- how it stands ----------------------------------------------------------------------------

    @property
    def owned(self) -> tuple[str, ...]:
        """The partitions that are ours now."""
        held = self._house.leases.held if self._running is not None else {}
        return tuple(sorted(held, key=lambda p: (len(p), p)))

    @property
    def pumps(self) -> int:
        return len(self._supervisors)

    @property
    def settled(self) -> bool:
        """Whether the last cycle left nothing to do."""
        return self.last_report is not None and self.last_report.settled

    # -- starting and stopping --------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Connect, and go on in the background. Raises what makes that impossible."""
        if self._running is not None:
            raise OptionError(f"{self.host} was started already; make a new one to start again")
        if self._starting is not None:
            raise OptionError(f"{self.host} is being started already")
        self._stopping.clear()
        self._starting = asyncio.create_task(self._open(), name=f"start {self.host}")
        try:
            await self._starting
        except asyncio.CancelledError:
            await self._close()  # it may have opened everything a moment ago
            if to_end():
                raise
            raise OptionError(STOPPED_EARLY.format(self.host)) from None
        finally:
            self._starting = None
        self._running = asyncio.create_task(self._run(), name=f"pumphouse {self.host}")

    async def _open(self) -> None:
        async with AsyncExitStack() as undo:
            await undo.enter_async_context(self._store)
            client = self._connect() if callable(self._connect) else open_client(self._connect)
            await undo.enter_async_context(client)
            partitions = (await client.properties()).partitions
            self._house = self._furnish(client)
            if isinstance(self._store, SupportsInitialise):
                await self._store.initialise(self._house.group, partitions)
            self._cycle = Cycle(self._house, self.strategy, partitions)
            if self._stopping.is_set():
                raise OptionError(STOPPED_EARLY.format(self.host))
            self._opened = undo.pop_all()

    def closes(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call this too when we close, before the client and the store are closed."""
        self._opened.push_async_callback(close)

    def _furnish(self, client: HubClient) -> House:
        group = Group(client.namespace, client.hub, self._group)
        leases = LeaseTable(self._store, group, self.host, self.options, self.clock, self)
        return House(
            client,
            self._store,
            group,
            self.host,
            self.options,
            self.clock,
            self.rng,
            leases,
            self.report,
        )

    async def run(self) -> None:
        """Until cancelled, or until the engine has stopped; raises why if it failed."""
        if self._running is None:
            raise OptionError(f"{self.host} was not started")
        await asyncio.wait([self._running])
        if not self._running.cancelled():
            self._running.result()

    async def stop(self) -> None:
        """Finish what is in hand, checkpoint, release, leave. Bounded, whatever handlers do.

        A start under way is called off. A handler that calls this is itself in hand: to a handler
        it returns at once, and we end when the handler has.
        """
        if self._starting is not None:
            await self._call_off(self._starting)
        if self._running is None:
            return
        self._stopping.set()
        self._house.leases.doubts.set()  # ends the wait for the next cycle
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(self._running), name=f"end {self.host}")
        if (caller := asyncio.current_task()) is not None:
            self._telling.discard(caller)  # a callback that waits for us is not waited for
        # Whoever stops waiting does not keep us from ending.
        if not self._is_serving(caller) and await asyncio.shield(self._ending):
            await self.run()

    def _is_serving(self, task: asyncio.Task[Any] | None) -> bool:
        return task in [supervisor.task for supervisor in self._supervisors.values()]

    async def _call_off(self, starting: asyncio.Task[None]) -> None:
        """Let a start close what it has opened; one that hangs is cut short."""
        self._stopping.set()
        _, late = await asyncio.wait([starting], timeout=self.options.store_s)
        if late:
            starting.cancel()
            await asyncio.wait([starting], timeout=self.options.store_s)

    async def _end(self, running: asyncio.Task[None]) -> bool:
        """Wait until everything was left in good order, or cut it short; whether it was in time."""
        bound_s = self.options.stop_s + 4 * self.options.store_s
        _, late = await asyncio.wait([running], timeout=bound_s)
        if late:
            running.cancel()
            log.warning("stop host=%s was cut short after %.0f s", self.host, bound_s)
        await self._close()
        return not late

    def abandon(self) -> None:
        """End at once, as a crash would: handlers are cancelled and nothing is released."""
        if self._starting is not None:
            self._starting.cancel()
        if self._running is not None:
            self._running.cancel()

    async def _close(self) -> None:
        """Close the client and the store, within a deadline."""
        opened, self._opened = self._opened, AsyncExitStack()
        if self._telling:
            await asyncio.wait(self._telling, timeout=self.options.store_s)
        try:
            async with asyncio.timeout(self.options.store_s):
                await opened.aclose()
        except (TimeoutError, PumphouseError) as failed:
            self.report(None, failed)

    # -- the body ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as self._tasks:
                watching = self._tasks.create_task(self._watch(), name=f"watch {self.host}")
                cycling = self._tasks.create_task(self._cycles(), name=f"cycles {self.host}")
                await self._stopping.wait()
                # A claim under way is worth waiting for: cut short, its row waits to expire.
                await asyncio.wait([cycling], timeout=self.options.store_s)
                cycling.cancel()
                await self._drain()
                watching.cancel()
        except ExceptionGroup as failed:
            self.report(None, failed)
            raise
        await self._leave()

    async def _cycles(self) -> None:
        while not self._stopping.is_set():
            self._house.leases.doubts.clear()
            started_s = self.clock.monotonic()
            try:
                report = await self._cycle.once(self._busy())
            except (TimeoutError, PumphouseError) as failed:
                self.report(None, failed)
                outcome = Outcome(self.clock.monotonic() - started_s)
            else:
                self.last_report, outcome = report, report.outcome
                log.log(logging.INFO if report.changed else logging.DEBUG, "%s", report)
            self._reconcile()
            await self._rest(next_delay(outcome, self.options, self.rng))

    def _busy(self) -> set[str]:
        return self._supervisors.keys() - self._house.leases.held.keys()

    async def _rest(self, delay_s: float) -> None:
        """Wait for the next cycle; it comes early if we are to stop or something is in doubt."""
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._house.leases.doubts.wait()

    async def _watch(self) -> None:
        """Renew what no cycle renewed in time, and see whether a handler is stuck."""
        leases, options = self._house.leases, self.options
        tick_s = min(options.renew_s, options.handler_timeout_s or options.renew_s) / 4
        while True:
            await self.clock.sleep(tick_s)
            leases.fence()
            now_s = self.clock.monotonic()
            held = list(leases.held.values())
            self._look_for_stuck()
            await leases.renew([h.partition for h in held if due_on_watch(h, now_s, options)])

    def _look_for_stuck(self) -> None:
        for supervisor in self._supervisors.values():
            if (stuck := supervisor.stuck()) is not None:
                self.report(supervisor.partition, stuck)

    async def _drain(self) -> None:
        """Let every pump finish its batch and give its partition up; those that are late wait."""
        for supervisor in self._supervisors.values():
            supervisor.term.stop(StopReason.SHUTDOWN)
        if tasks := {supervisor.task for supervisor in self._supervisors.values()}:
            await asyncio.wait(tasks, timeout=self.options.stop_s)
        for supervisor in list(self._supervisors.values()):
            self.report(supervisor.partition, supervisor.why_late())
            supervisor.task.cancel()
        await self._release(sorted(self._house.leases.held.keys() - self._supervisors.keys()))

    async def _release(self, partitions: Iterable[str]) -> None:
        """Give up what has no pump: it was claimed while we were about to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.options.store_s):
                await asyncio.gather(*map(self._give_up, partitions))

    async def _give_up(self, partition: str) -> None:
        if await self._house.leases.give_up(partition):
            self._tell("released", partition)

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(self.options.store_s):
                await self._store.leave(self._house.group, self.host)
        except (TimeoutError, StoreError) as failed:
            self.report(None, failed)

    # -- pumps ------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Every partition of ours has a pump. One that is not ours any more is on its way out."""
        if self._stopping.is_set():
            return
        self._house.leases.fence()  # a lease that has run out by now starts nothing
        start, _ = reconcile(self._house.leases.held.keys(), self._supervisors.keys())
        for partition in start:
            self._start(self._house.leases.held[partition])

    def _start(self, lease: Lease) -> None:
        supervisor = PartitionSupervisor(self._house, lease, self._serve, self.is_paused)
        self._supervisors[lease.partition] = supervisor
        supervisor.task = self._tasks.create_task(
            self._tend(supervisor), name=f"pump {lease.partition} of {self.host}"
        )
        if lease.row.successor:
            self.asked_for(lease)

    async def _tend(self, supervisor: PartitionSupervisor) -> None:
        try:
            if await supervisor.run():
                self._tell("released", supervisor.partition)
        finally:
            del self._supervisors[supervisor.partition]
        # It may have come back to us while its old pump was still leaving.
        self._reconcile()

    def is_paused(self, partition: str) -> bool:
        return self._all_paused or partition in self._paused

    def pause(self, partition: str | None = None) -> None:
        """Hand out no more batches, of one partition or of all; what we own stays ours."""
        if partition is None:
            self._all_paused = True
        else:
            self._paused.add(partition)
        self._apply_pauses()

    def resume(self, partition: str | None = None) -> None:
        """Go on, with one partition or with all. One that poison stopped is started again."""
        if partition is None:
            self._all_paused = False
            self._paused.clear()
        else:
            self._paused.discard(partition)
        self._apply_pauses()
        for supervisor in self._supervisors.values():
            if partition in (None, supervisor.partition):
                supervisor.unpark()

    def _apply_pauses(self) -> None:
        for supervisor in self._supervisors.values():
            supervisor.apply_pause()

    # -- what leases tell us --------------------------------------------------------------------

    def gained(self, lease: Lease) -> None:
        self._tell("claimed", lease.partition)
        self._reconcile()

    def renewed(self, lease: Lease) -> None:
        self._tell("renewed", lease.partition)

    def raised(self, lease: Lease) -> None:
        """Our own raise took effect: the same stay goes on with it, and loses nothing."""
        if (supervisor := self._supervisors.get(lease.partition)) is not None:
            supervisor.term.follow(lease.row.epoch)

    def asked_for(self, lease: Lease) -> None:
        supervisor = self._supervisors.get(lease.partition)
        if supervisor is not None and self.strategy.yields and supervisor.term.reason is None:
            self._tell("asked", lease.partition)
            supervisor.term.stop(StopReason.HAND_OFF)

    def lost(self, partition: str, why: OwnershipLost) -> None:
        log.info("lose partition=%s epoch=%d by=%s", partition, why.held_epoch, why.owner or "-")
        if why.owner == self.host:
            self.report(partition, OptionError(TWO_OF_A_NAME.format(self.host)))
        self._cycle.lost.append(partition)
        supervisor = self._supervisors.get(partition)
        if supervisor is not None and supervisor.term.epoch <= why.held_epoch:
            supervisor.term.stop(StopReason.LOST)
        self._tell("lost", partition)

    def _tell(self, word: str, partition: str) -> None:
        if self._on_ownership is not None:
            self._call(self._on_ownership, word, partition)

    # -- errors -----------------------------------------------------------------------------------

    def report(self, partition: str | None, failed: Exception) -> None:
        """Say what went wrong, in the log and to whoever asked to hear it."""
        place = "" if partition is None else f" partition={partition}"
        log.warning("failed host=%s%s %s: %s", self.host, place, type(failed).__name__, failed)
        if self._on_error is not None:
            self._call(self._on_error, partition, failed)

    def _call(self, callback: Callable[..., Any], *args: object) -> None:
        """Call something of the user's that is to hear of something, and survive it."""
        try:
            told = callback(*args)
        except Exception:
            log.exception("a callback failed host=%s", self.host)
            return
        if inspect.isawaitable(told):
            telling = asyncio.ensure_future(told)
            self._telling.add(telling)
            telling.add_done_callback(self._told)

    def _told(self, telling: asyncio.Future[Any]) -> None:
        self._telling.discard(telling)
        if not telling.cancelled() and (failed := telling.exception()) is not None:
            log.error("a callback failed host=%s", self.host, exc_info=failed)


def choose_strategy(strategy: str | Strategy, max_partitions: int | None) -> Strategy:
    if isinstance(strategy, Strategy):
        return limited(strategy, max_partitions)
    return parse_strategy(strategy, max_partitions)
