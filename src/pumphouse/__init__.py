"""Pumphouse: partitioned event streams in Python. The public names, and nothing else.

They are imported when they are first used, so that `pumphouse --help` and a test run that merely
has Pumphouse installed do not wait for numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pumphouse.errors import PumphouseError

if TYPE_CHECKING:
    from pumphouse.clock import MovableClock
    from pumphouse.hub.auth import AccessRule, Claim
    from pumphouse.hub.embedded import EmbeddedHub
    from pumphouse.hub.faults import Faults
    from pumphouse.hub.issuer import TokenIssuer
    from pumphouse.hub.log import Retention

__all__ = [
    "AccessRule",
    "Claim",
    "EmbeddedHub",
    "Faults",
    "MovableClock",
    "PumphouseError",
    "Retention",
    "TokenIssuer",
]

_PLACES = {
    "AccessRule": "pumphouse.hub.auth",
    "Claim": "pumphouse.hub.auth",
    "EmbeddedHub": "pumphouse.hub.embedded",
    "Faults": "pumphouse.hub.faults",
    "MovableClock": "pumphouse.clock",
    "Retention": "pumphouse.hub.log",
    "TokenIssuer": "pumphouse.hub.issuer",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'pumphouse' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
