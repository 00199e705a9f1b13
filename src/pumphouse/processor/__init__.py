"""Leases in, running pumps out."""
