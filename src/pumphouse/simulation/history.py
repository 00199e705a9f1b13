"""The history of a run: a digest of all its records, and the last records as text.

Two runs are the same if and only if their digests are equal.

    Checks -> History -> digest, the records before a violation
              ^^^^^^^ this module
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque

KEPT = 400  # records that can be shown


class History:
    """Records in order, hashed as they are added."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self._hash = hashlib.blake2b(digest_size=16)
        self._last: deque[tuple[float, str, str]] = deque(maxlen=KEPT)

    def add(self, at_s: float, kind: str, text: str) -> None:
        self.kinds[kind] += 1
        self._last.append((at_s, kind, text))
        self._hash.update(f"{at_s:.6f} {kind} {text}\n".encode())

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    @property
    def events(self) -> int:
        """The number of records."""
        return self.kinds.total()

    def last(self, count: int = 40, about: str = "") -> list[str]:
        """The last records as text; `about` selects those of one partition, and all faults."""
        chosen = [
            f"{at_s:12.3f}  {kind:10}  {text}"
            for at_s, kind, text in self._last
            if not about or about in text or kind == "fault"
        ]
        return chosen[-count:]
