"""PrefetchBudget: divides the bytes that one process may buffer between its readers.

    Pump -> PrefetchBudget.share -> ReaderOptions.bytes_limit -> the buffer of a reader
            ^^^^^^^^^^^^^^ this module

All hosts of a process count: a service with two hosts has one memory. Each reader gets an equal
share. When another reader opens, the shares shrink, and larger buffers drain before they are filled
again.
"""

from __future__ import annotations


class PrefetchBudget:
    """The number of open readers, and what each of them may buffer."""

    def __init__(self) -> None:
        self.readers = 0

    def opened(self) -> None:
        self.readers += 1

    def closed(self) -> None:
        self.readers -= 1

    def share(self, bytes_total: int) -> int:
        """The bytes that each reader may buffer, if all together may buffer `bytes_total`."""
        return bytes_total // max(1, self.readers)


PROCESS = PrefetchBudget()
