"""Calls one function for each of several hubs, at the same time.

Each call waits for its own hub. An error names the hub.

    SeveralHubsDriver -> call_each -> driver of each hub
                         ^^^^^^^^^ this module
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from pumphouse.errors import PumphouseError

T = TypeVar("T")


def call_each(hubs: Iterable[str], work: Callable[[str], T]) -> dict[str, T]:
    """The result for each hub, in the given order; raises the first error after all have ended."""
    results: dict[str, T] = {}
    errors: dict[str, BaseException] = {}

    def run(hub: str) -> None:
        try:
            results[hub] = work(hub)
        except BaseException as failed:
            errors[hub] = failed

    names = list(hubs)
    threads = [
        threading.Thread(target=run, args=(hub,), name=f"hub {hub}", daemon=True) for hub in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for hub in names:
        if hub in errors:
            raise naming(hub, errors[hub])
    return {hub: results[hub] for hub in names}


def naming(hub: str, failed: BaseException) -> BaseException:
    """The error, with the hub in its text if it does not name it."""
    first = failed.args[0] if failed.args else None
    if isinstance(failed, PumphouseError) and isinstance(first, str) and hub not in str(failed):
        failed.args = (f"hub {hub}: {first}", *failed.args[1:])
    return failed
