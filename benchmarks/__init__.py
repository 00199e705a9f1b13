"""Benchmarks: one file per question, each against a peer measured in the same run.

    python -m benchmarks.hub [--quick] [-o text|json]

`make bench` runs all of them in full and rewrites docs/benchmarks.md.
"""
