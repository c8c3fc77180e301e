"""The interpreter's exit: while threads are at work, and for objects that outlive the modules.

The interpreter clears the names of a module, latest imported first, while objects that C code,
other modules or reference cycles hold are still there. What their finalizers use must not be a name
of a module by then.
"""

import ast
import builtins
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pjrt_bridge.runtime.ownership.buffers import BufferHandle
from pjrt_bridge.runtime.ownership.exit import are_plugins_at_work
from tests.conftest import Census
from tests.faults.world import World
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
    with client.put(ones), client.compile(programs.ADD), buffer.held(), add.held():
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


# -- threads that are at work ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "work",
    [
        "kept.append(add.execute([buffer, buffer])); del kept[:-500]",
        "kept.append(buffer.copy_to(client.devices[1])); del kept[:-500]",
        "client.put(ones, copy=True).to_numpy()",
    ],
)
def test_results_that_threads_drop_until_the_exit(work: str) -> None:
    """Executions whose results nobody waits for are watched while the results are dropped."""
    for _ in range(3):
        run_python(OBJECTS + "kept = []\n" + working_threads(work))


@pytest.mark.slow
@pytest.mark.parametrize("dispatch", ["c", "python"])
def test_compiled_functions_until_many_exits(
    dispatch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_DISPATCH", dispatch)
    for _ in range(18):
        run_python(TENSORS + working_threads("function(x, x)"), imported=[TORCH], prelude="")


def test_a_result_that_is_dropped_while_the_exit_watches_it(
    no_leaks: Census, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.client, world.add
    before = world.alive()
    buffer = world.client.put(world.array)
    results = [world.add.execute([buffer, buffer])]
    watch = BufferHandle.watch

    def drop_and_watch(handle: BufferHandle) -> None:
        results.clear()
        watch(handle)

    monkeypatch.setattr(BufferHandle, "watch", drop_and_watch)
    while are_plugins_at_work():
        pass
    assert not results
    assert world.table.ledger.misuse == []
    buffer.delete()
    assert world.settled(before) is None
    world.close()


SLEEPING = """
threading.Thread(target=time.sleep, args=[600], daemon=True).start()
"""

WAITING = """
from tests.runtime.ownership.pending import Pending
late = Pending(client, ones)
def wait():
    while True:
        {}
threading.Thread(target=wait, daemon=True).start()
time.sleep(0.2)
"""

BLOCKED = """
class Array:
    def __array__(self, *rest, **named):
        time.sleep(600)
threading.Thread(target=lambda: client.put(Array()), daemon=True).start()
time.sleep(0.2)
"""

STUBBORN = """
def work():
    while True:
        try:
            add.execute([buffer, buffer])
        except BaseException:
            pass
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""

HOLDING = """
def work():
    with add.held():
        time.sleep(600)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""


@pytest.mark.parametrize(
    "work",
    [
        SLEEPING + "kept = suspended(inside_blocks())",
        HOLDING,
        WAITING.format("late.buffer.to_numpy()"),
        WAITING.format("late.buffer.block_until_ready()"),
        WAITING.format("late.buffer.ready_event().wait()"),
        BLOCKED,
        STUBBORN,
    ],
    ids=["suspended", "holding", "reading", "waiting", "event", "blocked", "stubborn"],
)
def test_what_does_not_hold_up_the_exit(work: str) -> None:
    run_python(OBJECTS + "import threading, time\n" + work, timeout=40)


WAITING = """
import numpy as np
from pjrt_bridge import registry
from pjrt_bridge.runtime.ownership import exit
from tests import programs

exit._MESSAGE_AFTER = {silence}
client = registry.client("reference", latency_ms=1500)
add = client.compile(programs.ADD)
ones = np.ones(64, np.float32)
add(ones, ones)
"""


@pytest.mark.parametrize(("silence", "lines"), [(0.2, 1), (60, 0)])
def test_a_long_wait_is_said_once(silence: float, lines: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAITING.format(silence=silence)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == lines, done.stderr
    assert lines == 0 or "waits for what plugins still compute" in done.stderr


UNBOUNDED = """
import sys, threading, time
from pjrt_bridge import registry
from pjrt_bridge.runtime.ownership import exit
from pjrt_bridge.stablehlo import Program

exit._LONGEST = 0.3
client = registry.client("cpu")
LOOP = '''
func.func @main() -> tensor<i64> {{
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %0 = stablehlo.while(%i = %zero) : tensor<i64> cond {{
    %end = stablehlo.constant dense<1000000000000> : tensor<i64>
    %more = stablehlo.compare LT, %i, %end : (tensor<i64>, tensor<i64>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  }} do {{
    %one = stablehlo.constant dense<1> : tensor<i64>
    %next = stablehlo.add %i, %one : tensor<i64>
    stablehlo.return %next : tensor<i64>
  }}
  return %0 : tensor<i64>
}}
'''
LINES = "".join(f"%v{{i + 1}} = stablehlo.sine %v{{i}} : tensor<4xf32>\\n" for i in range(20_000))
MANY = Program.parse(
    "func.func @main(%v0: tensor<4xf32>) -> tensor<4xf32> {{" + LINES
    + "return %v20000 : tensor<4xf32> }}"
)
loop = client.compile(LOOP)
threading.Thread(target={begin}, daemon=True).start()
while not (exit._other_threads()[0] or exit.are_plugins_at_work()):
    time.sleep(0.01)
sys.exit(3)
"""


@pytest.mark.parametrize("begin", ["loop", "lambda: client.compile(MANY)"])
def test_the_exit_does_not_wait_for_ever(begin: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNBOUNDED.format(begin=begin)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 3, done.stderr
    assert done.stderr == (
        "pjrt_bridge: the process ends under what plugins still compute or compile\n"
    )
