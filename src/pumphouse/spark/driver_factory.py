"""Chooses the driver of a query by its options."""

from __future__ import annotations

from pumphouse.spark.driver.all_partitions import AllPartitionsDriver
from pumphouse.spark.driver.base import SourceDriver
from pumphouse.spark.options import SourceOptions
from pumphouse.spark.process_log import describe_process


def open_driver(options: SourceOptions) -> SourceDriver:
    describe_process(hub=options.identity.hub, group=options.group)
    if options.tenancy is None:
        return AllPartitionsDriver(options)
    # Only a tenant needs the engine of the processors.
    from pumphouse.spark.tenancy.driver import TenantDriver

    return TenantDriver(options, options.tenancy)
