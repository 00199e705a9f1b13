"""A hub for each test, since Proton's ways of closing must not affect other tests."""

from __future__ import annotations

import pytest

from pumphouse.hub.embedded import EmbeddedHub


@pytest.fixture
def hub(event_hub: EmbeddedHub) -> EmbeddedHub:
    event_hub.create_hub("scenarios", 4)
    return event_hub
