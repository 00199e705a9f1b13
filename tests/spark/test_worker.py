"""A worker process keeps what it has imported out of the garbage collector's way."""

from __future__ import annotations

import subprocess
import sys

LOOK = """
import gc
import pyarrow
from pumphouse.spark.worker import freeze_imported_modules
assert gc.get_freeze_count() == 0
freeze_imported_modules()
settled = gc.get_freeze_count()
later = [[] for _ in range(1000)]
freeze_imported_modules()
print(settled, gc.get_freeze_count(), len(gc.get_objects()))
"""


def test_what_was_imported_is_frozen_once() -> None:
    # In a process of its own: ours shall not be frozen.
    told = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, check=True, timeout=60
    )
    settled, again, left = map(int, told.stdout.split())
    assert settled > 5_000
    assert again <= settled  # of what came later nothing was added
    assert left < settled  # what the daemon looks at after every task
