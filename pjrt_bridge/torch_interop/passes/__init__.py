"""Passes: rewrites of ATen graphs before placement and emission.

Each module docstring says what graph the pass takes, and what it returns.
"""
