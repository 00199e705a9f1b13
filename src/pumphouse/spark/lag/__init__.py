"""How far a query is behind: listener, mirrored checkpoints, known positions and task reports."""
