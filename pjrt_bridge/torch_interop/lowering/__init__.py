"""Lowerings: how one ATen operator becomes StableHLO.

`registry.find("aten.add.Tensor")` gives a function of a `Context` and the operator's arguments
that emits into the context's `Builder`, or raises `NotLowerable` with the reason that the user
reads. Every other module here is one family of operators; its docstring states which ATen
semantics its lowerings keep.
"""
