"""Several applications that watch together: each its own partitions, and always the same ones.

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
    """How many partitions are ours, where the leases are kept, and by which name.

    The name is the same at every start: what belongs to it is kept for it.
    """

    assignment: str
    store: str = field(repr=False)
    host: str

    def __post_init__(self) -> None:
        if parse_strategy(self.assignment).yields:
            raise OptionError(
                "the partitions of a watch never move, since its state holds their day: "
                f"write fixed:N, such as fixed:8 (got {self.assignment!r})"
            )
        for word, given in (("store", self.store), ("host", self.host)):
            if not given.strip():
                raise OptionError(f"assignment={self.assignment} needs a {word}: {WHY[word]}")
        if not NAME.fullmatch(self.host):
            raise OptionError(
                f"a host is also the name of its folder: letters, digits, - and _, and dots inside "
                f"(got {self.host!r})"
            )
        if self.store.strip().lower().startswith("memory:"):
            raise OptionError("the store memory: is of one process; use one that all can reach")


NAME = re.compile(r"[\w-][\w.-]*")
WHY = {
    "store": "sqlite:///PATH, or blob://ACCOUNT/CONTAINER for several machines",
    "host": "a name of this application that stays the same at every start",
}


def parse_sharing(assignment: str | None, store: str | None, host: str | None) -> Sharing | None:
    """What three options say together; None if nothing is shared."""
    if assignment is None:
        # A store may be there for all commands, from the environment.
        if host:
            raise OptionError("a host without an assignment: say fixed:N too")
        return None
    return Sharing(assignment, store or "", host or "")
