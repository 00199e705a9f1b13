"""What time is it, for processes that share one machine and a file?

Ages must not jump when somebody sets the clock on the wall. A running kernel counts the seconds
since it started, sleep included, the same for every process: that count measures ages within one
run of the machine. Across a restart it says nothing, but then every process that held a lease has
ended, so an age may be taken for too long and never for too short.

    sqlite -> read_machine_time -> MachineTime -> age_s
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MachineTime:
    """A moment of one machine."""

    boot: str  # which run of the machine; "" where it cannot be told
    up_s: float  # since that run began
    wall_s: float  # since 1970, as the clock on the wall has it


def age_s(then: MachineTime, now: MachineTime) -> float:
    """How long ago a moment was.

    Within one run of the machine that is the kernel's count. If the machine was started anew since,
    at least the present run has passed, and the clock on the wall may know of more.
    """
    if then.boot == now.boot and then.up_s <= now.up_s:
        return now.up_s - then.up_s
    return max(now.up_s, now.wall_s - then.wall_s)


def read_machine_time() -> MachineTime:
    # macOS has no such clock, but its monotonic one is the same for every process too.
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return MachineTime(_boot(), time.clock_gettime(clock), time.time())


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
