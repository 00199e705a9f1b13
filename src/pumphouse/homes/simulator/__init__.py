"""The home simulator: people, sensors, incidents, readings, and the sender."""
