"""A store in a Redis server, for hosts on many machines."""
