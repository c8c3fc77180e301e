"""Data between host and devices: put, read, layouts, DLPack."""
