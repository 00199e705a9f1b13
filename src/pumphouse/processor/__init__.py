"""Processors: hosts that share the partitions of a hub by leases, and handle their events."""
