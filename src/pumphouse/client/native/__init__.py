"""The native driver: an AMQP client of our own over asyncio."""
