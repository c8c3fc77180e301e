"""AOTAutograd's metadata of the graph that it compiles now: its arguments and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import SubclassGetAttrAOTInput
from torch._functorch._aot_autograd.schemas import (
    InputAliasInfo,
    OutputAliasInfo,
    OutputType,
    PlainTensorMeta,
    ViewAndMutationMeta,
)
from torch._guards import TracingContext


def _forward_metadata() -> ViewAndMutationMeta | None:
    """What AOTAutograd knows of the forward or inference graph that it compiles now."""
    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def static_inputs() -> frozenset[int]:
    """Indices of the graph inputs that are parameters, buffers or tensor attributes.

    Known while AOTAutograd compiles a forward or inference graph.
    """
    metadata = _forward_metadata()
    return frozenset() if metadata is None else frozenset(metadata.static_input_indices or ())


def parts_of_subclasses(graph: fx.Graph) -> frozenset[int]:
    """Indices of the graph inputs that AOTAutograd takes out of tensor subclasses, as of a DTensor.

    Operators that write into the subclass write into them, and do not move their versions.
    """
    placeholders = graph.find_nodes(op="placeholder")
    return frozenset(
        index
        for index, node in enumerate(placeholders)
        if isinstance(node.meta.get("desc"), SubclassGetAttrAOTInput)
    )


def _first_of_the_user(metadata: ViewAndMutationMeta) -> int:
    """Position of the user's first result, behind tokens and new values of inputs."""
    return len(metadata.tokens) + metadata.num_mutated_inp_runtime_indices


def differentiated_results() -> tuple[int, ...] | None:
    """Positions of results whose gradients the backward graph is given, in their order.

    The results are those of the node that autograd sees: new values of arguments, the function's
    results, and tensors that several of them are views of. Known while AOTAutograd compiles a
    forward graph; None where it does not say.
    """
    metadata = _forward_metadata()
    if metadata is None:
        return None
    written = metadata.mutated_inp_runtime_indices
    found = [
        at
        for at, index in enumerate(written)
        if metadata.input_info[index].mutates_data and metadata.input_info[index].requires_grad
    ]
    found += [
        len(written) + at
        for at, info in enumerate(metadata.output_info)
        if info.output_type in _DIFFERENTIATED
        and issubclass(info.raw_type, torch.Tensor)
        and getattr(info, "requires_grad_for_backward", info.requires_grad)
    ]
    first = len(written) + len(metadata.output_info)
    return (*found, *range(first, first + metadata.num_intermediate_bases))


_DIFFERENTIATED = (
    OutputType.non_alias,
    OutputType.unsafe_view_alias,
    OutputType.custom_function_view,
)
"""Types of results whose gradients autograd gives to the node."""


def results_of_their_own() -> tuple[int, ...]:
    """Positions, among the outputs of a graph, of results that the user gets as they are.

    AOTAutograd makes no view of them or for them; in the graph they may be views, also of one
    tensor. Known while AOTAutograd compiles a forward or inference graph.
    """
    metadata = _forward_metadata()
    if metadata is None:
        return ()
    first = _first_of_the_user(metadata)
    return tuple(
        first + index
        for index, output in enumerate(metadata.output_info)
        if output.output_type in (OutputType.non_alias, OutputType.unsafe_view_alias)
    )


@dataclass(frozen=True)
class Returned:
    """What AOTAutograd promises of the results of a graph.

    Attributes:
        visible: how many of the first results the user sees; the others are saved for backward.
            None for all.
        of_arguments: positions of results that are arguments or views of them.
        without_gradient: positions of tensors that no gradient leads to.
        inference: nothing of the graph is differentiated.
        records_gradients: whether gradients are recorded where the graph is called.
    """

    visible: int | None = None
    of_arguments: frozenset[int] = frozenset()
    without_gradient: frozenset[int] = frozenset()
    inference: bool = False
    records_gradients: bool = False


def returned(kind: str) -> Returned:
    """The promises on the results of the graph that AOTAutograd compiles now.

    Args:
        kind: `"inference"`, `"forward"` or `"backward"`.
    """
    metadata = _forward_metadata()
    if metadata is None or kind == "backward":
        return Returned()
    first = _first_of_the_user(metadata)
    of_arguments = frozenset(
        first + index
        for index, output in enumerate(metadata.output_info)
        if output.output_type in (OutputType.alias_of_input, OutputType.is_input)
    )
    without_gradient = frozenset(
        first + index
        for index, output in enumerate(metadata.output_info)
        if not output.requires_grad
    )
    visible = first + len(metadata.output_info) + metadata.num_intermediate_bases
    return Returned(
        visible if kind == "forward" else None,
        of_arguments,
        without_gradient,
        inference=kind == "inference",
        records_gradients=kind == "forward" or torch.is_grad_enabled(),
    )


_KNOWN_FIELDS: Mapping[type, frozenset[str]] = {
    InputAliasInfo: frozenset(
        [
            "is_leaf",
            "keep_input_mutations",
            "mutates_data",
            "mutates_metadata",
            "mutates_storage_metadata",
            "mutation_inductor_storage_resize",
            "mutations_hidden_from_autograd",
            "mutations_under_no_grad_or_inference_mode",
            "requires_grad",
        ]
    ),
    OutputAliasInfo: frozenset(
        [
            "base_idx",
            "dynamic_dims",
            "output_type",
            "raw_type",
            "requires_grad",
            "requires_grad_for_backward",
            "view_meta_sequence",
        ]
    ),
    ViewAndMutationMeta: frozenset(
        [
            "act_input_indices",
            "bw_donated_idxs",
            "compile_id_str",
            "deterministic",
            "grad_enabled_mutation",
            "graphsafe_rng_device",
            "graphsafe_rng_state_index",
            "indices_of_inputs_that_requires_grad_with_mutations_in_bw",
            "input_info",
            "is_train",
            "keep_input_mutations",
            "mutated_inp_stream_indices",
            "num_backward_tokens",
            "num_graphsafe_rng_states",
            "num_intermediate_bases",
            "num_opaque_objects_saved_for_bw",
            "num_symints_saved_for_bw",
            "num_tensors_saved_with_no_vc_check",
            "output_info",
            "static_input_indices",
            "subclass_fw_graph_out_meta",
            "subclass_inp_meta",
            "subclass_tangent_meta",
            "tangent_source_stack_traces",
            "tokens",
            "traced_tangent_metas",
            "traced_tangents",
            "traced_tangents_descs",
        ]
    ),
}
"""AOTAutograd's metadata of a graph, as `passes_through` was written for it.

A field that another version adds may be a reason not to go past its wrapper.
"""

_OPTIONAL_FIELDS = frozenset(
    [
        "act_input_indices",
        "compile_id_str",
        "graphsafe_rng_device",
        "is_train",
        "requires_grad_for_backward",
        "tangent_source_stack_traces",
    ]
)
"""Known fields that some versions (2.11 to 2.13) do not have."""


def is_known_metadata(metadata: Any) -> bool:
    """Whether AOTAutograd's metadata of a graph has the fields that are known, and no others."""
    kinds = {type(item) for item in (metadata, *metadata.input_info, *metadata.output_info)}
    for kind in kinds:
        known, found = _KNOWN_FIELDS.get(kind), {field.name for field in fields(kind)}
        if known is None or not known - _OPTIONAL_FIELDS <= found <= known:
            return False
    return True


def passes_through(inputs: int) -> bool:
    """Whether the user's arguments reach the graph, and its outputs the user, just as they are.

    New values of arguments are given to these by the graph itself. Known while AOTAutograd compiles
    an inference graph. False of metadata in an unknown form.

    Args:
        inputs: how many the graph has.
    """
    metadata = _forward_metadata()
    if metadata is None or not is_known_metadata(metadata):
        return False
    plain = [*metadata.subclass_inp_meta, *metadata.subclass_fw_graph_out_meta]
    return (
        len(metadata.input_info) == inputs
        and all(isinstance(item, PlainTensorMeta) for item in plain)
        and not (
            metadata.mutated_inp_runtime_indices
            or metadata.aliased_out_indices
            or metadata.num_intermediate_bases
            or metadata.dynamic_outputs
            or metadata.tokens
            or getattr(metadata, "act_input_indices", None)
            or metadata.is_rng_op_functionalized
            or metadata.num_graphsafe_rng_states
            or metadata.grad_enabled_mutation is not None
        )
    )


def report_strides(count: int, strides: Mapping[int, Sequence[int]]) -> None:
    """Say, while a forward graph is compiled, which results have other strides than promised.

    AOTAutograd gives the backward graph arguments with these strides. It does not count tokens,
    which are the first results. Nothing is said where it does not ask.

    Args:
        count: of the results.
        strides: by position.
    """
    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None and strides:
        metadata = _forward_metadata()
        tokens = 0 if metadata is None else len(metadata.tokens)
        given = (strides.get(position) for position in range(tokens, count))
        context.output_strides[:] = [None if item is None else tuple(item) for item in given]


def donate_nothing() -> None:
    """Say, while a forward graph is compiled, that backward leaves saved tensors as they are.

    AOTAutograd forbids to run backward twice where it believes that the backend consumes them, and
    little would be won: XLA reuses a donated argument only for a result of its size, and then keeps
    its temporaries elsewhere (0 to 2 % of the memory of backward for models whose batch is not as
    large as a layer is wide). They are released when backward returns.
    """
    metadata = _forward_metadata()
    if metadata is not None:
        metadata.bw_donated_idxs = []
