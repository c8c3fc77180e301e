"""Results of a graph that are views, and the memory that arguments have after a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.nodes import is_mutation
from pjrt_bridge.torch_interop.passes.aliases.chains import Chain, chain_of
from pjrt_bridge.torch_interop.passes.aliases.epilogue import REPLACE, Epilogue, ResolvedAliases
from pjrt_bridge.torch_interop.passes.aliases.gaps import mark_visible
from pjrt_bridge.torch_interop.saved import see_strides


def resolve_aliases(module: fx.GraphModule, returned: compat.Returned) -> ResolvedAliases | None:
    """Move views among the results of a functional graph to an epilogue; None where there are none.

    The epilogue also gives arguments the memory of other tensors, as `argument.data = x` does.
    Marks the nodes in whose memory results of the user lie, for `gaps`.
    """
    return _Resolver(module, returned).run()


class _Resolver:
    def __init__(self, module: fx.GraphModule, returned: compat.Returned) -> None:
        self._module = module
        self._returned = returned
        (end,) = module.graph.find_nodes(op="output")
        self._returned_count = len(end.args[0])
        self._replaced = [node for node in module.graph.nodes if _is_replacement(node)]
        self._outputs: Sequence[Any] = (*end.args[0], *(node.args[1] for node in self._replaced))
        # The last value of each argument that the graph writes into.
        self._written: dict[Any, Any] = {
            node.args[0]: node.args[1] for node in module.graph.nodes if is_mutation(node)
        }
        self._chains = [
            self._chain(at, item)
            if isinstance(item, fx.Node) and item not in self._replaced
            else None
            for at, item in enumerate(self._outputs)
        ]
        self._in_memory_of = self._count()

    def run(self) -> ResolvedAliases | None:
        bases = [self._base(at, chain) for at, chain in enumerate(self._chains)]
        for at, (chain, base) in enumerate(zip(self._chains, bases, strict=True)):
            if chain is not None and self._is_visible(at):
                mark_visible(base or chain.last)
            if base is not None:
                see_strides(base)
        if not any(bases) and not self._replaced:
            return None
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        graph.graph_copy(self._module.graph, copies)
        for node in self._replaced:
            graph.erase_node(copies[node])
        epilogue = Epilogue(graph, copies)
        outputs: list[Any] = []
        for at, (item, chain, base) in enumerate(
            zip(self._outputs, self._chains, bases, strict=True)
        ):
            if item in self._replaced:
                outputs.append(epilogue.argument(item.args[0]))
            elif chain is None:
                outputs.append(item)
            elif base is None and at >= self._returned_count and not chain.views:
                own = item.op == "placeholder"
                outputs.append(epilogue.argument(item) if own else epilogue.result(item))
            elif base is None:
                outputs.append(epilogue.result(item))
            elif chain.root is base and base in self._written:
                outputs.append(epilogue.view(chain, epilogue.old_value(base)))
            elif base.op == "placeholder":
                outputs.append(epilogue.view(chain, epilogue.argument(base)))
            elif self._is_apart(base):
                differentiable = self._returned.records_gradients
                outputs.append(epilogue.view_of_result(chain, differentiable=differentiable))
            else:
                made = epilogue.view(chain, epilogue.as_promised(base))
                if at in self._returned.without_gradient and chain.views and not chain.detached:
                    made = epilogue.without_gradient(made)
                outputs.append(made)
        count = self._returned_count
        for node, source in zip(self._replaced, outputs[count:], strict=True):
            epilogue.replace(node.args[0], source)
        return epilogue.finish(self._module, outputs[:count])

    def _base(self, at: int, chain: Chain | None) -> fx.Node | None:
        """The node in whose memory a result lies; None for a tensor of its own."""
        if chain is None or not isinstance(compat.promise(chain.root), torch.Tensor):
            return None
        root = chain.root
        if root.op == "placeholder":
            # An argument that is written into is copied first, also where it is returned unchanged.
            return root if chain.views or root in self._written else None
        argument = self._argument_of(at, root)
        if argument is not None:
            return argument
        if compat.storage_identity(compat.promise(root)) is None:
            return None
        shared = len(self._in_memory_of.get(root, ())) > 1
        return root if self._has_place(at, chain) and (shared or not chain.whole) else None

    def _chain(self, at: int, item: fx.Node) -> Chain:
        """A result as a view of an argument's new value, where it is one, else of its root.

        The new value may itself be a view, of a tensor of another shape.
        """
        chain = chain_of(item)
        steps = (chain.root, *chain.views)
        for position in reversed(range(len(steps))):
            if self._argument_of(at, steps[position]) is not None:
                return Chain(steps[position], steps[position + 1 :])
        return chain

    def _argument_of(self, at: int, value: fx.Node) -> fx.Node | None:
        """The argument whose new value a node is, where AOTAutograd has the result view that."""
        if self._is_visible(at) and at in self._returned.of_arguments:
            for argument, new in self._written.items():
                if new is value and _alike(compat.promise(argument), compat.promise(value)):
                    return argument  # type: ignore[no-any-return]
        return None

    def _count(self) -> dict[fx.Node, set[fx.Node]]:
        """For each root the different results that lie in its memory."""
        found: dict[fx.Node, set[fx.Node]] = {}
        for at, chain in enumerate(self._chains):
            if chain is not None and self._has_place(at, chain):
                found.setdefault(chain.root, set()).add(chain.last)
        return found

    def _is_visible(self, at: int) -> bool:
        visible = self._returned.visible
        return visible is None or at < visible or at >= self._returned_count

    def _is_apart(self, base: fx.Node) -> bool:
        """Whether nothing that the user gets of a base is differentiated by the graph."""
        return self._returned.inference or all(
            other in self._returned.without_gradient
            for other, chain in enumerate(self._chains)
            if chain is not None and chain.root is base and self._is_visible(other)
        )

    def _has_place(self, at: int, chain: Chain) -> bool:
        """Whether a result is to lie in the memory of its root.

        A part that is saved for backward is a copy, so that it does not keep the root alive.
        """
        return chain.whole or self._is_visible(at)


def _is_replacement(node: fx.Node) -> bool:
    """Whether a node gives an argument of its graph the memory of another tensor."""
    if compat.operator_name(node.target) != REPLACE:
        return False
    argument, source = node.args
    return (
        isinstance(argument, fx.Node)
        and argument.op == "placeholder"
        and isinstance(source, fx.Node)
        and all(user.op == "output" for user in node.users)
    )


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a view of one promised tensor can be made of the other."""
    return (
        [*map(compat.expression, one.shape)] == [*map(compat.expression, other.shape)]
        and one.dtype == other.dtype
        and (one.is_conj(), one.is_neg()) == (other.is_conj(), other.is_neg())
    )
