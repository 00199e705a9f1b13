"""What the page observes: consumer groups, homes, stages, events and host processes."""
