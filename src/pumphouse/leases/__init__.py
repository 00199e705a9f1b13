"""Who owns which partition: rows, checkpoints, strategies and the stores that keep them."""
