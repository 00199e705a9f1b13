"""Limits of what a client may send: connections, bytes, lengths of texts, sections of events."""
