"""How user code is called: threads for plain functions and callbacks."""
