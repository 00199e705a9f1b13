"""The pytest fixture `event_hub`, for projects that use Event Hubs.

    def test_my_producer(event_hub):
        event_hub.create_hub("orders", partitions=2)
        send_orders(event_hub.connection_string("orders"))

Each test gets its own namespace, on a free port and on its own thread, with access keys enforced.
The namespace has no hubs at the start; `create_hub` takes microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pumphouse.hub.embedded import EmbeddedHub


@pytest.fixture
def event_hub() -> Iterator[EmbeddedHub]:
    """An embedded event hub that runs for one test."""
    # Imported here: test runs that do not use the fixture must not pay for the import.
    from pumphouse.hub.embedded import EmbeddedHub

    with EmbeddedHub() as hub:
        yield hub
