"""Every private name of torch that the bridge needs, imported here and nowhere else.

When a torch release moves something, this is the one package to change.
"""

from pjrt_bridge.torch_interop.compat.autograd import (
    GraphCompiler as GraphCompiler,
)
from pjrt_bridge.torch_interop.compat.autograd import (
    Returned as Returned,
)
from pjrt_bridge.torch_interop.compat.autograd import (
    boxed as boxed,
)
from pjrt_bridge.torch_interop.compat.autograd import (
    decompositions as decompositions,
)
from pjrt_bridge.torch_interop.compat.autograd import (
    donate_nothing as donate_nothing,
)
from pjrt_bridge.torch_interop.compat.autograd import (
    passes_through as passes_through,
)
from pjrt_bridge.torch_interop.compat.autograd import (
    results_of_their_own as results_of_their_own,
)
from pjrt_bridge.torch_interop.compat.autograd import (
    returned as returned,
)
from pjrt_bridge.torch_interop.compat.autograd import (
    run_aot_autograd as run_aot_autograd,
)
from pjrt_bridge.torch_interop.compat.autograd import (
    save_for_backward as save_for_backward,
)
from pjrt_bridge.torch_interop.compat.autograd import (
    saved_inputs as saved_inputs,
)
from pjrt_bridge.torch_interop.compat.autograd import (
    static_inputs as static_inputs,
)
from pjrt_bridge.torch_interop.compat.dynamo import (
    compile_id as compile_id,
)
from pjrt_bridge.torch_interop.compat.dynamo import (
    graph_breaks as graph_breaks,
)
from pjrt_bridge.torch_interop.compat.dynamo import (
    original as original,
)
from pjrt_bridge.torch_interop.compat.dynamo import (
    recompile_reasons as recompile_reasons,
)
from pjrt_bridge.torch_interop.compat.export import (
    CHECKS as CHECKS,
)
from pjrt_bridge.torch_interop.compat.export import (
    decomposed as decomposed,
)
from pjrt_bridge.torch_interop.compat.export import (
    export_joint as export_joint,
)
from pjrt_bridge.torch_interop.compat.export import (
    promise_alike as promise_alike,
)
from pjrt_bridge.torch_interop.compat.export import (
    trace as trace,
)
from pjrt_bridge.torch_interop.compat.export import (
    without_own_warnings as without_own_warnings,
)
from pjrt_bridge.torch_interop.compat.graphs import (
    bound_arguments as bound_arguments,
)
from pjrt_bridge.torch_interop.compat.graphs import (
    boxed_module as boxed_module,
)
from pjrt_bridge.torch_interop.compat.graphs import (
    flat_call as flat_call,
)
from pjrt_bridge.torch_interop.compat.graphs import (
    flat_tree as flat_tree,
)
from pjrt_bridge.torch_interop.compat.graphs import (
    graph_attribute as graph_attribute,
)
from pjrt_bridge.torch_interop.compat.graphs import (
    leaves_of as leaves_of,
)
from pjrt_bridge.torch_interop.compat.graphs import (
    stack_trace as stack_trace,
)
from pjrt_bridge.torch_interop.compat.graphs import (
    substitute as substitute,
)
from pjrt_bridge.torch_interop.compat.graphs import (
    tree_leaves as tree_leaves,
)
from pjrt_bridge.torch_interop.compat.graphs import (
    tree_parts as tree_parts,
)
from pjrt_bridge.torch_interop.compat.operators import (
    OWN_NAMESPACE as OWN_NAMESPACE,
)
from pjrt_bridge.torch_interop.compat.operators import (
    HigherOrderOperator as HigherOrderOperator,
)
from pjrt_bridge.torch_interop.compat.operators import (
    OpOverload as OpOverload,
)
from pjrt_bridge.torch_interop.compat.operators import (
    is_composite as is_composite,
)
from pjrt_bridge.torch_interop.compat.operators import (
    is_operator as is_operator,
)
from pjrt_bridge.torch_interop.compat.operators import (
    label as label,
)
from pjrt_bridge.torch_interop.compat.operators import (
    name_of as name_of,
)
from pjrt_bridge.torch_interop.compat.operators import (
    operator as operator,
)
from pjrt_bridge.torch_interop.compat.operators import (
    operator_name as operator_name,
)
from pjrt_bridge.torch_interop.compat.values import (
    DATA_DEPENDENT as DATA_DEPENDENT,
)
from pjrt_bridge.torch_interop.compat.values import (
    FakeTensor as FakeTensor,
)
from pjrt_bridge.torch_interop.compat.values import (
    evaluate as evaluate,
)
from pjrt_bridge.torch_interop.compat.values import (
    expression as expression,
)
from pjrt_bridge.torch_interop.compat.values import (
    fake_scalar as fake_scalar,
)
from pjrt_bridge.torch_interop.compat.values import (
    fakes as fakes,
)
from pjrt_bridge.torch_interop.compat.values import (
    is_ragged as is_ragged,
)
from pjrt_bridge.torch_interop.compat.values import (
    is_symbolic as is_symbolic,
)
from pjrt_bridge.torch_interop.compat.values import (
    least as least,
)
from pjrt_bridge.torch_interop.compat.values import (
    promise as promise,
)
from pjrt_bridge.torch_interop.compat.values import (
    promise_of_call as promise_of_call,
)
from pjrt_bridge.torch_interop.compat.values import (
    quotient as quotient,
)
from pjrt_bridge.torch_interop.compat.values import (
    real_tensors as real_tensors,
)
from pjrt_bridge.torch_interop.compat.values import (
    stand_in as stand_in,
)
from pjrt_bridge.torch_interop.compat.values import (
    storage_identity as storage_identity,
)
from pjrt_bridge.torch_interop.compat.values import (
    symbol_ranges as symbol_ranges,
)
from pjrt_bridge.torch_interop.compat.values import (
    symbols as symbols,
)
from pjrt_bridge.torch_interop.compat.values import (
    symbols_of_sizes as symbols_of_sizes,
)
from pjrt_bridge.torch_interop.compat.values import (
    untraced as untraced,
)
