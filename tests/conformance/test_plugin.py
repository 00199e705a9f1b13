"""The pytest fixture `event_hub`: used directly, and from a project that installs Pumphouse."""

from __future__ import annotations

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.exceptions import AuthenticationError

from pumphouse.hub.access.auth import Claim
from pumphouse.hub.embedded import EmbeddedHub

pytest_plugins = ["pytester"]

seen: list[EmbeddedHub] = []


def test_it_starts_without_hubs(event_hub: EmbeddedHub) -> None:
    assert event_hub.hubs == {}
    event_hub.create_hub("orders", partitions=2)
    assert event_hub.hubs == {"orders": 2}
    seen.append(event_hub)


def test_each_test_has_its_own(event_hub: EmbeddedHub) -> None:
    assert event_hub.hubs == {}
    assert event_hub not in seen


def test_the_official_client_sends_and_receives(event_hub: EmbeddedHub) -> None:
    """Nothing but the SDK and a connection string."""
    event_hub.create_hub("orders", partitions=1)
    connection = event_hub.connection_string("orders")
    with EventHubProducerClient.from_connection_string(connection) as producer:
        producer.send_batch([EventData(b"one"), EventData(b"two")])
    received: list[bytes] = []
    consumer = EventHubConsumerClient.from_connection_string(connection, "$Default")

    def on_event(context: object, event: EventData | None) -> None:
        assert event is not None
        received.append(b"".join(event.body))  # type: ignore[arg-type]
        if len(received) == 2:
            consumer.close()

    consumer.receive(on_event, starting_position="-1")
    assert received == [b"one", b"two"]


def test_its_keys_are_checked(event_hub: EmbeddedHub) -> None:
    event_hub.create_hub("orders")
    event_hub.create_rule("reader", [Claim.LISTEN], key="secret")
    good = event_hub.connection_string("orders", rule="reader")
    bad = good.replace("secret", "guess")
    with (
        EventHubProducerClient.from_connection_string(bad, retry_total=0) as producer,
        pytest.raises(AuthenticationError),
    ):
        producer.get_eventhub_properties()
    with EventHubProducerClient.from_connection_string(good, retry_total=0) as producer:
        assert producer.get_partition_ids() == ["0", "1", "2", "3"]


USERS_TEST = """
    from azure.eventhub import EventData, EventHubProducerClient

    def test_producer(event_hub):
        event_hub.create_hub("orders", partitions=2)
        connection = event_hub.connection_string("orders")
        with EventHubProducerClient.from_connection_string(connection) as producer:
            producer.send_batch([EventData(b"order")], partition_key="customer")
            partitions = [producer.get_partition_properties(p) for p in ("0", "1")]
        assert sorted(p["last_enqueued_sequence_number"] for p in partitions) == [-1, 0]

    def test_another(event_hub):
        assert event_hub.hubs == {}
"""


def test_a_users_project_gets_it(pytester: pytest.Pytester) -> None:
    """No conftest, no import, no configuration: pytest finds the plugin by its entry point."""
    pytester.makepyfile(USERS_TEST)
    result = pytester.runpytest_subprocess("-p", "no:asyncio", "-W", "error")
    result.assert_outcomes(passed=2)


def test_the_plugin_imports_no_hub_until_it_is_used(pytester: pytest.Pytester) -> None:
    """Every test run on the machine loads the plugin, but not the hub."""
    pytester.makepyfile(
        """
        import sys

        def test_unrelated():
            assert "pumphouse.pytest_plugin" in sys.modules
            assert "pumphouse.hub" not in sys.modules
            assert "numpy" not in sys.modules
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
