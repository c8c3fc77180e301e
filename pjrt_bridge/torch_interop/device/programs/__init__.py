"""Programs for calls of operators: traced, compiled and kept."""
