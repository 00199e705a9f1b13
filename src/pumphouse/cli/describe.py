"""`pumphouse groups describe`: owner, lag and health of every partition of a consumer group."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    DURATION_TYPE,
    LEASE_OF_HOSTS,
    connection_option,
    hub_option,
    lease_option,
    output_option,
    store_option,
)

if TYPE_CHECKING:
    from pumphouse.cli.common.group_access import GroupAccess
    from pumphouse.processor.admin.overview import Overview, PartitionRow

HEADERS = (
    "PARTITION",
    "OWNER",
    "EPOCH",
    "LEASE",
    "CHECKPOINT",
    "END",
    "LAG",
    "LAG-TIME",
    "STATUS",
)
# Hosts write checkpoints every few seconds. So a checkpoint is stuck only if it is unchanged for a
# longer time.
COMPARE_S = 30.0


@click.command(short_help="Show owner, lag and health of every partition.")
@click.argument("group")
@hub_option
@connection_option
@store_option
@lease_option(LEASE_OF_HOSTS)
@click.option("--watch", is_flag=True, help="Update the table until Ctrl-C.")
@click.option(
    "--every", type=DURATION_TYPE, default="2s", show_default=True, help="Interval of --watch."
)
@output_option
def describe(
    group: str,
    hub: str | None,
    connection: str | None,
    store: str,
    lease_s: float,
    watch: bool,
    every: float,
    output: str,
) -> None:
    """Show owner, lag and health of every partition of the consumer group GROUP.

    The status of a partition is ok, idle (no events yet), moving (a hand-over is in progress),
    unread (no checkpoint yet), paused (by its host), or one of these problems: stopped (by an event
    that its handler cannot process), stuck (its handler does not return), behind (the lag grows),
    no owner, data lost (retention removed unread events), ahead (the hub was re-created). The exit
    status is 3 if any partition has a problem. Some owners do not report problems: with --watch the
    command itself detects a growing lag and a checkpoint that does not advance.
    """
    from pumphouse.cli.common.group_access import with_group

    show = show_json if output == "json" else show_table

    async def take_one(access: GroupAccess) -> Overview:
        return await take_overview(access, lease_s, None)

    async def keep_watching(access: GroupAccess) -> Overview:
        return await watch_group(access, lease_s, every, show, clear=output == "text")

    if watch:
        with_group(connection, hub, group, store, keep_watching, reads=True)
        return
    current = with_group(connection, hub, group, store, take_one, reads=True)
    show(current)
    if any(line.bad for line in current.lines):
        raise SystemExit(console.UNHEALTHY)


async def take_overview(access: GroupAccess, lease_s: float, before: Overview | None) -> Overview:
    from pumphouse.processor.admin.overview import overview

    listing, checkpoints = await asyncio.gather(access.listing(), access.checkpoints())
    # The partitions are read last. If they were read first, a checkpoint could be beyond the end.
    partitions = await access.partitions()
    group = access.group
    return overview(
        group.name, group.hub, partitions, listing, checkpoints.values(), lease_s, before
    )


async def watch_group(
    access: GroupAccess,
    lease_s: float,
    every_s: float,
    show: Callable[[Overview], None],
    clear: bool,
) -> Overview:
    """Show an overview at every interval, compared with the one half a minute earlier."""
    earlier: deque[Overview] = deque(maxlen=max(1, round(COMPARE_S / every_s)))
    while True:
        full = len(earlier) == earlier.maxlen
        current = await take_overview(access, lease_s, earlier[0] if full else None)
        earlier.append(current)
        if clear:
            console.clear_screen()
        show(current)
        await asyncio.sleep(every_s)


def show_table(overview: Overview) -> None:
    fewest, most = overview.shares()
    console.print_table(
        ("GROUP", "HUB", "STATUS", "HOSTS", "SHARE", "TOTAL-LAG", "MAX-LAG", "MAX-LAG-TIME"),
        [
            (
                overview.group,
                overview.hub,
                overview.state,
                str(len(overview.hosts)),
                f"{fewest}-{most}" if fewest != most else str(most),
                f"{overview.lag:,}",
                f"{overview.lag_max:,}",
                seconds(overview.lag_s_max),
            )
        ],
    )
    print()
    console.print_table(HEADERS, [cells(line) for line in overview.lines])


def cells(line: PartitionRow) -> tuple[str, ...]:
    return (
        line.partition,
        (line.owner or "-") + (f" -> {line.successor}" if line.successor else ""),
        str(line.epoch or "-"),
        lease(line.lease_left_s),
        console.number_text(line.checkpoint),
        console.number_text(line.end if line.end >= 0 else None),
        console.number_text(line.lag),
        seconds(line.lag_s),
        console.highlight(line.status, bad=line.bad),
    )


def lease(left_s: float | None) -> str:
    if left_s is None:
        return "-"
    return f"{left_s:.0f}s left" if left_s > 0 else f"expired {-left_s:.0f}s"


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}s"


def show_json(overview: Overview) -> None:
    """Print one object per overview, so that `--watch -o json` prints one object per line."""
    console.print_json(
        {
            "group": overview.group,
            "hub": overview.hub,
            "status": overview.state,
            "state": deprecated_state(overview),
            "hosts": list(overview.hosts),
            "lag": overview.lag,
            "lag_seconds_max": overview.lag_s_max,
            "partitions": [line_json(line) for line in overview.lines],
        }
    )


def deprecated_state(overview: Overview) -> str:
    """The value of the deprecated key "state", which was "nobody" where the status is "unowned"."""
    from pumphouse.processor.admin.overview import UNOWNED

    return "nobody" if overview.state == UNOWNED else overview.state


def line_json(line: PartitionRow) -> dict[str, object]:
    left = line.lease_left_s
    return {
        "partition": line.partition,
        "owner": line.owner or None,
        "epoch": line.epoch,
        "lease_left_seconds": None if left is None or left == float("-inf") else round(left, 3),
        "lease_age_seconds": None if line.lease_age_s is None else round(line.lease_age_s, 3),
        "successor": line.successor or None,
        "checkpoint": line.checkpoint,
        "offset": line.offset,
        "first": line.first,
        "end": line.end,
        "lag": line.lag,
        "lag_seconds": line.lag_s,
        "status": line.status,
        "verdict": line.status,  # deprecated
    }
