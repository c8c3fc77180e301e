"""Calls of operators on resident tensors: what a program for one depends on."""
