"""`python -m tests.coverage.needed`: write which operators models need, and how many of them.

Each model of `tests.models.zoo` is traced in inference and in a training step; what counts is what
its graphs hold after torch's core decompositions, when a backend gets them.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

# Read when the libraries are imported: models come from configurations, never from a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import torch

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.nodes import COPY_INTO_INPUT
from tests.configuration import isolated
from tests.coverage.operators import NEEDED
from tests.models import running, zoo

MODES = ("inference", "training")
VIEW = torch.ops.aten.view.default


def needed(model: str) -> set[str]:
    """The operators of a model's graphs."""
    found: set[str] = set()

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def run(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[[list[Any]], Any]:
            targets = {node.target for node in graph.graph.nodes if node.op == "call_function"}
            names = {str(target) for target in targets if isinstance(target, compat.OpOverload)}
            # What writes into an argument at the end of a graph is no part of the program.
            names.discard(COPY_INTO_INPUT)
            found.update(name for name in names if name.startswith("aten."))
            # Tracing promised strides that eager's convolutions do not give.
            for node in graph.graph.find_nodes(op="call_function", target=VIEW):
                node.target = torch.ops.aten.reshape.default
            graph.recompile()
            return compat.boxed(lambda arguments: graph.forward(*arguments))

        return compat.run_aot_autograd(graph, inputs, forward=run, backward=run, inference=run)

    for mode in MODES:
        torch.compiler.reset()
        wrap = partial(torch.compile, backend=backend)
        next(running.calls(model, running.MODES[mode], wrap))
    return found


@isolated()
def main() -> None:
    """Write the file."""
    warnings.simplefilter("ignore")
    # Recurrent networks are left out of graphs by default, for any backend.
    torch._dynamo.config.allow_rnn = True
    counts: Counter[str] = Counter()
    for model in zoo.MODELS:
        found = needed(model)
        counts.update(found)
        print(f"{model}: {len(found)}", flush=True)
    head = f"# {len(zoo.MODELS)} models; written by `python -m tests.coverage.needed`\n"
    NEEDED.write_text(head + "".join(f"{name} {n}\n" for name, n in sorted(counts.items())))


if __name__ == "__main__":
    main()
