"""Plans the tasks of a batch query of one hub.

BatchReader -> plan_batch_tasks -> Planner -> TaskPartition
               ^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import logging

from pumphouse.spark.driver.all_partitions import make_tasks
from pumphouse.spark.driver.base import ColumnSelection, TaskPartition, planned_hub
from pumphouse.spark.driver.epochs import run_epoch
from pumphouse.spark.driver.filters import Bounds, narrow
from pumphouse.spark.driver.hub_state import HubState
from pumphouse.spark.options import SourceOptions
from pumphouse.spark.planner import Planner, plan_batch_query

log = logging.getLogger("pumphouse.spark")


def plan_batch_tasks(
    options: SourceOptions, columns: ColumnSelection, bounds: Bounds
) -> list[TaskPartition]:
    """The tasks that read what the hub holds now, within the bounds of the query."""
    epoch = run_epoch() if options.reading.exclusive else None
    hub_state = HubState(options, epoch=epoch)
    try:
        snapshot = hub_state.refresh()
        planner = Planner(options, hub_state.resolve, log.warning)
        planner.check_position_options(snapshot)
        start, end = plan_batch_query(options, snapshot, hub_state.resolve)
        start, end = narrow(bounds, start, end, snapshot, hub_state.resolve)
        spans = planner.plan_spans(start, end, snapshot)
    finally:
        hub_state.close()
    return make_tasks(options, columns, spans, hub_state.epoch, planned=planned_hub(snapshot))
