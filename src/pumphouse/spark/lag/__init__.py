"""The lag of a query: listener, mirrored checkpoints, known positions and reports of tasks."""
