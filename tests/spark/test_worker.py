"""A worker process excludes imported modules from garbage collections."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
import pyarrow
from pumphouse.spark.worker import freeze_imported_modules
assert gc.get_freeze_count() == 0
freeze_imported_modules()
frozen = gc.get_freeze_count()
later = [[] for _ in range(1000)]
freeze_imported_modules()
print(frozen, gc.get_freeze_count(), len(gc.get_objects()))
"""


def test_imported_modules_are_frozen_once() -> None:
    # In a separate process, so that the objects of the test run are not frozen.
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    frozen, frozen_later, examined = map(int, result.stdout.split())
    assert frozen > 5_000
    assert frozen_later <= frozen  # later objects were not added
    assert examined < frozen  # the objects that the daemon's collector examines after every task
