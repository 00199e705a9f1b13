"""What several commands share: output, options, connections."""
