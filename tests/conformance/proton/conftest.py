"""A hub for each test: Proton's own ways of saying good-bye must not disturb the others."""

from __future__ import annotations

import pytest

from pumphouse.hub.embedded import EmbeddedHub


@pytest.fixture
def hub(event_hub: EmbeddedHub) -> EmbeddedHub:
    event_hub.create_hub("judged", 4)
    return event_hub
