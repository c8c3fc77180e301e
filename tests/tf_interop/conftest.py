"""TensorFlow is optional: where it is not installed there is nothing to test but that."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = (
    [] if find_spec("tensorflow") else ["programs/*", "test_[!i]*.py", "triggers.py"]
)
