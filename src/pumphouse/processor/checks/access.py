"""Checks at the start of a host that its key may read, and that its consumer group exists.

The properties of a hub show neither: a key that may only send can read them, and they do not list
the consumer groups. Opening a reader checks both.
"""

from __future__ import annotations

from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.errors import AmqpError, AuthError, HubNotFound
from pumphouse.events import LATEST


async def readable_partitions(client: HubClient, group: str) -> tuple[str, ...]:
    """The partitions of the hub. HubNotFound or AuthError if this host could not read them."""
    partitions = (await client.properties()).partitions
    await check_access(client, group, partitions[0])
    return partitions


async def check_access(client: HubClient, group: str, partition: str) -> None:
    """Open a reader and close it again.

    The reader has no epoch, so that it evicts no other reader. If the hub refuses it because of
    other readers, the group exists.
    """
    try:
        reader = await client.reader(ReaderOptions(partition, group, LATEST, prefetch=1))
    except HubNotFound as error:
        raise HubNotFound(
            f"hub {client.hub!r} has no consumer group {group!r}: create it, or correct the name"
        ) from error
    except AuthError as error:
        raise AuthError(
            f"the key or token may not read hub {client.hub!r}: use one with the Listen claim "
            f"({error.description})",
            error.status,
        ) from error
    except AmqpError:
        return
    await reader.close()
