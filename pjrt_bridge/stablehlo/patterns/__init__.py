"""Patterns: operations of programs that others wrote, computed by a target's kernels.

Lowerings ask for kernels themselves. What JAX, TensorFlow, an exported model or a user wrote in
StableHLO is found here: in a program that is called, `Builder.call(resolved(program, kernels),
operands, rounds(kernels))`, or in a whole one, `for_target(program, kernels)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.builder.rewriting import Round
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.patterns import (
    assemblies,
    attention,
    expressions,
    gathers,
    norms,
    operations,
    reductions,
    small_programs,
    softmax,
    sorts,
    stores,
)
from pjrt_bridge.stablehlo.patterns.composites import resolved
from pjrt_bridge.stablehlo.program.program import Program


def for_target(program: Program, kernels: Kernels) -> Program:
    """A program as the kernels of a target compute it, with its composites inlined.

    Kernels are for the arrays of one device: one that is divided over devices has no operations of
    a target.
    """
    if program.may_be_sharded:
        kernels = Kernels()
    program = resolved(program, kernels)
    found = [*rounds(kernels), *finishing(kernels)]
    return Builder.rewritten(program, found, kernels.functions) if found else program


def rounds(kernels: Kernels) -> Sequence[Round]:
    """By operation what the kernels of a target have for it; none for the portable ones.

    What consists of many operations goes first: attention has a softmax, and both have products
    and reductions.
    """
    if type(kernels) is Kernels:
        return ()
    return (
        {
            "stablehlo.divide": partial(attention.divided_last, kernels),
            "stablehlo.dot_general": partial(attention.divided_first, kernels),
        },
        {
            "stablehlo.add": partial(norms.norm, kernels),
            "stablehlo.divide": partial(softmax.softmax, kernels),
            "stablehlo.multiply": partial(norms.norm, kernels),
            "stablehlo.transpose": partial(operations.transposed_product, kernels),
        },
        {
            "stablehlo.convolution": partial(operations.convolution, kernels),
            "stablehlo.dot_general": partial(operations.product, kernels.product),
            "stablehlo.dynamic_update_slice": partial(operations.overwriting, kernels),
            "stablehlo.fft": partial(operations.fourier, kernels),
            "stablehlo.gather": partial(gathers.gathered, kernels),
            "stablehlo.reduce": partial(operations.reduction, kernels),
            "stablehlo.sort": partial(sorts.ordered, kernels),
        },
    )


def finishing(kernels: Kernels) -> Sequence[Round]:
    """What the kernels of a target have for a program that is finished otherwise."""
    if type(kernels).expression is Kernels.expression:
        return ()
    small = small_programs.SmallPrograms(kernels)
    found = expressions.Expressions(kernels, small)
    rewrites: Round = {
        **dict.fromkeys(expressions.ROOTS, found),
        "func.call": stores.stored,
        "stablehlo.reduce": partial(reductions.reduction, kernels),
    }
    # What the calls of the first round read is in memory, so that the second one makes it roots.
    copies: Round = dict.fromkeys(assemblies.ROOTS, partial(assemblies.assembled, kernels))
    # What only copies goes before what computes, and again where what it reads was computed.
    return ({"stablehlo.dot_general": small.product}, copies, rewrites, rewrites, copies)
