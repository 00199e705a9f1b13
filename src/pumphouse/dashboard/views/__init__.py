"""The data that the page shows, as plain JSON values. Pure functions."""
