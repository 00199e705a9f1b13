"""Checks of the hub: events that are gone, and failures that do not pass."""
