"""A namespace: partitions that are added while the hub runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.eventhub import EventData, EventHubProducerClient

from pumphouse.errors import OptionError, QuotaExceeded
from pumphouse.hub.embedded import EmbeddedHub


def test_the_official_client_sees_and_uses_new_partitions() -> None:
    with EmbeddedHub({"eh": 2}) as hub:
        connection = hub.connection_string("eh")
        with EventHubProducerClient.from_connection_string(connection) as producer:
            assert producer.get_partition_ids() == ["0", "1"]
            producer.send_event(EventData("old"), partition_id="0")
            hub.grow_hub("eh", 4)
        with EventHubProducerClient.from_connection_string(connection) as producer:
            assert producer.get_partition_ids() == ["0", "1", "2", "3"]
            producer.send_event(EventData("new"), partition_id="3")
            assert producer.get_partition_properties("3")["last_enqueued_sequence_number"] == 0
            assert producer.get_partition_properties("0")["last_enqueued_sequence_number"] == 0


def test_added_partitions_survive_a_restart(tmp_path: Path) -> None:
    with EmbeddedHub({"eh": 2}, data=tmp_path) as hub:
        hub.grow_hub("eh", 3)
        connection = hub.connection_string("eh")
        with EventHubProducerClient.from_connection_string(connection) as producer:
            producer.send_event(EventData("new"), partition_id="2")
    with EmbeddedHub(data=tmp_path) as hub:
        assert hub.hubs == {"eh": 3}
        connection = hub.connection_string("eh")
        with EventHubProducerClient.from_connection_string(connection) as producer:
            assert producer.get_partition_properties("2")["last_enqueued_sequence_number"] == 0


def test_partitions_are_never_removed_and_stay_within_the_tier() -> None:
    with EmbeddedHub({"eh": 4}, tier="standard") as hub:
        with pytest.raises(OptionError, match="has 4 partitions; the number can only grow"):
            hub.grow_hub("eh", 3)
        with pytest.raises(QuotaExceeded, match="would have 33 partitions"):
            hub.grow_hub("eh", 33)
        hub.grow_hub("eh", 4)  # no change
        assert hub.hubs == {"eh": 4}
