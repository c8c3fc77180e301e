"""Dynamo: which graphs it makes of Python code, and with which sizes."""
