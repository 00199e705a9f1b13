"""AMQP 1.0 as plain data: bytes to frames and back. No IO, nothing of event hubs."""
