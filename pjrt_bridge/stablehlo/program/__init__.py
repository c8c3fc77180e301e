"""StableHLO programs as values: text, bytecode, portable artifacts, signatures."""
