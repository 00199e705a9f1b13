"""Ranges of a partition, read straight into Arrow record batches."""

from pumphouse.client.bulk.client import BulkClient, Span, read_range
from pumphouse.client.bulk.ranges import RangeOptions

__all__ = ["BulkClient", "RangeOptions", "Span", "read_range"]
