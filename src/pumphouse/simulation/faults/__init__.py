"""Faults of a simulated fleet: rates by kind, and when they happen."""
