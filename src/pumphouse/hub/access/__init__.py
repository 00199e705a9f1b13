"""Access control: tokens, keys, grants, and callers of the HTTP API."""
