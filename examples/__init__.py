"""Programs to run and to learn from."""
