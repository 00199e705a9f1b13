"""`pumphouse hubs`: create, grow, list and delete event hubs while the namespace runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import PARTITIONS, connection_option, output_option
from pumphouse.events import to_datetime

if TYPE_CHECKING:
    from pumphouse.client.base import HubClient, HubProperties


@click.group()
def hubs() -> None:
    """Create, grow, list and delete event hubs."""


@hubs.command()
@click.argument("name")
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=PARTITIONS,
    show_default=True,
    help="How many partitions; there can be more later, never fewer.",
)
@connection_option
@output_option
def create(name: str, partitions: int, connection: str | None, output: str) -> None:
    """Create the hub NAME."""
    from pumphouse.cli.common.hub_connection import with_management

    made = with_management(connection, name, lambda ask, hub: ask.create_hub(hub, partitions))
    if output == "json":
        console.print_json(as_json(made))
    else:
        print(f"created hub {made.name} with {console.plural(len(made.partitions), 'partition')}")


@hubs.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), required=True, help="How many in all.")
@connection_option
@output_option
def grow(name: str, partitions: int, connection: str | None, output: str) -> None:
    """Give the hub NAME more partitions; keys that are sent from now on may land elsewhere."""
    from pumphouse.cli.common.hub_connection import with_management

    grown = with_management(connection, name, lambda ask, hub: ask.grow_hub(hub, partitions))
    if output == "json":
        console.print_json(as_json(grown))
    else:
        print(f"hub {grown.name} has {console.plural(len(grown.partitions), 'partition')}")


@hubs.command("list")
@connection_option
@output_option
def list_hubs(connection: str | None, output: str) -> None:
    """List the hubs of the namespace."""
    from pumphouse.cli.common.hub_connection import with_client

    async def say(client: HubClient) -> list[HubProperties]:
        return await (await client.management()).hubs()

    found = with_client(connection, None, say)
    if output == "json":
        for hub in found:
            console.print_json(as_json(hub))
    else:
        rows = [(hub.name, str(len(hub.partitions)), moment(hub.created_ms)) for hub in found]
        console.print_table(("NAME", "PARTITIONS", "CREATED"), rows)


@hubs.command()
@click.argument("name")
@connection_option
@output_option
def delete(name: str, connection: str | None, output: str) -> None:
    """Delete the hub NAME and all its events."""
    from pumphouse.cli.common.hub_connection import with_management

    with_management(connection, name, lambda ask, hub: ask.delete_hub(hub))
    if output == "json":
        console.print_json({"hub": name, "deleted": True})
    else:
        print(f"deleted hub {name}")


def as_json(hub: HubProperties) -> dict[str, object]:
    return {
        "hub": hub.name,
        "partitions": len(hub.partitions),
        "created": moment(hub.created_ms),
    }


def moment(ms: int) -> str:
    return f"{to_datetime(ms):%Y-%m-%dT%H:%M:%SZ}"
