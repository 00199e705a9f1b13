"""The frames of a log: built from the events of a batch."""
