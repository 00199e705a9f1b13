"""What a worker process of Spark does once, for all tasks that it will ever run.

Spark's daemon collects garbage after every task, before the worker can have the next one. With
pyarrow, numpy and pyspark imported that takes 10 to 20 ms, far longer than a small range does, and
it never finds anything there: modules stay. Frozen, they are not looked at again.

    read_task, writers -> settle_in
                          ^^^^^^^^^ this module
"""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_imported_modules() -> None:
    """Called at the end of a task, when everything is imported; only the first call does something.

    What is freed by its last reference still is; only rings of what exists now would stay.
    """
    gc.collect()
    gc.freeze()
