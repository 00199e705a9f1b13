"""Options of the page: what it shows, and whether it may change something."""

from __future__ import annotations

import re
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from warnings import warn

from pumphouse.dashboard.monitors.host_processes import Fleet
from pumphouse.errors import OptionError
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.schema import HOMES_MAX

PORT = 8080
TOKEN = re.compile("[A-Za-z0-9_-]{16,128}")


@dataclass(frozen=True, slots=True)
class WatchedGroup:
    """A consumer group whose ownership table is shown."""

    connection: str = field(repr=False)
    hub: str = ""  # "" for the EntityPath of the connection string
    group: str = "$Default"
    store: str = field(default="pumphouse.db", repr=False)
    lease_s: float = 30.0  # as configured for its hosts: an older lease has expired
    title: str = ""  # shown beside the name of the group
    fleet: Fleet | None = None  # set if the page may add, stop and kill hosts


@dataclass(frozen=True, slots=True)
class HomesFeed:
    """The source of the activities and alerts of homes."""

    connection: str = field(repr=False)
    homes: int = 100_000  # initial capacity; grows when a higher home number is read
    group: str = "page"
    hours: float = 24.0  # without a database, reading starts this long ago
    # The database of the stage record; "" for none. With it the page shows earlier activities and
    # alerts, and alerts can be acknowledged and closed.
    database: str = field(default="", repr=False)
    kinds: Kinds = field(default=DEFAULT, repr=False)  # of sensors and alerts

    def __post_init__(self) -> None:
        if not 1 <= self.homes <= HOMES_MAX:
            raise OptionError(f"homes must be from 1 to {HOMES_MAX:,} (got {self.homes:,})")
        if not 0 < self.hours <= 24 * 7:
            raise OptionError(f"hours must be above 0 and at most 168 (got {self.hours:g})")


@dataclass(frozen=True, slots=True)
class DashboardOptions:
    """All options of the page."""

    port: int = PORT  # 0 picks a free one
    connection: str = field(default="", repr=False)  # for the Events page and faults
    hubs: tuple[str, ...] = ()  # offered by the Events page
    groups: tuple[WatchedGroup, ...] = ()
    homes: HomesFeed | None = None  # None: no Homes page
    status: Path | None = None  # status file of the Spark stages; may not exist yet
    events_group: str = "$Default"  # consumer group of the Events page
    write: bool = False  # whether the page may send sample events and inject faults
    ca_file: str | None = None  # certificate authority to trust for TLS
    update_s: float = 1.0  # interval of updates of groups and homes
    # The launch token of the page; None: a random one, "": none, for every user of this machine.
    token: str | None = field(default=None, repr=False)
    look_s: InitVar[float | None] = None  # deprecated: the old name of update_s

    def __post_init__(self, look_s: float | None) -> None:
        if look_s is not None:
            warn("DashboardOptions(look_s=...) is now update_s", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "update_s", look_s)
        if not 0 <= self.port <= 65535:
            raise OptionError(f"port must be from 0 to 65535 (got {self.port})")
        if not 0.05 <= self.update_s <= 60:
            raise OptionError(
                f"the update interval must be from 0.05 to 60 seconds (got {self.update_s:g})"
            )
        if self.token and not TOKEN.fullmatch(self.token):
            raise OptionError("invalid token: use 16 to 128 letters, digits, - and _")
        if not (self.groups or self.homes or self.hubs):
            raise OptionError("the page has nothing to show: set groups, homes or hubs")
        if (self.hubs or self.write) and not self.connection:
            raise OptionError(
                "showing events and injecting faults needs a connection string: set connection"
            )
