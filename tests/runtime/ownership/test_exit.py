"""Objects that outlive the modules of the bridge at the interpreter's exit say nothing.

The interpreter clears the names of a module, latest imported first, while objects that C code,
other modules or reference cycles hold are still there. What their finalizers use must not be a name
of a module by then.
"""

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked import ROOT, TORCH
from tests.plugins import run_python, working_threads

SOURCES = sorted(
    path for part in ("pjrt_bridge", "plugins") for path in (ROOT / part).rglob("*.py")
)


def finalizers(path: Path) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == "__del__":
            yield node


def outer_names(function: ast.FunctionDef) -> set[str]:
    """What the body of a function reads that is neither its own nor a builtin."""
    named = [
        node for line in function.body for node in ast.walk(line) if isinstance(node, ast.Name)
    ]
    arguments = function.args
    own = {node.id for node in named if isinstance(node.ctx, ast.Store)}
    own |= {argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)}
    # Annotations of local variables are not evaluated.
    notes = {
        id(node)
        for line in ast.walk(function)
        if isinstance(line, ast.AnnAssign)
        for node in ast.walk(line.annotation)
    }
    return {node.id for node in named if id(node) not in notes} - own - set(dir(builtins))


def test_finalizers_use_no_name_of_their_module() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{function.lineno}": outer_names(function)
        for path in SOURCES
        for function in finalizers(path)
    }
    assert len(found) >= 8
    assert {where: names for where, names in found.items() if names} == {}


# `threading` was imported before the bridge, so it is cleared after it; modules are cleared only as
# long as somebody holds them.
KEPT = """
import sys, threading
def keep(thing):
    threading.kept_for_the_test = thing
    sys.kept_for_the_test = [
        threading, [module for name, module in sys.modules.items() if "pjrt_bridge" in name]
    ]
"""

OBJECTS = """
from pjrt_bridge.runtime.dispatch.plans import PinnedBuffers
ones = np.ones(64, np.float32)
client = cpu_plugin().client({"cpu_device_count": 2})
add = client.compile(programs.ADD)
buffer = client.put(ones, copy=True)
def cycle():
    found = [client.put(ones)]
    found.append(found)
    return found
def inside_blocks():
    with client.put(ones), client.compile(programs.ADD), buffer.held():
        yield
def suspended(generator):
    next(generator)
    return generator
def work():
    threading.local().kept = client.put(ones)
    held = [client.put(ones)]
    thread = threading.Thread(target=lambda: held[0].to_numpy())
    thread.start()
    thread.join()
    return thread, held
"""


@pytest.mark.parametrize(
    "thing",
    [
        "client",
        "add",
        "add.execute([buffer, buffer])",
        "buffer.ready_event()",
        "np.asarray(buffer)",
        "buffer.__dlpack__()",
        "PinnedBuffers([buffer], [0])",
        "client.topology",
        "suspended(inside_blocks())",
        "(client, add, add.submit([buffer, buffer]), np.from_dlpack(buffer), cycle(), work())",
    ],
)
def test_objects_that_outlive_the_bridge(thing: str) -> None:
    run_python(KEPT + OBJECTS + f"keep({thing})\ndel buffer, add, client")


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_a_profile_that_is_open_at_the_exit(name: str) -> None:
    source = f"""
from pjrt_bridge import registry
from pjrt_bridge.profiling import profile
client = registry.load({name!r}).client()
def profiled():
    with profile(clients=[client]):
        yield
generator = profiled()
next(generator)
keep(generator)
del generator
"""
    run_python(KEPT + source)


TENSORS = """
import torch
function = torch.compile(lambda x, w: (x @ w + 1).relu(), backend="pjrt")
module = torch.nn.Linear(4, 4)
layer = torch.compile(module, backend="pjrt")
x = torch.ones(4, 4)
for _ in range(4):
    results = [function(x, x), layer(x)]
    with torch.no_grad():
        results.append(layer(x))
    results.append(results[1].sum())
"""


@pytest.mark.parametrize(
    "thing",
    [
        "results[2].untyped_storage()",
        "(results, [result.view(-1) for result in results], results[2].numpy(), function, layer,"
        " torch.utils.dlpack.to_dlpack(results[0]), torch._dynamo.eval_frame)",
    ],
)
@pytest.mark.parametrize("dispatch", ["c", "python"])
def test_what_came_of_compiled_functions(
    thing: str, dispatch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_DISPATCH", dispatch)
    source = f"keep({thing})\ndel results, function, layer"
    run_python(KEPT + TENSORS + source, imported=[TORCH], prelude="")


def test_threads_that_call_compiled_functions_until_the_exit() -> None:
    source = TENSORS + working_threads("function(x, x)") + "keep((function, results))"
    run_python(KEPT + source, imported=[TORCH], prelude="")
