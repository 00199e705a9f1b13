"""The epochs of a run: higher than those of every query of the group that was started before.

clock -> run_epoch -> epoch_above(reader that is present) -> epochs of the guard and the tasks
         ^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from pumphouse.clock import SystemClock, now_ms
from pumphouse.spark.read.siblings import BATCH_EPOCH

# An older query raises its epoch with each batch until it notices the newer one: 600,000 batches.
HEADROOM = 600_000 * BATCH_EPOCH
EPOCH_MAX = (1 << 63) - 1  # a signed long in AMQP


def run_epoch() -> int:
    """The first epoch of a run that starts now: higher than those of every earlier run.

    Each batch raises the epoch by BATCH_EPOCH, and each ms of the clock raises the first epoch of a
    run by as much. A batch takes longer than 1 ms, so the epochs of a run stay below those of a
    later run.
    """
    return now_ms(SystemClock()) * BATCH_EPOCH


def epoch_above(epoch: int, present: int | None) -> int:
    """The first epoch of a run that found a reader with the epoch `present` when it started.

    That reader is of an older query, though its epoch is higher if the clock of its machine is
    ahead.
    """
    if present is None or present < epoch:
        return epoch
    raised = (present // BATCH_EPOCH) * BATCH_EPOCH + HEADROOM
    return raised if raised + HEADROOM < EPOCH_MAX else epoch
