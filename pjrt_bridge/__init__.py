"""A framework-neutral bridge to PJRT plugins."""
