"""Adjusts a Spark worker process: its garbage collections, its errors, its end without a consumer.

Spark's daemon collects garbage after every task, before the worker gets the next one. With pyarrow,
numpy and pyspark imported that takes 10 to 20 ms, far longer than reading a small range, and it
frees nothing: modules stay. Frozen objects are not examined again.

When Spark needs no more rows of a task (`limit`), it closes the socket. The worker then fails to
write, prints a traceback and ends, although nothing is wrong.

Spark puts the traceback of the process before the message of an error. An error that we raise on
purpose has a message for the author of the query: it comes first, and without a traceback.

    read_task, writers -> freeze_imported_modules, end_quietly_without_consumer
    readers, writers -> messages_first            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from types import FunctionType
from typing import Any, TypeVar

from pumphouse.errors import PumphouseError

T = TypeVar("T")
Class = TypeVar("Class", bound=type)

log = logging.getLogger("pumphouse.spark")

_frozen_modules = 0  # how many were imported at the last call of freeze_imported_modules

HIDES_TRACEBACK = "SPARK_HIDE_TRACEBACK"  # what Spark reads when it reports an error


def freeze_imported_modules() -> None:
    """Call at the end of a task. It has an effect only if modules were imported since the last
    call: a worker runs tasks of several kinds, and each imports modules of its own.

    Objects that exist now are then freed only by their reference count: cycles among them stay.
    """
    global _frozen_modules
    if len(sys.modules) != _frozen_modules:
        _frozen_modules = len(sys.modules)
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
    return main_module() == module


def main_module() -> str:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "" if spec is None else str(spec.name)


def messages_first(reader: Class) -> Class:
    """Decorates a reader or writer: Spark shows the message of our errors without a traceback."""
    own = [each for each in reader.__mro__ if each.__module__.startswith("pumphouse.")]
    for name in {name for each in own for name in vars(each)}:
        method = getattr(reader, name)
        if isinstance(method, FunctionType) and (name == "__init__" or name[0] != "_"):
            setattr(reader, name, message_first(method))
    return reader


def message_first(function: Callable[..., T]) -> Callable[..., T]:
    @wraps(function)
    def call(*args: Any, **options: Any) -> T:
        with showing_message():
            return function(*args, **options)

    return call


@contextmanager
def showing_message() -> Iterator[None]:
    try:
        yield
    except PumphouseError:
        log.debug("error raised", exc_info=True)
        # The process ends after an error: no other error is affected.
        if is_started_by_spark():
            os.environ[HIDES_TRACEBACK] = "true"
        raise


def is_started_by_spark() -> bool:
    return main_module().startswith("pyspark.")
