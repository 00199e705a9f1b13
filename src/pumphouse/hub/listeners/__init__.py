"""The listeners of a hub besides plain AMQP: TLS, WebSocket and HTTP."""
