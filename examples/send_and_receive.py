"""Send events to an embedded hub with the official client, and read them back."""

from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient

from pumphouse import EmbeddedHub


def main() -> None:
    with EmbeddedHub(hubs={"sensors": 4}) as hub:
        connection = hub.connection_string("sensors")
        with EventHubProducerClient.from_connection_string(connection) as producer:
            batch = producer.create_batch(partition_key="home-7")
            for minute in range(5):
                batch.add(EventData(f"motion at minute {minute}"))
            producer.send_batch(batch)

        consumer = EventHubConsumerClient.from_connection_string(connection, "$Default")

        def on_event(partition, event):  # type: ignore[no-untyped-def]
            print(partition.partition_id, event.sequence_number, event.body_as_str())
            if event.sequence_number == 4:
                consumer.close()

        consumer.receive(on_event=on_event, starting_position="-1")


if __name__ == "__main__":
    main()
