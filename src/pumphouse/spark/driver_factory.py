"""Chooses the driver of a query by its options."""

from __future__ import annotations

from pumphouse.spark.driver.all_partitions import AllPartitionsDriver
from pumphouse.spark.driver.base import SourceDriver
from pumphouse.spark.options import SourceOptions


def open_driver(options: SourceOptions) -> SourceDriver:
    if options.tenancy is None:
        return AllPartitionsDriver(options)
    # Only a tenant needs the engine of the processors.
    from pumphouse.spark.tenancy.driver import TenantDriver

    return TenantDriver(options, options.tenancy)
