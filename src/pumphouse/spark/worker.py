"""Keeps imported modules out of the garbage collections of a Spark worker process.

Spark's daemon collects garbage after every task, before the worker gets the next one. With pyarrow,
numpy and pyspark imported that takes 10 to 20 ms, far longer than reading a small range, and it
frees nothing: modules stay. Frozen objects are not examined again.

    read_task, writers -> freeze_imported_modules
                          ^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_imported_modules() -> None:
    """Call at the end of a task, when everything is imported; only the first call has an effect.

    Objects that exist now are then freed only by their reference count: cycles among them stay.
    """
    gc.collect()
    gc.freeze()
