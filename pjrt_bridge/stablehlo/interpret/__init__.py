"""Running StableHLO programs in the reference interpreter."""
