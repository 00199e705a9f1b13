"""The options of a query for each hub that it reads.

options of a query -> read_sources -> Sources.of_hub -> SourceOptions of one hub
                      ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pumphouse.errors import OptionError
from pumphouse.spark.catalogue import READ
from pumphouse.spark.option_values import OptionValues, normal_name
from pumphouse.spark.options import SourceOptions, read_connection, read_source
from pumphouse.spark.several_hubs.selection import NAME, PATTERN, HubSelection, read_selection

ANY_HUB = "*"  # stands for the hubs of a pattern, where only their common options matter


@dataclass(frozen=True, slots=True)
class Sources:
    """The options of a query; its repr holds no secret."""

    common: SourceOptions  # of the only hub; of several hubs, what they have in common
    selection: HubSelection | None = None  # None: one hub
    streaming: bool = False
    now_ms: int = 0
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def of_hub(self, hub: str, hubs: int = 1) -> SourceOptions:
        """The options for one of `hubs` hubs; those that limit all hubs together are divided."""
        if self.selection is None:
            return self.common
        options = read_source(
            {**self.texts, NAME: hub},
            streaming=self.streaming,
            now_ms=self.now_ms,
            environment=self.environment,
            hubs=self.selection.names,
        )
        limits = options.limits
        bytes_max = None if limits.bytes is None else max(1, limits.bytes // hubs)
        return replace(options, limits=replace(limits, bytes=bytes_max, events_min=None))


def read_sources(
    given: Mapping[str, str], *, streaming: bool, now_ms: int, environment: Mapping[str, str]
) -> Sources:
    """The options of a query that reads one hub, or several."""
    values = OptionValues(given, READ, environment)
    selection = read_selection(values)
    if selection is None:
        return Sources(
            read_source(given, streaming=streaming, now_ms=now_ms, environment=environment)
        )
    if entity := read_connection(values).hub:
        raise OptionError(
            f"{selection} selects several hubs, and connectionString names one "
            f"(EntityPath={entity}); use the connection string of the namespace"
        )
    texts = {
        name: text
        for name, text in given.items()
        if normal_name(name) not in (NAME, PATTERN.lower())
    }
    sources = {
        hub: read_source(
            {**texts, NAME: hub},
            streaming=streaming,
            now_ms=now_ms,
            environment=environment,
            hubs=selection.names,
        )
        for hub in selection.names or (ANY_HUB,)
    }
    common = next(iter(sources.values()))
    return Sources(common, selection, streaming, now_ms, texts, environment)
