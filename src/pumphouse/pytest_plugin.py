"""A pytest fixture for projects that use Event Hubs: install Pumphouse, ask for `event_hub`.

    def test_my_producer(event_hub):
        event_hub.create_hub("orders", partitions=2)
        send_orders(event_hub.connection_string("orders"))

Each test gets a hub of its own, on a free port, on a thread of its own, with the official keys'
rules enforced. It starts without hubs; `create_hub` takes microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pumphouse.hub.embedded import EmbeddedHub


@pytest.fixture
def event_hub() -> Iterator[EmbeddedHub]:
    """An embedded event hub, running for the length of one test."""
    # Imported here so that installing Pumphouse costs nothing in test runs that do not use it.
    from pumphouse.hub.embedded import EmbeddedHub

    with EmbeddedHub() as hub:
        yield hub
