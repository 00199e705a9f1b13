"""How events are read and sent."""
