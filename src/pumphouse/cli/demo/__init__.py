"""`pumphouse demo`: the whole system on one machine."""
