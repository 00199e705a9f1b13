"""Watch: checks the partitions of a host several times per renewal interval.

It renews leases that no cycle renewed in time, writes a changed state of a partition into its row,
and reports, cancels or gives up handlers that do not return. If a check runs late, something has
blocked the event loop or stopped the process. The watch reports that too.

    engine -> Watch -> lease table, reporter
              ^^^^^ this module
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from pumphouse.processor.handling.calls import HandlerCall
from pumphouse.processor.health.loop_gaps import (
    CAUSE_TODO,
    LOOP_BLOCKED,
    Cause,
    Gap,
    cause_of_expiry,
    late_limit_s,
)
from pumphouse.processor.health.row_changes import following_changes
from pumphouse.processor.options import CANCEL, GIVE_UP, ProcessorOptions
from pumphouse.processor.plan import Lease, due_on_watch
from pumphouse.processor.supervisor import PartitionSupervisor
from pumphouse.processor.term import Host


class Watch:
    """The watch of one host. `supervisors` is a mapping of the engine, which the engine changes.

    `check(now_s)` is called in every `look`, after expired leases were removed. `cpu_s` returns the
    CPU time that the process has used.
    """

    def __init__(
        self,
        host: Host,
        supervisors: Mapping[str, PartitionSupervisor],
        check: Callable[[float], None] = lambda now_s: None,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        self.host, self.supervisors, self.check = host, supervisors, check
        self.tick_s = tick_s(host.options)
        self._left_alone: dict[str, float] = {}  # partition -> until when it is not claimed
        # What was cancelled in the last `look`: partition, handler, and its call.
        self._cancelled: list[tuple[PartitionSupervisor, HandlerCall, object]] = []
        # `cpu_s`, and its result when the watch began to sleep.
        self._cpu_s, self._slept_with_cpu_s = cpu_s, 0.0
        self._due_s = math.inf  # when the watch should wake up; inf while it does not sleep
        self._gap: Gap | None = None  # the last one
        self.looked_s = host.clock.monotonic()  # when it last began to look
        host.leases.log.explain = self.explain

    async def run(self) -> None:
        async with following_changes(self.host):
            while True:
                await self._sleep()
                await self.look()

    async def _sleep(self) -> None:
        self._slept_with_cpu_s = self._cpu_s()
        self._due_s = self.host.clock.monotonic() + self.tick_s
        await self.host.clock.sleep(self.tick_s)
        self._notice(self.host.clock.monotonic())
        self._due_s = math.inf

    def _notice(self, now_s: float) -> None:
        """Report, once per sleep, that the watch is late: the event loop did not run."""
        late_s = now_s - self._due_s
        if late_s < late_limit_s(self.host.options):
            return
        self._due_s = math.inf
        cpu_s = self._cpu_s() - self._slept_with_cpu_s
        self._gap = gap = Gap(now_s, late_s, cpu_s, tuple(self._handlers(late_s)))
        handlers = ", ".join(gap.handlers) or None
        if gap.kind == LOOP_BLOCKED and handlers is None:
            handlers = "no handler: other code of this process"
        fields = {"seconds": late_s, "cpu_s": cpu_s, "handlers": handlers}
        self.host.reporter.occurred(gap.kind, None, None, **fields, todo=CAUSE_TODO[gap.kind])

    def _handlers(self, late_s: float) -> list[str]:
        """The coroutine handlers that had a batch for at least half of the delay `late_s`."""
        name = self.host.reporter.handler
        supervisors = list(self.supervisors.values())
        clients = [each.client for each in supervisors if each.client is not None]
        # Half is enough: `late_s` begins when the watch was due, and a handler that blocks the
        # loop may have started after that.
        return [f"{name} (partition {c.id})" for c in clients if c.coroutine_s() >= late_s / 2]

    def explain(self, lease: Lease, now_s: float) -> Cause:
        """Why a lease expired. Called when that is noticed, perhaps before the next `look`."""
        self._notice(now_s)
        unanswered, failures = (
            lease.renewal_sent_s > lease.since_s,
            self.host.reporter.host_failures,
        )
        return cause_of_expiry(lease.since_s, unanswered, self._gap, failures, self.host.options)

    async def look(self) -> None:
        """Remove expired leases, report stuck handlers, and renew the leases that are due."""
        leases, now_s = self.host.leases, self.host.clock.monotonic()
        self.looked_s = now_s
        leases.fence()
        for supervisor in self.supervisors.values():
            supervisor.observe()
        self._report_uncancelled()
        for supervisor in list(self.supervisors.values()):
            while (stuck := supervisor.stuck()) is not None:
                await self._act_on(supervisor, stuck)
        self.check(now_s)
        due = [lease.partition for lease in leases.held.values() if self._is_due(lease, now_s)]
        await leases.renew(due)

    async def _act_on(self, supervisor: PartitionSupervisor, call: HandlerCall) -> None:
        """Report a handler that has not returned, and do what `on_handler_timeout` selects."""
        action = self.host.options.on_handler_timeout
        if action == CANCEL and call.interrupt():
            self._cancelled.append((supervisor, call, call.attempt))
            return  # not reported here: the cancelled call is reported as a failed one
        self.host.reporter.failed("handler_stuck", supervisor.partition, call.stuck())
        if action == GIVE_UP:
            lease_s = self.host.options.lease_s
            self._left_alone[supervisor.partition] = self.host.clock.monotonic() + lease_s
            await supervisor.give_up_stuck()

    def _report_uncancelled(self) -> None:
        """Report handlers that still run after they were cancelled in the last `look`."""
        cancelled, self._cancelled = self._cancelled, []
        for supervisor, call, attempt in cancelled:
            calls = [] if supervisor.client is None else supervisor.client.handlers.all
            if call in calls and call.attempt == attempt and call.timer.runs:
                stuck = call.stuck()
                stuck.add_note("It was cancelled, and has not ended.")
                self.host.reporter.failed("handler_stuck", supervisor.partition, stuck)

    def left_alone(self) -> set[str]:
        """The partitions that were given up. They are not claimed here for one lease duration."""
        now_s = self.host.clock.monotonic()
        self._left_alone = {key: end_s for key, end_s in self._left_alone.items() if end_s > now_s}
        return set(self._left_alone)

    def _is_due(self, lease: Lease, now_s: float) -> bool:
        """Whether to renew now: the lease needs it, or the state in its row has changed."""
        changed = lease.row.state != self.state(lease.partition) and not lease.doubtful
        return changed or due_on_watch(lease, now_s, self.host.options)

    def state(self, partition: str) -> str:
        supervisor = self.supervisors.get(partition)
        return "" if supervisor is None else supervisor.state()


def tick_s(options: ProcessorOptions) -> float:
    """Seconds between two checks: short enough to renew in time and to notice stuck handlers."""
    return min(options.renew_s, options.handler_timeout_s or options.renew_s) / 4
