"""The second driver: the official azure-eventhub SDK behind the same protocols."""
