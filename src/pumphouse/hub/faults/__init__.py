"""Fault injection: rules for the faults, and the code that injects them."""
