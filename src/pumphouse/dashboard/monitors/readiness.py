"""Whether the page can work: its hubs, stores and database have responded recently.

monitors -> Source -> not_ready -> /readyz
                      ^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# In addition to three updates: a request may wait for its deadline, and is then retried.
LATE_S = 20.0


@dataclass(frozen=True, slots=True)
class Source:
    """A hub, a store or a database that a monitor reads repeatedly."""

    name: str
    trouble: str  # "" if the last request was successful
    responded_s: float | None  # the last response, in monotonic time; None: not yet


def not_ready(sources: Iterable[Source], now_s: float, update_s: float) -> str | None:
    """What does not respond; None if all is well."""
    failures = [failure_of(source, now_s, 3 * update_s + LATE_S) for source in sources]
    return "; ".join(filter(None, failures)) or None


def failure_of(source: Source, now_s: float, silent_max_s: float) -> str | None:
    if source.trouble:
        return f"{source.name}: {source.trouble}"
    if source.responded_s is None:
        return f"{source.name}: not read yet"
    silent_s = now_s - source.responded_s
    return f"{source.name}: no response for {silent_s:.0f} s" if silent_s > silent_max_s else None
