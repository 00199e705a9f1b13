"""Ranges of a partition, read straight into Arrow record batches."""

from typing import Any
from warnings import warn

from pumphouse.client.bulk import ranges
from pumphouse.client.bulk.arrow import TYPES
from pumphouse.client.bulk.client import BulkClient, Span, read_range
from pumphouse.client.bulk.message_ranges import read_range_of_messages
from pumphouse.client.bulk.ranges import EventsGone, HubRecreated, RangeOptions, RangeTimeout
from pumphouse.client.native.connection import ConnectionOptions
from pumphouse.client.retries import is_transient

__all__ = [
    "TYPES",
    "BulkClient",
    "ConnectionOptions",
    "EventsGone",
    "HubRecreated",
    "RangeOptions",
    "RangeTimeout",
    "Span",
    "is_transient",
    "read_range",
    "read_range_of_messages",
]

_MOVED = ("BATCH_ROWS_MAX", "CREDIT_WINDOW")


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn(f"{__name__}.{name} is now {ranges.__name__}.{name}", DeprecationWarning, stacklevel=2)
    return getattr(ranges, name)
