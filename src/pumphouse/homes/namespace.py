"""Where the hubs of the homes are: one namespace, and how it is spoken to.

HomesNamespace -> options of format("eventhubs") -> sift, watch, record
^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from warnings import warn


@dataclass(frozen=True, slots=True)
class HomesNamespace:
    """`connection` is the connection string of the namespace; a secret, so no repr shows it.

    `options` are further ones of format("eventhubs"), such as caFile or driver, for every hub.
    """

    connection: str = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def hub_options(self, hub: str, group: str | None = None, /, **more: object) -> dict[str, str]:
        """The options of one hub; a group is for readers. Those that are None are left out."""
        reader = {} if group is None else {"consumerGroup": group}
        given = {name: text(value) for name, value in more.items() if value is not None}
        named = {"connectionString": without_hub(self.connection), "name": hub}
        return {**named, **self.options, **reader, **given}


def without_hub(connection: str) -> str:
    """The namespace's part of a connection string, whichever hub it may name.

    >>> without_hub("Endpoint=sb://here/;EntityPath=sensors;SharedAccessKeyName=root")
    'Endpoint=sb://here/;SharedAccessKeyName=root'
    """
    parts = [part for part in connection.split(";") if part]
    return ";".join(part for part in parts if not part.lower().startswith("entitypath="))


def text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def __getattr__(name: str) -> Any:
    if name == "Place":
        warn("Place is now HomesNamespace", DeprecationWarning, stacklevel=2)
        return HomesNamespace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
