"""Checks of the hub: events that are gone, and permanent failures."""
