"""Fault injection: rules that say what fails, and the code that makes it fail."""
