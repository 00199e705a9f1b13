"""What a host records of itself: metrics and spans."""
