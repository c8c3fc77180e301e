"""Random numbers as functions of keys."""
