"""The invariants of a fleet and their checks, by subject: rows, checkpoints, handlers."""
