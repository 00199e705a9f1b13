"""Metrics of ranges: those of a reader, one receive for each batch."""

from __future__ import annotations

import pytest

from pumphouse.client.bulk.client import BulkClient, RangeOptions, RangeTimeout, read_range
from pumphouse.hub.embedded import EmbeddedHub
from tests.client.bulk.hub_entity import SHORT_DEADLINE, Entity, filled_entity
from tests.telemetry.page import forget_totals, recording, scrape

CONSUMED = "messaging_client_consumed_messages_total"
CALLS = "messaging_client_operation_duration_seconds_count"


@pytest.fixture(autouse=True)
def no_totals() -> None:
    forget_totals()


def value(eh: Entity, name: str, error: str = "") -> float:
    labels = {
        "messaging_system": "eventhubs",
        "messaging_operation_name": "receive",
        "messaging_operation_type": "receive",
        "messaging_destination_name": eh.name,
        "messaging_destination_partition_id": "0",
        "messaging_consumer_group_name": "$Default",
    }
    found = scrape(name, **labels).items()
    return sum(value for (_, own), value in found if dict(own).get("error_type", "") == error)


def test_batches_and_their_events_are_counted(server: EmbeddedHub) -> None:
    """The totals stay after the client: a range may be read between two scrapes."""
    eh, options = filled_entity(server), RangeOptions(batch_rows=100)
    with recording():
        list(read_range(eh.connection, "0", 0, 300, options))
        with BulkClient(eh.connection) as client:
            list(client.read_range("0", 50, 150, options))
        assert (value(eh, CONSUMED), value(eh, CALLS)) == (400, 4)


def test_a_failed_range_has_its_error(server: EmbeddedHub) -> None:
    eh = filled_entity(server)
    with recording(), pytest.raises(RangeTimeout):
        list(read_range(eh.connection, "0", 299, 301, SHORT_DEADLINE))
    with recording():
        assert (value(eh, CALLS, "RangeTimeout"), value(eh, CONSUMED, "RangeTimeout")) == (1, 0)


def test_nothing_is_recorded_while_metrics_are_off(server: EmbeddedHub) -> None:
    eh = filled_entity(server)
    list(read_range(eh.connection, "0", 0, 300))
    with recording():
        assert (value(eh, CONSUMED), value(eh, CALLS)) == (0, 0)
