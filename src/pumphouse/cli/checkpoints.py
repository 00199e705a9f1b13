"""`pumphouse checkpoints`: list, move, save and restore how far a consumer group has come."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    ParsedType,
    connection_option,
    group_option,
    hub_option,
    lease_option,
    output_option,
    store_option,
)
from pumphouse.errors import OptionError
from pumphouse.events import Event, Position, parse_position, to_datetime, to_ms

if TYPE_CHECKING:
    from pumphouse.cli.common.group_access import GroupAccess
    from pumphouse.client.base import PartitionProperties
    from pumphouse.leases.model import Checkpoint
    from pumphouse.processor.admin.resets import Change, ResetPosition

LOOK_S = 5.0  # how long we wait for an event that must be there


def read_position(text: str) -> Position:
    return parse_position(text, int(time.time() * 1000))


POSITION_TYPE = ParsedType("position", read_position)
partition_option = click.option(
    "-p",
    "--partition",
    "partitions",
    multiple=True,
    metavar="N",
    help="Only these; several with the option again.",
)
execute_option = click.option(
    "--execute", is_flag=True, help="Do it. Without it you see what would be done."
)
force_option = click.option(
    "--force", is_flag=True, help="Even while hosts own the partitions: they may write over it."
)


@click.group()
def checkpoints() -> None:
    """List, move, save and restore the checkpoints of a consumer group."""


@checkpoints.command("list")
@hub_option
@group_option
@connection_option
@store_option
@output_option
def list_checkpoints(
    hub: str | None, group: str, connection: str | None, store: str, output: str
) -> None:
    """List the checkpoints of a consumer group."""
    from pumphouse.cli.common.group_access import with_group

    async def work(access: GroupAccess) -> list[Checkpoint]:
        return in_order(await access.checkpoints())

    found = with_group(connection, hub, group, store, work)
    if output == "json":
        for mark in found:
            console.print_json(as_json(mark))
    elif found:
        headers = ("PARTITION", "SEQUENCE", "OFFSET", "ENQUEUED", "EPOCH")
        console.print_table(headers, [cells(mark) for mark in found])
    else:
        console.message(f"consumer group {group} has no checkpoint in this store")


@checkpoints.command()
@hub_option
@group_option
@partition_option
@click.option(
    "--to",
    type=POSITION_TYPE,
    metavar="POSITION",
    help="earliest, latest, seq:N, offset:N, time:T, time:-15m: the next event to be read.",
)
@click.option("--shift-by", type=int, metavar="N", help="So many events on, or back with a minus.")
@execute_option
@force_option
@connection_option
@store_option
@lease_option
@output_option
def reset(
    hub: str | None,
    group: str,
    partitions: tuple[str, ...],
    to: Position | None,
    shift_by: int | None,
    execute: bool,
    force: bool,
    connection: str | None,
    store: str,
    lease_s: float,
    output: str,
) -> None:
    """Move checkpoints, so that reading goes on somewhere else.

    Without --execute nothing is written: you see what would change. While hosts own the partitions
    it is refused, because they go on from where they are and write over it; stop them first.
    """
    from pumphouse.cli.common.group_access import with_group

    if (to is None) == (shift_by is None):
        raise click.UsageError("say where to: either --to POSITION or --shift-by N")

    async def work(access: GroupAccess) -> None:
        changes = await plan(access, partitions, to, shift_by)
        await carry_out(access, changes, lease_s, execute, force, output)

    with_group(connection, hub, group, store, work)


@checkpoints.command()
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=True), default="-")
@hub_option
@group_option
@connection_option
@store_option
def export(file: IO[str], hub: str | None, group: str, connection: str | None, store: str) -> None:
    """Write the checkpoints to FILE (or stdout), one JSON object per line."""
    from pumphouse.cli.common.group_access import with_group

    async def work(access: GroupAccess) -> list[Checkpoint]:
        return in_order(await access.checkpoints())

    found = with_group(connection, hub, group, store, work)
    for mark in found:
        file.write(json.dumps(as_json(mark)) + "\n")
    console.message(f"wrote {console.plural(len(found), 'checkpoint')}")


@checkpoints.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@hub_option
@group_option
@execute_option
@force_option
@connection_option
@store_option
@lease_option
@output_option
def import_checkpoints(
    file: IO[str],
    hub: str | None,
    group: str,
    execute: bool,
    force: bool,
    connection: str | None,
    store: str,
    lease_s: float,
    output: str,
) -> None:
    """Restore checkpoints from FILE, as `export` wrote them; from another group if you like."""
    from pumphouse.cli.common.group_access import with_group

    places = read_places(file)

    async def work(access: GroupAccess) -> None:
        from pumphouse.processor.admin.resets import change

        await access.partitions(tuple(places))  # all must exist
        there = await access.checkpoints()
        changes = [
            change(there.get(one), access.group, one, place) for one, place in places.items()
        ]
        await carry_out(access, changes, lease_s, execute, force, output)

    with_group(connection, hub, group, store, work)


# -- what would change ----------------------------------------------------------------------------


async def plan(
    access: GroupAccess, partitions: tuple[str, ...], to: Position | None, shift_by: int | None
) -> list[Change]:
    from pumphouse.processor.admin.resets import change, shifted_position

    there = await access.checkpoints()
    changes = []
    for found in await access.partitions(partitions):
        current = there.get(found.partition)
        position = to if to is not None else shifted_position(current, shift_by or 0, found)
        place = await find(access, found, position)
        changes.append(change(current, access.group, found.partition, place))
    return changes


async def find(
    access: GroupAccess, found: PartitionProperties, position: Position
) -> ResetPosition:
    """The place just before a position; the events around it are looked at where need be."""
    from pumphouse.processor.admin.resets import edge_position, position_before

    place = edge_position(position, found)
    if place is not None:
        return place
    following = await event_at(access, found, position)
    if following is None or following.sequence == found.first_sequence:
        return position_before(found, following, None)
    assert following.sequence is not None
    earlier = Position("sequence", str(following.sequence - 1), inclusive=True)
    return position_before(found, following, await event_at(access, found, earlier))


async def event_at(
    access: GroupAccess, found: PartitionProperties, position: Position
) -> Event | None:
    from pumphouse.client.base import ReaderOptions

    options = ReaderOptions(found.partition, access.group.name, position, prefetch=1)
    reader = await access.client.reader(options)
    try:
        events = await reader.receive(1, LOOK_S)
    finally:
        await reader.close()
    return events[0] if events else None


def read_places(file: Iterable[str]) -> dict[str, ResetPosition]:
    places: dict[str, ResetPosition] = {}
    for number, line in enumerate(file, 1):
        if line.strip():
            partition, place = read_place(number, line)
            places[partition] = place
    if not places:
        raise OptionError("the file holds no checkpoint")
    return places


def read_place(number: int, line: str) -> tuple[str, ResetPosition]:
    from pumphouse.processor.admin.resets import BEGINNING, ResetPosition

    try:
        found: dict[str, Any] = json.loads(line)
        enqueued = found.get("enqueued")
        return str(found["partition"]), ResetPosition(
            int(found["sequence"]),
            str(found.get("offset") or BEGINNING),
            to_ms(datetime.fromisoformat(enqueued)) if enqueued else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OptionError(
            f"line {number} is no checkpoint; expected what `pumphouse checkpoints export` writes, "
            'such as {"partition": "0", "sequence": 41, "offset": "1088"}'
        ) from None


# -- changing -------------------------------------------------------------------------------------


async def carry_out(
    access: GroupAccess,
    changes: list[Change],
    lease_s: float,
    execute: bool,
    force: bool,
    output: str,
) -> None:
    """Show the changes; write them if that is wanted and nobody is in the way."""
    from pumphouse.processor.admin.resets import live_owners

    show(changes, output)
    listing = await access.listing()
    owners = live_owners(listing, lease_s, [change.partition for change in changes])
    if owners and not force:
        held = f"{', '.join(owners)} own{'s' if len(owners) == 1 else ''} these partitions"
        if execute:
            raise click.ClickException(f"nothing was changed: {held}; stop them, or add --force")
        console.message(f"Preview only. {held}: stop them, then add --execute.")
    elif not execute:
        console.message("Preview only. Add --execute to do it.")
    else:
        await asyncio.gather(*(write(access, change) for change in changes if change.moves))
        console.message("Done.")


async def write(access: GroupAccess, change: Change) -> None:
    from pumphouse.leases.model import Refused, Unknown

    outcome = await access.store.update_checkpoint(change.after, rewind=True)
    if isinstance(outcome, Refused):
        raise click.ClickException(
            f"partition {change.partition}: its checkpoint was changed meanwhile; look again"
        )
    if isinstance(outcome, Unknown):
        raise click.ClickException(
            f"partition {change.partition}: the store did not answer ({outcome.why}); look again"
        )


# -- what is shown --------------------------------------------------------------------------------


def show(changes: list[Change], output: str) -> None:
    if output == "json":
        for one in changes:
            console.print_json(
                {
                    "partition": one.partition,
                    "from": one.before.sequence,
                    "to": one.after.sequence,
                    "effect": one.effect,
                }
            )
        return
    rows = [
        (one.partition, number(one.before.sequence), number(one.after.sequence), one.effect)
        for one in changes
    ]
    console.print_table(("PARTITION", "CURRENT", "NEW", "EFFECT"), rows)


def in_order(found: dict[str, Checkpoint]) -> list[Checkpoint]:
    from pumphouse.processor.admin.overview import partition_order

    return sorted(found.values(), key=lambda mark: partition_order(mark.partition))


def as_json(mark: Checkpoint) -> dict[str, Any]:
    return {
        "partition": mark.partition,
        "sequence": mark.sequence,
        "offset": mark.offset,
        "enqueued": None if mark.enqueued_ms is None else to_datetime(mark.enqueued_ms).isoformat(),
        "epoch": mark.epoch,
    }


def cells(mark: Checkpoint) -> tuple[str, ...]:
    when = (
        "-" if mark.enqueued_ms is None else f"{to_datetime(mark.enqueued_ms):%Y-%m-%dT%H:%M:%SZ}"
    )
    return mark.partition, number(mark.sequence), mark.offset or "-", when, str(mark.epoch or "-")


def number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
