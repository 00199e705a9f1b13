"""Pauses: the partitions of a host whose events are not handed out.

engine.pause, engine.resume -> Pauses -> supervisor, pump
                               ^^^^^^ this module (pure)
"""

from __future__ import annotations


class Pauses:
    """Some partitions, or all of them, also those that are claimed later."""

    def __init__(self) -> None:
        self._partitions: set[str] = set()
        self._has_all = False

    def __contains__(self, partition: str) -> bool:
        return self._has_all or partition in self._partitions

    def pause(self, partition: str | None) -> None:
        """Pause one partition, or all."""
        if partition is None:
            self._has_all = True
        else:
            self._partitions.add(partition)

    def resume(self, partition: str | None) -> None:
        """End the pause of one partition, or of all."""
        if partition is None:
            self._has_all = False
            self._partitions.clear()
        else:
            self._partitions.discard(partition)
