"""What a worker process of a long simulation does before its first seed."""

from __future__ import annotations

import gc
import os
import time
from threading import Thread

GC_THRESHOLDS = (50_000, 20, 50)  # a run creates many small long-lived objects: collect less often


def prepare_worker(parent: int) -> None:
    """Set the thresholds of the collector, and end if the process that waits for results ends."""
    gc.set_threshold(*GC_THRESHOLDS)

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    Thread(target=end_with_parent, daemon=True).start()
