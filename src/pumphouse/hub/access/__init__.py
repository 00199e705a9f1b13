"""Who may do what: tokens, keys, grants, and callers of the HTTP API."""
