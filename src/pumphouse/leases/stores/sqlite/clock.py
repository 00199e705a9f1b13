"""The clock of a lease file: a time that all processes of one machine share.

Ages must not jump when the wall clock is set. A running kernel counts the seconds since its boot,
sleep included, the same for every process. That count measures ages within one boot. An age across
a boot comes from the wall clock, and is at least the present uptime. It may be wrong, which does no
harm: every process that held a lease before the boot has ended.

    SqliteStore -> read_machine_time -> MachineTime -> age_s
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MachineTime:
    """An instant on one machine."""

    boot: str  # the id of the boot; "" where the system has none
    up_s: float  # since that boot
    wall_s: float  # since 1970, by the wall clock


def age_s(then: MachineTime, now: MachineTime) -> float:
    """The seconds from `then` to `now`.

    Within one boot this is the difference of the kernel's counts. After a reboot at least the
    present uptime has passed, and the wall clock may show more.
    """
    if then.boot == now.boot and then.up_s <= now.up_s:
        return now.up_s - then.up_s
    return max(now.up_s, now.wall_s - then.wall_s)


def read_machine_time() -> MachineTime:
    # macOS has no CLOCK_BOOTTIME, but its monotonic clock is the same for every process too.
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return MachineTime(_boot(), time.clock_gettime(clock), time.time())


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
