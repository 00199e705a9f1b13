"""The embedded event hub."""
