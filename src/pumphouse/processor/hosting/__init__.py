"""Several processors in one process, and processors from environment variables."""
