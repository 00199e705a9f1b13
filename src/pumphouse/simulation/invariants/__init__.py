"""The invariants of a fleet and the checks that find violations."""
