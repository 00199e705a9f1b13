"""Several applications that share the partitions of `watch`: each keeps its own partitions.

--assignment, --store, --host -> Sharing -> options of format("eventhubs") -> watch
                                 ^^^^^^^ this module
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pumphouse.errors import OptionError
from pumphouse.leases.strategies import parse_strategy


@dataclass(frozen=True, slots=True)
class Sharing:
    """The assignment of partitions, the lease store, and the host name of this application.

    The host name must be the same at every start: partitions are reserved for a host name.
    """

    assignment: str
    store: str = field(repr=False)
    host: str

    def __post_init__(self) -> None:
        if parse_strategy(self.assignment).yields:
            raise OptionError(
                f"invalid assignment {self.assignment!r} of watch: use fixed:N, such as fixed:8. "
                "Partitions of watch must not move between applications, because the state of an "
                "application contains the last day of its partitions"
            )
        for option, value in (("store", self.store), ("host", self.host)):
            if not value.strip():
                raise OptionError(f"assignment={self.assignment} needs a {option}: {HELP[option]}")
        if not NAME.fullmatch(self.host):
            raise OptionError(
                f"invalid host {self.host!r}: use letters, digits, -, _ and inner dots, because it "
                "is also the name of a folder"
            )
        if self.store.strip().lower().startswith("memory:"):
            raise OptionError(f"invalid store memory: (works in one process only): {HELP['store']}")


NAME = re.compile(r"[\w-][\w.-]*")
HELP = {
    "store": "use sqlite:///PATH for one machine, postgres://USER@HOST/DATABASE, "
    "redis://HOST:PORT/DB, blob://ACCOUNT/CONTAINER or bloblease://ACCOUNT/CONTAINER for several",
    "host": "use a name of this application that is the same at every start",
}


def parse_sharing(assignment: str | None, store: str | None, host: str | None) -> Sharing | None:
    """The `Sharing` that three command line options define; None without an assignment."""
    if assignment is None:
        # A store alone is not an error: the environment may define it for all commands.
        if host:
            raise OptionError(f"host {host!r} needs an assignment: use --assignment fixed:N")
        return None
    return Sharing(assignment, store or "", host or "")
