"""Runs of messages with the same layout, decoded into columns without one object per message."""
