"""Writing StableHLO programs, operation by operation."""
