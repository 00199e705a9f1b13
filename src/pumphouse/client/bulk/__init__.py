"""Ranges of a partition, read straight into Arrow record batches."""

from pumphouse.client.bulk.arrow import TYPES
from pumphouse.client.bulk.client import BulkClient, Span, read_range
from pumphouse.client.bulk.message_ranges import read_range_of_messages
from pumphouse.client.bulk.ranges import EventsGone, HubRecreated, RangeOptions, RangeTimeout
from pumphouse.client.native.connection import ConnectionOptions

__all__ = [
    "TYPES",
    "BulkClient",
    "ConnectionOptions",
    "EventsGone",
    "HubRecreated",
    "RangeOptions",
    "RangeTimeout",
    "Span",
    "read_range",
    "read_range_of_messages",
]
