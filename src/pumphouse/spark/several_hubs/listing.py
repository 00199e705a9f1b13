"""Lists the hubs of a namespace, for a pattern.

The embedded hub lists its hubs in $management. The service lists them only in its control plane,
which needs a subscription and other roles: there a query names its hubs.

    namePattern -> list_hubs -> HubSelection.choose
                   ^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pumphouse.errors import AmqpError, AuthError, OptionError
from pumphouse.spark.advice import with_advice
from pumphouse.spark.identity import open_hub
from pumphouse.spark.options import HubIdentity, SourceOptions
from pumphouse.spark.several_hubs.selection import PATTERN, HubSelection
from pumphouse.spark.several_hubs.sources import Sources


def find_hubs(selection: HubSelection, identity: HubIdentity) -> tuple[str, ...]:
    """The hubs that a query reads now; OptionError if a pattern matches none."""
    if not selection.pattern:
        return selection.names
    listed = list_hubs(identity)
    if not (chosen := selection.choose(listed)):
        raise OptionError(
            f"{selection} matches no hub of {identity.connection.host}; it has "
            f"{', '.join(sorted(listed)) or 'none'}"
        )
    return chosen


def options_of_hubs(sources: Sources) -> dict[str, SourceOptions]:
    """The options of a batch query for each hub that it reads."""
    identity = sources.common.identity
    if sources.selection is None:
        return {identity.hub: sources.common}
    return {hub: sources.of_hub(hub) for hub in find_hubs(sources.selection, identity)}


def list_hubs(identity: HubIdentity) -> list[str]:
    """All hubs of the namespace."""

    async def ask() -> list[str]:
        # The official SDK has no operation for it.
        client = open_hub(replace(identity, hub="", driver="native"))
        async with asyncio.timeout(identity.operation_timeout_s), client:
            return [hub.name for hub in await (await client.management()).hubs()]

    try:
        return asyncio.run(ask())
    except AuthError as failed:
        raise AuthError(
            f"{with_advice(failed, identity)}. {PATTERN} needs the claim Manage, to list hubs; or "
            "name them: name=a,b",
            failed.status,
        ) from None
    except (AmqpError, OptionError) as failed:
        raise OptionError(
            f"{identity.connection.host} does not list its hubs ({failed}), which {PATTERN} needs; "
            "name them: name=a,b"
        ) from None
