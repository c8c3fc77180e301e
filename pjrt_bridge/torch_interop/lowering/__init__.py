"""Lowerings: how an ATen operator becomes StableHLO.

`registry.find_lowering("aten.add.Tensor")` returns a function of a `Context` and the operator's
arguments that emits into the context's `Builder`, or raises `NotLowerable` with the reason that the
user reads. `api` publishes what packages of plugins need. Every other module here is one family of
operators; its docstring states which ATen semantics its lowerings keep.
"""
