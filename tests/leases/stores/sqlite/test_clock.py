"""Ages in a lease file: the wall clock is set, the machine reboots."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumphouse.leases.model import nominate
from pumphouse.leases.stores.sqlite.clock import MachineTime, age_s, read_machine_time
from pumphouse.leases.stores.sqlite.store import MEMBER_KEPT_S, SqliteStore
from tests.leases.contract.calls import first, granted, members, rows
from tests.leases.contract.stores import GROUP
from tests.leases.stores.sqlite.lease_files import opened


class Machine:
    """A machine that the test reboots and whose wall clock it sets."""

    def __init__(self) -> None:
        self.boot, self.up_s, self.wall_s = "first", 5000.0, 1_700_000_000.0

    def __call__(self) -> MachineTime:
        return MachineTime(self.boot, self.up_s, self.wall_s)

    def run(self, seconds: float) -> None:
        self.up_s += seconds
        self.wall_s += seconds

    def restart(self, off_s: float) -> None:
        self.boot, self.up_s, self.wall_s = self.boot + "+", 1.0, self.wall_s + off_s


@pytest.mark.parametrize("jump_s", [-86400.0, 86400.0])
async def test_setting_the_wall_clock_changes_no_age(path: Path, jump_s: float) -> None:
    machine = Machine()
    async with SqliteStore(path, clock=machine) as store:
        await granted(store, nominate(await first(store, host="a"), "b", 30.0))
        await store.beat(GROUP, "a")
        machine.run(10)
        machine.wall_s += jump_s
        row = (await rows(store))["0"]
        assert (row.age_s, row.deadline_s) == (10, 20)
        assert (await members(store))["a"].age_s == 10


@pytest.mark.parametrize(
    ("off_s", "up_s", "age"),
    [
        (600.0, 1.0, 600.0),  # the wall clock shows how long it was off
        (-86400.0, 1.0, 1.0),  # the wall clock went back: at least the uptime
        (-86400.0, 45.0, 45.0),  # a lease expires at the latest this long after the boot
        (0.0, 90_000.0, 90_000.0),
    ],
)
async def test_after_a_reboot_an_age_is_never_too_short(
    path: Path, off_s: float, up_s: float, age: float
) -> None:
    machine = Machine()
    async with SqliteStore(path, clock=machine) as store:
        await first(store)
    machine.restart(off_s)
    machine.up_s = up_s
    async with SqliteStore(path, clock=machine) as store:
        assert (await rows(store))["0"].age_s == age


def test_without_a_boot_id_a_smaller_uptime_is_a_reboot() -> None:
    assert age_s(MachineTime("", 100.0, 1000.0), MachineTime("", 130.0, 5000.0)) == 30
    assert age_s(MachineTime("", 100.0, 1000.0), MachineTime("", 30.0, 5000.0)) == 4000


async def test_ages_count_by_the_machines_clock(path: Path) -> None:
    before = read_machine_time()
    async with opened(path) as store:
        await first(store)
        age = (await rows(store))["0"].age_s
    after = read_machine_time()
    assert before.boot == after.boot
    assert 0 <= age <= after.up_s - before.up_s


async def test_a_member_without_beats_for_a_day_is_removed(path: Path) -> None:
    machine = Machine()
    async with SqliteStore(path, clock=machine) as store:
        await store.beat(GROUP, "gone")
        machine.run(MEMBER_KEPT_S)
        await store.beat(GROUP, "here")
        assert sorted(await members(store)) == ["gone", "here"]
        machine.run(1)
        await store.beat(GROUP, "here")
        assert sorted(await members(store)) == ["here"]
