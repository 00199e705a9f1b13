"""`pumphouse faults`: inject faults into a running hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import FiniteRange, connection_option, output_option

if TYPE_CHECKING:
    from pumphouse.client.base import HubClient

ACTIONS = ("drop", "delay", "refuse", "detach", "throttle", "freeze")
MOMENTS = ("connect", "attach", "send", "deliver")
COLUMNS = ("ID", "ACTION", "ON", "HUB", "PARTITION", "GROUP", "RATE", "TIMES", "SECONDS")


@click.group(short_help="Inject faults into a running hub.")
def faults() -> None:
    """Inject faults into a running hub: drop, delay, refuse, detach, throttle, freeze."""


@faults.command()
@click.argument("action", type=click.Choice(ACTIONS))
@click.option(
    "--on", "moment", type=click.Choice(MOMENTS), help="Operation that triggers the fault."
)
@click.option("--hub", help="Only this hub.")
@click.option("--partition", "-p", help="Only this partition.")
@click.option("--group", help="Only readers of this consumer group.")
@click.option(
    "--rate",
    type=FiniteRange(0, 1),
    help="Share of the operations that the fault affects, from 0 to 1. Default: 1.",
)
@click.option(
    "--times",
    type=click.IntRange(min=1),
    help="Maximum number of operations that the fault affects. Default: no limit.",
)
@click.option("--seconds", type=FiniteRange(min=0), help="Duration of a delay.")
@click.option("--condition", help="AMQP condition of a refusal or detach.")
@click.option("--description", help="Text of a refusal or detach.")
@connection_option
@output_option
def add(connection: str | None, output: str, **fault: Any) -> None:
    """Add a fault, and print its number."""
    from pumphouse.cli.common.hub_connection import with_client

    given = {name: value for name, value in fault.items() if value is not None}

    async def work(client: HubClient) -> tuple[int, list[str]]:
        management = await client.management()
        hubs = [each.name for each in await management.hubs()] if "hub" in given else []
        return await management.plan_fault(**given), hubs

    number, hubs = with_client(connection, None, work)
    if "hub" in given and given["hub"].lower() not in (name.lower() for name in hubs):
        console.message(
            f"WARNING: no hub {given['hub']!r} (found {', '.join(hubs) or 'none'}): fault {number} "
            "takes effect when it is created"
        )
    if output == "json":
        console.print_json({"id": number, **given})
    else:
        console.print_line(f"added fault {number}: {given['action']}")


@faults.command("list")
@connection_option
@output_option
def list_faults(connection: str | None, output: str) -> None:
    """List the active faults."""
    from pumphouse.cli.common.hub_connection import with_client

    async def work(client: HubClient) -> list[dict[str, Any]]:
        return await (await client.management()).faults()

    active = with_client(connection, None, work)
    if output == "json":
        for fault in active:
            console.print_json(fault)
        return
    names = ("id", "action", "moment", "hub", "partition", "group", "rate", "times", "seconds")
    rows = [tuple(str(fault.get(name) or "-") for name in names) for fault in active]
    console.print_table(COLUMNS, rows)


@faults.command()
@click.argument("number", type=int, required=False)
@connection_option
@output_option
def clear(number: int | None, connection: str | None, output: str) -> None:
    """Remove the fault with this NUMBER, or all faults."""
    from pumphouse.cli.common.hub_connection import with_client

    async def work(client: HubClient) -> None:
        await (await client.management()).cancel_fault(number)

    with_client(connection, None, work)
    if output == "json":
        console.print_json({"id": number, "cleared": True})
    else:
        print("cleared all faults" if number is None else f"cleared fault {number}")
