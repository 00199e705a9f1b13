"""The namespace that holds the hubs of the homes, and the options to connect to it.

HomesNamespace -> options of format("eventhubs") -> sift, watch, record
^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from warnings import warn


@dataclass(frozen=True, slots=True)
class HomesNamespace:
    """The namespace of the homes.

    `connection` is its connection string. It is secret, so repr omits it. `options` are further
    options of format("eventhubs") for every hub, such as caFile or driver.
    """

    connection: str = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def hub_options(self, hub: str, group: str | None = None, /, **more: object) -> dict[str, str]:
        """The options of one hub; readers pass a group. Options that are None are omitted."""
        reader = {} if group is None else {"consumerGroup": group}
        extra = {name: option_text(value) for name, value in more.items() if value is not None}
        base = {"connectionString": without_hub(self.connection), "name": hub}
        return {**base, **self.options, **reader, **extra}


def without_hub(connection: str) -> str:
    """A connection string without the name of a hub.

    >>> without_hub("Endpoint=sb://here/;EntityPath=sensors;SharedAccessKeyName=root")
    'Endpoint=sb://here/;SharedAccessKeyName=root'
    """
    parts = [part for part in connection.split(";") if part]
    return ";".join(part for part in parts if not part.lower().startswith("entitypath="))


def option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def __getattr__(name: str) -> Any:
    if name == "Place":
        warn("Place is now HomesNamespace", DeprecationWarning, stacklevel=2)
        return HomesNamespace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
