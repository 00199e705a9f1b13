"""How events are read and sent: for now the native client over plain AMQP (see native.py)."""
