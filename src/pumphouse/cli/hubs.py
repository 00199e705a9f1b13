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
    help="Number of partitions; it can grow later, never shrink.",
)
@connection_option
@output_option
def create(name: str, partitions: int, connection: str | None, output: str) -> None:
    """Create the hub NAME."""
    from pumphouse.cli.common.hub_connection import with_management

    created = with_management(
        connection, name, lambda management, hub: management.create_hub(hub, partitions)
    )
    if output == "json":
        console.print_json(as_json(created))
    else:
        partitions_text = console.plural(len(created.partitions), "partition")
        console.print_line(f"created hub {created.name} with {partitions_text}")


@hubs.command()
@click.argument("name")
@click.option(
    "--partitions", type=click.IntRange(min=1), required=True, help="New number of partitions."
)
@connection_option
@output_option
def grow(name: str, partitions: int, connection: str | None, output: str) -> None:
    """Add partitions to the hub NAME. Partition keys may map to other partitions afterwards."""
    from pumphouse.cli.common.hub_connection import with_management

    grown = with_management(
        connection, name, lambda management, hub: management.grow_hub(hub, partitions)
    )
    if output == "json":
        console.print_json(as_json(grown))
    else:
        console.print_line(
            f"hub {grown.name} has {console.plural(len(grown.partitions), 'partition')}"
        )


@hubs.command("list")
@connection_option
@output_option
def list_hubs(connection: str | None, output: str) -> None:
    """List the hubs of the namespace."""
    from pumphouse.cli.common.hub_connection import with_client

    async def work(client: HubClient) -> list[HubProperties]:
        return await (await client.management()).hubs()

    properties = with_client(connection, None, work)
    if output == "json":
        for hub in properties:
            console.print_json(as_json(hub))
    else:
        rows = [
            (hub.name, str(len(hub.partitions)), timestamp(hub.created_ms)) for hub in properties
        ]
        console.print_table(("NAME", "PARTITIONS", "CREATED"), rows)


@hubs.command()
@click.argument("name")
@connection_option
@output_option
def delete(name: str, connection: str | None, output: str) -> None:
    """Delete the hub NAME and all its events."""
    from pumphouse.cli.common.hub_connection import with_management

    with_management(connection, name, lambda management, hub: management.delete_hub(hub))
    if output == "json":
        console.print_json({"hub": name, "deleted": True})
    else:
        console.print_line(f"deleted hub {name}")


def as_json(hub: HubProperties) -> dict[str, object]:
    return {
        "hub": hub.name,
        "partitions": len(hub.partitions),
        "created": timestamp(hub.created_ms),
    }


def timestamp(ms: int) -> str:
    return f"{to_datetime(ms):%Y-%m-%dT%H:%M:%SZ}"
