"""Exceptions of user code that are not an Exception.

Rust extensions raise such exceptions (PanicException of pyo3), and so does pytest.fail. They are a
failure of the handler like any other. Those that end a task or the process are not.
"""

from __future__ import annotations

import asyncio

from pumphouse.logs import text_of

ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)


def as_failure(raised: BaseException) -> Exception:
    """The exception as a failure of user code; raised again if it ends the task or the process."""
    if isinstance(raised, Exception):
        return raised
    is_mixed = isinstance(raised, BaseExceptionGroup) and raised.subgroup(ENDS) is not None
    if isinstance(raised, ENDS) or is_mixed:
        raise raised
    failure = RuntimeError(
        f"user code raised {type(raised).__name__}, which is not an Exception: {text_of(raised)}"
    )
    failure.__cause__ = raised
    return failure
