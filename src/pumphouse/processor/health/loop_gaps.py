"""Times in which the event loop of this process did not run, and what they explain. Pure.

    watch: a tick that is late -> Gap -> loop_blocked or process_suspended
    lease table: an expired lease -> cause_of_expiry -> partition_lost
                                     ^^^^^^^^^^^^^^^ this module

Code that blocks the event loop, a stopped process and a machine in standby look the same from
inside: a timer ends late. Only the CPU time that the process used meanwhile, and the handlers that
had a batch, distinguish them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pumphouse.processor.options import ProcessorOptions

LATE_S = 1.0  # shorter delays are normal on a busy machine
LATE_PART = 1 / 3  # of renew_s: a shorter delay does not endanger a lease
IDLE_PART = 0.1  # of a gap: a process that used less CPU time was hardly running

LOOP_BLOCKED, PROCESS_SUSPENDED = "loop_blocked", "process_suspended"
STORE_EVENTS = ("ownership_write_failed", "cycle_failed")
CAUSE_TODO = {
    LOOP_BLOCKED: "a coroutine handler must not block; use a plain function, which runs in a "
    "thread",
    PROCESS_SUSPENDED: "find out what stopped the process or the machine: SIGSTOP, a debugger, "
    "standby, or too little CPU time",
    "store_failed": "check the checkpoint store and the network between it and this host",
    "unknown": "check the checkpoint store, and code that blocks the event loop",
}


@dataclass(frozen=True, slots=True)
class Gap:
    """The event loop did not run for `seconds`, until `end_s`."""

    end_s: float
    seconds: float
    cpu_s: float
    handlers: tuple[str, ...]  # coroutine handlers that had a batch: `name (partition id)`

    @property
    def kind(self) -> str:
        idle = self.cpu_s < IDLE_PART * self.seconds
        return PROCESS_SUSPENDED if idle and not self.handlers else LOOP_BLOCKED

    def __str__(self) -> str:
        if self.kind == PROCESS_SUSPENDED:
            return (
                f"the process did not run for {self.seconds:.1f} s (it was stopped, or the machine "
                "was in standby)"
            )
        by = f" by {', '.join(self.handlers)}" if self.handlers else ""
        return f"the event loop was blocked for {self.seconds:.1f} s{by}"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a lease was not renewed in time: a kind for programs, and a text for people."""

    kind: str
    text: str

    @property
    def todo(self) -> str:
        return CAUSE_TODO[self.kind]


def late_limit_s(options: ProcessorOptions) -> float:
    """The delay beyond which a late tick is reported."""
    return max(LATE_S, LATE_PART * options.renew_s)


def cause_of_expiry(
    since_s: float,
    unanswered: bool,
    gap: Gap | None,
    store_failures: Mapping[str, Exception],
    options: ProcessorOptions,
) -> Cause:
    """Why a lease that runs since `since_s` was not renewed in time.

    `unanswered` means that a renewal was sent and the store has not confirmed it.
    """
    if gap is not None and gap.end_s < since_s:
        gap = None
    # A gap of this length leaves no time for a renewal.
    if gap is not None and gap.seconds >= options.lease_s - 2 * options.renew_s:
        return Cause(gap.kind, str(gap))
    error = next((store_failures[e] for e in STORE_EVENTS if e in store_failures), None)
    if error is not None:
        return Cause("store_failed", f"the checkpoint store failed ({error})")
    if unanswered:
        return Cause("store_failed", "the checkpoint store did not confirm the renewal")
    if gap is not None:
        return Cause(gap.kind, str(gap))
    return Cause("unknown", "no renewal was written in time")
