"""Measurements: every number is a ratio of medians from one interleaved run."""
