"""The end of every error text: an id that is in the client's error and in the hub's log.

    The messaging entity '…' could not be found. TrackingId:…, SystemTracker:…, Timestamp:…
                                                 ^^^^^^^^^^ this module

The service ends its texts in this way, and its clients and users know the form.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from functools import lru_cache
from math import floor

GATEWAY = "G0"  # the service appends the number of its gateway to an id


def new_id() -> str:
    """A random UUID. It takes a third of the time of uuid4: clients can cause many errors."""
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def tracked(text: str, tracking_id: str, tracker: str, now: float) -> str:
    """A text with its tracking id, the entity that it is about, and the time."""
    return (
        f"{text} TrackingId:{tracking_id}_{GATEWAY}, SystemTracker:{tracker}, "
        f"Timestamp:{iso_second(floor(now))}"
    )


@lru_cache(maxsize=1)  # clients can cause thousands of errors in a second
def iso_second(now: int) -> str:
    return f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%S}"
