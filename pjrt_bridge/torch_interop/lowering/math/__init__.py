"""Elementwise mathematics, comparisons, reductions, scans and sorts."""
