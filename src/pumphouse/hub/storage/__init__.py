"""The storage of events, in memory or in a data directory."""
