"""Homes: sensors of many homes, through three Spark stages, to alerts and records."""
