"""The id of this process, and what a forked child closes of the hubs of its parent.

A child of os.fork inherits the descriptors of a hub, but not its threads. It never uses them, and
its copies would keep the port and the data directory in use after the hub has stopped, and the
connections of its clients open. Closing a copy has no effect on the parent: neither a lock nor a
connection ends before its last descriptor is closed.

    Listener, DataDirectory -> close_in_child -> os.register_at_fork
                               ^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet


class Inherited(Protocol):
    """Has descriptors. `close` only closes them: no shutdown, no unlock, no use of a loop."""

    def close(self) -> None: ...


process = os.getpid()  # of this process, also in a forked child; needs no system call

_inherited: WeakSet[Inherited] = WeakSet()


def close_in_child(inherited: Inherited) -> None:
    """Close it in every child that is forked while it exists."""
    _inherited.add(inherited)


def _start_child() -> None:
    global process
    process = os.getpid()
    for each in list(_inherited):
        with suppress(OSError):
            each.close()
    _inherited.clear()


os.register_at_fork(after_in_child=_start_child)
