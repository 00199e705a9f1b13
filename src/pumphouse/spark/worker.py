"""Adjusts a Spark worker process: its garbage collections, and its end without a consumer.

Spark's daemon collects garbage after every task, before the worker gets the next one. With pyarrow,
numpy and pyspark imported that takes 10 to 20 ms, far longer than reading a small range, and it
frees nothing: modules stay. Frozen objects are not examined again.

When Spark needs no more rows of a task (`limit`), it closes the socket. The worker then fails to
write, prints a traceback and ends; that is no error.

    read_task, writers -> freeze_imported_modules, end_quietly_without_consumer
                          ^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import gc
import sys
import traceback
from functools import cache
from typing import Any


@cache
def freeze_imported_modules() -> None:
    """Call at the end of a task, when everything is imported; only the first call has an effect.

    Objects that exist now are then freed only by their reference count: cycles among them stay.
    """
    gc.collect()
    gc.freeze()


@cache
def end_quietly_without_consumer() -> None:
    """Print no traceback when the worker process ends because Spark has closed its socket."""
    if "pyspark.daemon" not in sys.modules and not is_main("pyspark.daemon"):
        return
    print_exc = traceback.print_exc

    def print_other_errors(*args: Any, **options: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
            print_exc(*args, **options)

    traceback.print_exc = print_other_errors


def is_main(module: str) -> bool:
    """Whether this process was started as `python -m MODULE`."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == module
