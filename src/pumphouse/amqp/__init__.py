"""AMQP 1.0 without IO: values, frames, messages, and the states of connections and links."""
