"""Output, options and connections that several commands share."""
