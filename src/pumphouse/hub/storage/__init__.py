"""Where the events of a partition are kept: in memory or in a data directory."""
