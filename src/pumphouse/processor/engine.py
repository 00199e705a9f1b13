"""The engine of a processor: cycles, renewals and pumps of one host, in one task group.

All three processor APIs use it. An API gives it one coroutine, `serve(partition_client)`, which is
called for every partition that becomes ours and returns when this host stops serving it:

    engine = Engine(connection, serve, group="$Default", store=store, strategy="steady")
    async with engine:              # start() ... stop(); stop is bounded by options.stop_s
        await engine.run()          # until stopped or cancelled; raises if the engine failed

    async def serve(partition: PartitionClient) -> None:
        async for batch in partition.batches():     # ends when the partition does
            ...
            await partition.checkpoint()
        partition.reason                            # shutdown, lost, hand-off

The objects of a host, and (below the line) of one partition:

    Engine --- Cycle           renews, lists, decides and claims
       |------ LeaseTable      the only writer of ownership rows; one Lease per partition
       |------ Reporter        the log, on_error and on_ownership
    ---|------------------------------------------------------------------------------------------
       PartitionSupervisor     restarts the pump, then gives the partition up
          |--- OwnershipTerm   may we still act as the owner, and if not, why
          Pump                 stamps the checkpoint, reads events, raises epochs
             |- CheckpointWriter   writes the checkpoint, fenced by the epoch (leases)
             PartitionClient   what `serve` gets: batches in, checkpoints out

* `serve` runs once at a time per partition. A partition that was requested, or that we leave, is
  handed over or released only after `serve` has returned.
* If `serve` raises, or returns while the partition is still ours, that is reported. After a
  back-off it is called again with a new client, which starts after the checkpoint.
* `on_error(partition or None, exception)` is called with every failure, `on_ownership(change,
  partition)` with every change (see reporting.py). Neither may block.
* `pause` and `resume` keep ownership. `abandon()` ends like a crash: nothing is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from random import Random
from typing import Self

from pumphouse.client.base import DEFAULT_GROUP, ConnectionString, HubClient
from pumphouse.client.factory import open_client
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import HandlerStuck, OptionError, OwnershipLost, PumphouseError, StoreError
from pumphouse.leases.model import Group
from pumphouse.leases.store import CheckpointStore, SupportsInitialise
from pumphouse.leases.strategies import Strategy, choose_strategy
from pumphouse.processor import reporting
from pumphouse.processor.checks.opening import open_hub, open_store
from pumphouse.processor.checks.permanent import PermanentFailures
from pumphouse.processor.checks.values import check_partitions
from pumphouse.processor.cycle import CLOSE, WRITE_MEMBER, Cycle, CycleReport, names
from pumphouse.processor.handling.cancellation import OwnedTasks, is_cancelled
from pumphouse.processor.handling.pauses import Pauses
from pumphouse.processor.health.watch import Watch
from pumphouse.processor.lease_table import LeaseTable
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.plan import Lease, Outcome, next_delay, pumps_to_start
from pumphouse.processor.pump import Serve
from pumphouse.processor.recording.choice import recorder_of
from pumphouse.processor.reporting import OnError, OnOwnership, Reporter
from pumphouse.processor.supervisor import PartitionSupervisor
from pumphouse.processor.term import StopReason, hub_within, store_within

Connect = str | ConnectionString | Callable[[], HubClient]

NAME_SHARED = "another host is named {!r} too; give every host a name of its own"
STOPPED_EARLY = "{} was stopped while it started"


class Engine:
    """One host: it shares the partitions of a hub with other hosts, and serves those it owns."""

    client: HubClient  # these five are set when `start` has connected
    group: Group
    leases: LeaseTable
    cycle: Cycle
    watch: Watch

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
        self.name = host or f"host-{self.rng.getrandbits(32):08x}"
        self.strategy = choose_strategy(strategy, self.options.max_partitions)
        self.clock: Clock = clock or SystemClock()
        self._plain_store = self.store = store
        self.reporter = Reporter(self.name, on_error, on_ownership, self.clock)
        self.last_report: CycleReport | None = None
        self._permanent = PermanentFailures(self.name, self.options.give_up_s)
        self._connect, self._serve, self._group_name = connect, serve, group
        self._opened, self.tasks = AsyncExitStack(), OwnedTasks()
        self._starting: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[bool] | None = None
        self.stopping = asyncio.Event()
        self._supervisors: dict[str, PartitionSupervisor] = {}
        self.pauses = Pauses()

    def __repr__(self) -> str:
        owned = " ".join(self.owned) or "nothing"
        state = "settled" if self.settled else "unsettled"
        return f"<Engine {self.name} | owns {owned} | {self.pumps} pumps | {state}>"

    @property
    def host(self) -> str:
        """The name of this host."""
        return self.name

    @property
    def owned(self) -> tuple[str, ...]:
        """The partitions that are ours now."""
        held = self.leases.held if self._running is not None else {}
        return tuple(sorted(held, key=lambda p: (len(p), p)))

    @property
    def pumps(self) -> int:
        return len(self._supervisors)

    @property
    def settled(self) -> bool:
        """Whether the last cycle left nothing to do."""
        return self.last_report is not None and self.last_report.settled

    @property
    def ended(self) -> bool:
        return self._running is not None and self._running.done()

    # -- starting and stopping --------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Connect, and continue in the background. Raises if the host cannot start."""
        if self._running is not None:
            raise OptionError(f"{self.name} was started already; make a new one to start again")
        if self._starting is not None:
            raise OptionError(f"{self.name} is being started already")
        self.stopping.clear()
        self._starting = asyncio.create_task(self._open(), name=f"start {self.name}")
        try:
            await self._starting
        except asyncio.CancelledError:
            await self._close()  # the cancelled start may have opened everything already
            if is_cancelled():
                raise
            raise OptionError(STOPPED_EARLY.format(self.name)) from None
        finally:
            self._starting = None
        self._running = asyncio.create_task(self._run(), name=f"pumphouse {self.name}")
        self._log_joined()

    async def _open(self) -> None:
        self.reporter.recorder = recorder_of(self.name, self.clock)
        self.store = self.reporter.recorder.metered(self._plain_store)
        async with AsyncExitStack() as undo:
            await open_store(undo, self.store)
            self.client = self._connect() if callable(self._connect) else open_client(self._connect)
            partitions = await open_hub(undo, self.client, self._group_name)
            check_partitions("starts", self.options.starts, partitions, self.client.hub)
            self.group = Group(self.client.namespace, self.client.hub, self._group_name)
            self.leases = LeaseTable(
                self.store, self.group, self.options, self.clock, self, self.reporter
            )
            self.leases.log.grabs = self.strategy.grabs
            undo.callback(self.reporter.recorder.close)
            self.reporter.recorder.open(self.group, self.leases, self._supervisors)
            if isinstance(self.store, SupportsInitialise):
                await self.store.initialise(self.group, partitions)
            self.cycle = Cycle(self, self.strategy, partitions)
            self.watch = Watch(self, self._supervisors, self._stop_if_permanent)
            if self.stopping.is_set():
                raise OptionError(STOPPED_EARLY.format(self.name))
            self._opened = undo.pop_all()

    def _log_joined(self) -> None:
        fields = {"hub": self.group.hub, "group": self.group.name, "strategy": self.strategy.name}
        sizes = {"partitions": len(self.cycle.partitions), "lease_s": self.options.lease_s}
        self.reporter.info("host_joined", **fields, **sizes)

    def call_on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call this too when the host closes, before client and store are closed."""
        self._opened.push_async_callback(close)

    async def run(self) -> None:
        """Wait until the engine has stopped; raises if it failed. If cancelled, stop it first."""
        try:
            await self.wait()
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def wait(self) -> None:
        """Wait until the engine has stopped; raises if it failed."""
        if self._running is None:
            raise OptionError(
                f"{self.name} was not started: call start(), or give run() a function"
            )
        await asyncio.wait([self._running])
        if not self._running.cancelled():
            self._running.result()

    async def stop(self) -> None:
        """Finish the current batches, checkpoint, release, leave. Bounded, even if handlers hang.

        A start under way is cancelled. If a handler calls this, it returns at once: the engine
        stops after that handler has returned, because its batch is a current one too.
        """
        if self._starting is not None:
            await self._cancel_start(self._starting)
        if self._running is None:
            return
        if self._running.get_loop() is not asyncio.get_running_loop():
            raise OptionError(
                f"stop() of {self.name} was called in another event loop: call it in the loop that "
                "runs it, with asyncio.run_coroutine_threadsafe(processor.stop(), loop)"
            )
        self._begin_stop()
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(self._running), name=f"end {self.name}")
        caller = asyncio.current_task()
        self.reporter.ignore(caller)  # a callback that awaits stop() is not awaited by it
        # Shielded: if the caller is cancelled, the engine still stops.
        if not self.is_served_by(caller) and await asyncio.shield(self._ending):
            await self.wait()

    def is_served_by(self, task: asyncio.Task[object] | None) -> bool:
        """Whether this task calls handlers of one of our partitions."""
        return any(served.is_served_by(task) for served in self._supervisors.values())

    def _begin_stop(self) -> None:
        self.stopping.set()
        self.leases.listing_needed.set()  # ends the wait for the next cycle

    async def _cancel_start(self, starting: asyncio.Task[None]) -> None:
        """Let a start close what it has opened; one that hangs is cancelled."""
        self.stopping.set()
        _, late = await asyncio.wait([starting], timeout=self.options.store_s)
        if late:
            starting.cancel()
            await asyncio.wait([starting], timeout=self.options.store_s)

    async def _end(self, running: asyncio.Task[None]) -> bool:
        """Wait for a clean end and cancel after a deadline; True if the end was clean."""
        limit_s = self.options.stop_s + 4 * self.options.store_s
        _, late = await asyncio.wait([running], timeout=limit_s)
        if late:
            running.cancel()
            owned = names(self.owned)
            self.reporter.warning("host_stop_timed_out", limit_s=limit_s, partitions=owned)
        await self._close()
        return not late

    def abandon(self) -> None:
        """End at once, like a crash: handlers are cancelled and nothing is released."""
        if self._starting is not None:
            self._starting.cancel()
        if self._running is not None:
            self._running.cancel()
        self.reporter.recorder.close()

    async def _close(self) -> None:
        """Close the client and the store, within a deadline."""
        opened, self._opened = self._opened, AsyncExitStack()
        await self.reporter.wait(self.options.store_s)
        try:
            async with hub_within(self.options.store_s, CLOSE, "the hub or the store"):
                await opened.aclose()
        except PumphouseError as error:
            self.reporter.failed("host_close_failed", None, error)

    # -- running ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            async with self.tasks:
                watching = self.tasks.create_task(self.watch.run(), name=f"watch {self.name}")
                cycling = self.tasks.create_task(self._cycles(), name=f"cycles {self.name}")
                await self.stopping.wait()
                # Wait for a claim under way: if it were cancelled, its row would have to expire.
                await asyncio.wait([cycling], timeout=self.options.store_s)
                cycling.cancel()
                await self._drain()
                watching.cancel()
        except ExceptionGroup as error:
            self.reporter.failed("host_failed", None, error)
            raise
        await self._leave()
        if self._permanent.error is not None:
            raise self._permanent.error

    async def _cycles(self) -> None:
        while not self.stopping.is_set():
            self.leases.listing_needed.clear()
            started_s = self.clock.monotonic()
            try:
                busy = self._supervisors.keys() - self.leases.held.keys()
                report = await self.cycle.once(busy | self.watch.left_alone())
            except (TimeoutError, PumphouseError) as error:
                self.reporter.failed("cycle_failed", None, error)
                outcome = Outcome(self.clock.monotonic() - started_s)
            else:
                self.reporter.recovered("cycle_failed")
                self.last_report, outcome = report, report.outcome
                self.reporter.debug("cycle_completed", **report.log_fields())
            self.reporter.recorder.completed_cycle(outcome.elapsed_s)
            self._start_pumps()
            await self._rest(next_delay(outcome, self.options, self.rng))

    async def _rest(self, delay_s: float) -> None:
        """Wait for the next cycle; it comes early if we stop or a listing is needed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self.leases.listing_needed.wait()

    def _stop_if_permanent(self, now_s: float) -> None:
        """End after failures that do not pass by themselves."""
        if self._permanent.have_lasted(self.reporter, self.leases.held, now_s):
            self._begin_stop()

    async def _drain(self) -> None:
        """Let every pump finish its batch and give its partition up; cancel those that are late."""
        for supervisor in self._supervisors.values():
            supervisor.term.stop(StopReason.SHUTDOWN)
        if tasks := {supervisor.task for supervisor in self._supervisors.values()}:
            await asyncio.wait(tasks, timeout=self.options.stop_s)
        for supervisor in list(self._supervisors.values()):
            if (error := supervisor.why_late()) is not None:
                event = "handler_stuck" if isinstance(error, HandlerStuck) else "release_failed"
                self.reporter.failed(event, supervisor.partition, error)
            self.tasks.cancel(supervisor.task)
        await self._release(sorted(self.leases.held.keys() - self._supervisors.keys()))

    async def _release(self, partitions: Iterable[str]) -> None:
        """Give up partitions without a pump: they were claimed while the host began to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.options.store_s):
                await asyncio.gather(*map(self.leases.give_up, partitions))

    async def _leave(self) -> None:
        try:
            async with store_within(self.options.store_s, WRITE_MEMBER):
                await self.store.leave(self.group, self.name)
        except StoreError as error:
            self.reporter.failed("membership_write_failed", None, error)
        self.reporter.info("host_left", hub=self.group.hub, group=self.group.name)

    # -- pumps ------------------------------------------------------------------------------------

    def _start_pumps(self) -> None:
        """Start a pump for every partition that is ours and has none."""
        if self.stopping.is_set():
            return
        self.leases.fence()  # an expired lease starts nothing
        for partition in pumps_to_start(self.leases.held.keys(), self._supervisors.keys()):
            self._start_pump(self.leases.held[partition])

    def _start_pump(self, lease: Lease) -> None:
        supervisor = PartitionSupervisor(self, lease, self._serve, self.pauses.__contains__)
        self._supervisors[lease.partition] = supervisor
        name = f"pump {lease.partition} of {self.name}"
        supervisor.task = self.tasks.create_task(self._supervise(supervisor), name=name)
        if lease.row.successor:
            self.requested(lease)

    async def _supervise(self, supervisor: PartitionSupervisor) -> None:
        try:
            await supervisor.run()
        finally:
            del self._supervisors[supervisor.partition]
        # The partition may have become ours again while its old pump was still ending.
        self._start_pumps()

    def pause(self, partition: str | None = None) -> None:
        """Hand out no more batches, of one partition or of all; what we own stays ours."""
        self.pauses.pause(partition)
        for supervisor in self._supervisors.values():
            supervisor.apply_pause()

    def resume(self, partition: str | None = None) -> None:
        """Hand out batches again. A partition that poison has stopped is started again."""
        self.pauses.resume(partition)
        for supervisor in self._supervisors.values():
            supervisor.apply_pause()
            if partition in (None, supervisor.partition):
                supervisor.resume()

    # -- called by the lease table ----------------------------------------------------------------

    def gained(self, lease: Lease) -> None:
        self.reporter.changed(reporting.CLAIMED, lease.partition)
        self._start_pumps()

    def renewed(self, lease: Lease) -> None:
        self.reporter.changed(reporting.RENEWED, lease.partition)

    def epoch_raised(self, lease: Lease) -> None:
        """Our raise of the epoch took effect, but its response was lost: the term continues."""
        if (supervisor := self._supervisors.get(lease.partition)) is not None:
            supervisor.term.follow(lease.row.epoch)

    def requested(self, lease: Lease) -> None:
        supervisor = self._supervisors.get(lease.partition)
        if supervisor is None or not self.strategy.yields or supervisor.term.reason is not None:
            return
        self.leases.log.requested(lease, self.clock.monotonic())
        self.reporter.changed(reporting.REQUESTED, lease.partition)
        supervisor.term.stop(StopReason.HAND_OFF)

    def state(self, partition: str) -> str:
        """What our row reports of a partition: "" if it is served."""
        supervisor = self._supervisors.get(partition)
        return "" if supervisor is None else supervisor.state()

    def resumed(self, lease: Lease) -> None:
        """An operator has requested that a partition stopped by poison is resumed."""
        if (supervisor := self._supervisors.get(lease.partition)) is not None:
            self.reporter.info("partition_resumed", partition=lease.partition)
            supervisor.resume()

    def lost(self, partition: str, error: OwnershipLost) -> None:
        if error.owner == self.name:
            shared = OptionError(NAME_SHARED.format(self.name))
            self.reporter.failed("host_name_shared", partition, shared)
        self.cycle.lost.append(partition)
        if (served := self._supervisors.get(partition)) and served.term.epoch <= error.held_epoch:
            served.term.stop(StopReason.LOST)
        self.reporter.changed(reporting.LOST, partition)
