"""Compiled graphs and the calls of them: arguments in, executions, results out, call after call."""
