"""What the page is to show: groups, homes, stages, hubs; and what it may do.

The command line and the demonstration make these, `app` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pumphouse.dashboard.monitors.host_processes import Fleet
from pumphouse.errors import OptionError
from pumphouse.homes.schema import HOMES_MAX

PORT = 8080


@dataclass(frozen=True, slots=True)
class WatchedGroup:
    """A consumer group whose ownership table is shown."""

    connection: str = field(repr=False)
    hub: str = ""  # "" for the EntityPath of the connection string
    group: str = "$Default"
    store: str = field(default="pumphouse.db", repr=False)
    lease_s: float = 30.0  # as its hosts were told: an older row has no live owner
    title: str = ""  # a word or two beside the group's name
    fleet: Fleet | None = None  # its hosts, if the page may add, stop and kill them


@dataclass(frozen=True, slots=True)
class HomesFeed:
    """Where the homes' activities and alerts are read from."""

    connection: str = field(repr=False)
    homes: int = 100_000  # room for so many; more is made when it is needed
    group: str = "page"
    hours: float = 24.0  # how far back reading starts

    def __post_init__(self) -> None:
        if not 1 <= self.homes <= HOMES_MAX:
            raise OptionError(f"homes must be from 1 to {HOMES_MAX:,} (got {self.homes:,})")
        if not 0 < self.hours <= 24 * 7:
            raise OptionError(f"hours must be above 0 and at most 168 (got {self.hours:g})")


@dataclass(frozen=True, slots=True)
class DashboardOptions:
    """Everything a page can be told."""

    port: int = PORT  # 0 picks a free one
    connection: str = field(default="", repr=False)  # for the Events page, and for faults
    hubs: tuple[str, ...] = ()  # that the Events page offers
    groups: tuple[WatchedGroup, ...] = ()
    homes: HomesFeed | None = None  # None: there is no Homes page
    status: Path | None = None  # what the Spark stages say of themselves; need not be there yet
    events_group: str = "$Default"  # in which the Events page reads, beside others
    write: bool = False  # whether the page may send samples and plan faults
    ca_file: str | None = None
    look_s: float = 1.0  # from one look at groups and homes to the next

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise OptionError(f"port must be from 0 to 65535 (got {self.port})")
        if not 0.05 <= self.look_s <= 60:
            raise OptionError(f"look_s must be from 0.05 to 60 (got {self.look_s:g})")
        if not (self.groups or self.homes or self.hubs):
            raise OptionError("the page has nothing to show: name a group, homes or hubs")
        if (self.hubs or self.write) and not self.connection:
            raise OptionError("to show events or plan faults the page needs a connection string")
