"""Cancellation of tasks that run user code: by their owner, or by that code itself.

A handler may cancel its own task, or another task of the user may. asyncio does not distinguish
this from a cancellation by the owner of the task. Without the distinction the task would end, and
nothing would report that.

    engine, concurrent -> OwnedTasks -> handlers, supervisor: withdraw_cancellations
                          ^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self


def is_cancelled() -> bool:
    """Whether the current task itself is being cancelled, and not only something it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class OwnedTasks(asyncio.TaskGroup):
    """A task group that knows whether it cancels its tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._owner: asyncio.Task[Any] | None = None
        self._has_cancelled = False
        self._cancelled_before = 0  # cancellations of the owner before it created the group

    async def __aenter__(self) -> Self:
        owner = asyncio.current_task()
        assert owner is not None
        self._owner, self._cancelled_before = owner, owner.cancelling()
        await super().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._has_cancelled |= error is not None
        await super().__aexit__(kind, error, traceback)

    def cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task of the group."""
        self._has_cancelled = True
        task.cancel()

    @property
    def is_cancelling(self) -> bool:
        """Whether the group cancels its tasks. If a task fails, the group cancels its owner too."""
        owner = self._owner
        is_owner_cancelled = owner is not None and owner.cancelling() > self._cancelled_before
        return self._has_cancelled or is_owner_cancelled


async def raise_pending_cancellation(owner: OwnedTasks) -> None:
    """Raise CancelledError if user code has cancelled the task, and no await has raised it yet."""
    if is_cancelled() and await withdraw_cancellations(owner):
        raise asyncio.CancelledError


async def withdraw_cancellations(owner: OwnedTasks) -> bool:
    """Withdraw the cancellations of the current task that user code has requested.

    Returns whether a cancellation was pending, that is, not raised by an await yet. Raises
    CancelledError if the owner cancels the task.
    """
    is_pending = False
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        is_pending = True
    if owner.is_cancelling:
        raise asyncio.CancelledError
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
    return is_pending
