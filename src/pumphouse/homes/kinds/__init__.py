"""Kinds of sensors, kinds of alerts and their rules: what a file for `--kinds` describes."""
