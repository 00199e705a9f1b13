"""What operators see and change: the ownership table and checkpoint resets."""
