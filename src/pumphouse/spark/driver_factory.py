"""Chooses the driver of a query by its options."""

from __future__ import annotations

from pumphouse.spark.driver.all_partitions import AllPartitionsDriver
from pumphouse.spark.driver.base import SourceDriver
from pumphouse.spark.options import SourceOptions
from pumphouse.spark.process_log import describe_process
from pumphouse.spark.several_hubs.driver import SeveralHubsDriver
from pumphouse.spark.several_hubs.sources import Sources


def open_driver(sources: Sources) -> SourceDriver:
    common = sources.common
    if sources.selection is None:
        describe_process(hub=common.identity.hub, group=common.group)
        return open_driver_of_hub(common)
    describe_process(hub=str(sources.selection), group=common.group)
    return SeveralHubsDriver(sources, sources.selection, open_driver_of_hub)


def open_driver_of_hub(options: SourceOptions) -> SourceDriver:
    if options.tenancy is None:
        return AllPartitionsDriver(options)
    # Only a tenant needs the engine of the processors.
    from pumphouse.spark.tenancy.driver import TenantDriver

    return TenantDriver(options, options.tenancy)
