"""Metrics of ranges, as of other readers: each batch is one `receive`.

    BulkClient.read -> RangeMetering -> Operation -> series
                       ^^^^^^^^^^^^^ this module

A range may be read in less than the interval between two scrapes, so its series last as long as the
process: one for each hub, partition, group and type of error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

import pyarrow as pa

from pumphouse.client.metered import RECEIVE, Operation
from pumphouse.telemetry.definitions import CONSUMED_MESSAGES

_recording = Lock()  # several threads may read the same partition


class RangeMetering:
    """Records the batches of one range."""

    def __init__(self, hub: str, partition: str, group: str) -> None:
        self._operation = Operation(
            RECEIVE,
            CONSUMED_MESSAGES,
            set(),
            time.perf_counter,
            lasts=True,
            destination_name=hub,
            destination_partition_id=partition,
            consumer_group_name=group,
        )
        self.close = self._operation.close

    def next_batch(self, read: Callable[[], pa.RecordBatch]) -> pa.RecordBatch:
        began_s = self._operation.clock()
        try:
            batch = read()
        except Exception as error:
            with _recording:
                self._operation.record_failure(began_s, 0, error)
            raise
        with _recording:
            self._operation.record(began_s, batch.num_rows)
        return batch
