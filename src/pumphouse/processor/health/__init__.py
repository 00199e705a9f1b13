"""What a host observes of itself: the state of its partitions, late renewals and stuck handlers."""
