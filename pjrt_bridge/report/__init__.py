"""What became of a program, and why: the report as data, and as table, page and picture."""
