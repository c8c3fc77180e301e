"""Resident tensors: those whose elements are on a plugin's device.

`client` is whose devices they are, `storages` holds their elements, `calls` tells what a call of an
operator on them depends on, and `graphs` takes and gives them in compiled graphs.
"""
