"""Clients of a hub: protocols (`base`), drivers (`native`, `azure`), ranges as Arrow (`bulk`)."""
