"""Collective operations of torch.distributed by a client that spans the processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pjrt_bridge.stablehlo.interpret import interpretable
from tests import forked
from tests.processes import run_processes

pytestmark = pytest.mark.skipif(interpretable.threads() < 2, reason="each device needs a thread")

PROGRAM = """
import json, warnings
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from pjrt_bridge.torch_interop import compiled_graphs, explain
from tests.torch_interop.helpers import assert_same

warnings.simplefilter("ignore", FutureWarning)
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{FOLDER}/meeting", rank=RANK, world_size=COUNT)
client = reference(store)
WORLD = dist.group.WORLD

def compiled(function, **options):
    return torch.compile(function, backend="pjrt", options={"client": client, **options})

def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(10 + RANK))

def placed():
    return ["".join(segment.placement[0] for segment in graph.segments)
            for graph in compiled_graphs()]

def reasons():
    return [str(reason) for graph in compiled_graphs() for segment in graph.segments
            for reason in segment.fallback_reasons]
"""


def run(source: str, count: int, folder: Path, **arguments: Any) -> list[Any]:
    end = "\nclient.close()\ndist.destroy_process_group()\n"
    imported = (*forked.PLAIN, forked.TORCH)
    given = {"timeout": 120, "imported": imported, **arguments}
    return run_processes(PROGRAM + source + end, count, folder, **given)


EACH = """
def function(x):
    total = functional.all_reduce(x.exp(), "sum", WORLD)
    mean = functional.all_reduce(x.sin(), "avg", WORLD)
    least, most = (functional.all_reduce(x, name, WORLD) for name in ("min", "max"))
    product = functional.all_reduce(x[0, 0].cos(), "product", WORLD)
    gathered = functional.all_gather_tensor(total + mean, 1, WORLD)
    scattered = functional.reduce_scatter_tensor(gathered.sin(), "sum", 1, WORLD)
    turned = functional.all_to_all_single(x.repeat(COUNT, 1), None, None, WORLD)
    first = functional.broadcast(x * 2, COUNT - 1, WORLD)
    return scattered, least * most * product, turned, first, (x * 8).int(), functional.all_reduce(
        (x * 8).int(), "sum", WORLD)

x = random(4, 3)
expected = function(x)
assert_same(compiled(function, fallback="error")(x), expected)
report = explain(compiled(function), x)
print(json.dumps([placed(), sorted({one.operation for segment in report.segments
                                    for one in segment.exchanges})]))
"""


@pytest.mark.parametrize("count", [2, 3])
def test_each_operation(count: int, tmp_path: Path) -> None:
    if interpretable.threads() < count:
        pytest.skip("each device needs a thread")
    names = ["all-gather", "all-reduce", "all-to-all", "reduce-scatter"]
    for where, found in run(EACH, count, tmp_path):
        assert set(where) == {"d"}
        assert found == names


TRAINING = """
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 16), nn.Linear(16, 6)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))

PLANS = [
    {"up": ColwiseParallel(), "down": RowwiseParallel()},
    {"norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)),
     "down": RowwiseParallel(output_layouts=Shard(1))}]
mesh = init_device_mesh("cpu", (COUNT,))
found = []
for compile in (lambda net: net, lambda net: compiled(net, fallback="error")):
    torch.manual_seed(0)
    net = parallelize_module(Net(), mesh, PLANS[SEQUENCE])
    run, optimizer = compile(net), torch.optim.AdamW(net.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        x = torch.randn(2, 4, 6)
        loss = run(x.chunk(COUNT, 1)[RANK] if SEQUENCE else x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    found.append([*losses, *(item.detach().full_tensor() if hasattr(item, "full_tensor")
                             else item.detach() for item in net.parameters())])
assert_same(*found, rtol=2e-4)
print(json.dumps(placed()))
"""


@pytest.mark.parametrize("sequence", [0, 1])
def test_tensor_parallelism(sequence: int, tmp_path: Path) -> None:
    """A forward and a backward graph, each one program of both processes."""
    assert run(f"SEQUENCE = {sequence}\n{TRAINING}", 2, tmp_path) == [["d", "d"]] * 2


def test_graphs_that_differ_stay_in_pytorch(tmp_path: Path) -> None:
    """As where a rank is a number of the graph, in a divided embedding, say."""
    found = run(
        """
def function(x):
    return functional.all_reduce(x * (RANK + 1), "sum", WORLD).cos()

x = random(4, 3)
assert_same(compiled(function)(x), function(x))
print(json.dumps([placed(), reasons()]))
""",
        2,
        tmp_path,
    )
    for where, reasons in found:
        assert where == ["dhd"]
        (start, wait) = reasons
        assert "it exchanges 48 bytes with ranks 0, 1 of group" in start
        assert "its graph is another one in other processes" in start
        assert "it waits for other processes" in wait


def test_what_programs_cannot_exchange_stays_in_pytorch(tmp_path: Path) -> None:
    found = run(
        """
def function(x, n):
    bits = functional.all_reduce(n, "bor", WORLD)
    parts = functional.all_to_all_single(x.exp(), [1, 1], [1, 1], WORLD)
    return functional.all_reduce(x.sin(), "sum", WORLD), bits + 1, parts.cos()

x, n = random(2, 3), torch.tensor([1, 2]) << RANK
assert_same(compiled(function)(x, n), function(x, n))
print(json.dumps([placed(), reasons()]))
""",
        2,
        tmp_path,
    )
    for where, reasons in found:
        assert sum(one.count("h") for one in where) == 1
        assert any("StableHLO has no reduction 'bor' of int64" in one for one in reasons)
        assert not any("all_to_all" in one for one in reasons)


def test_sizes_that_change(tmp_path: Path) -> None:
    """No size is computed by PyTorch first: the others would wait."""
    found = run(
        """
def function(x):
    return functional.all_reduce(x.sin(), "sum", WORLD).cos()

run = torch.compile(function, backend="pjrt", options={"client": client}, dynamic=True)
for rows in (4, 5, 5, 6):
    x = random(rows, 3)
    assert_same(run(x), function(x))
print(json.dumps(placed()))
""",
        2,
        tmp_path,
    )
    for where in found:
        assert len(where) >= 3
        assert set(where) == {"d"}


def test_groups_of_several_processes(tmp_path: Path) -> None:
    """A process knows its own row and column of a grid; the replicas of all are exchanged."""
    found = run(
        """
from torch.distributed.device_mesh import init_device_mesh
from torch.fx.experimental.proxy_tensor import make_fx
from pjrt_bridge.torch_interop.compiling.agreement import agree

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
rows, columns = mesh.get_group("dp"), mesh.get_group("tp")

def grid(x):
    return functional.all_reduce(functional.all_reduce(x, "sum", columns), "sum", rows)

def row(x):
    return functional.all_reduce(x, "sum", columns)

agreed = [agree(make_fx(function)(torch.ones(2)).graph, client, None) for function in (grid, row)]
print(json.dumps([(one.devices, sorted(one.groups.values())) for one in agreed]))
""",
        4,
        tmp_path,
    )
    for rank, (grid, row) in enumerate(found):
        assert grid == [[0, 1, 2, 3], [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]]
        assert row == [[0, 1] if rank < 2 else [2, 3], [[[0, 1]]]]


def test_a_process_that_compiles_nothing(tmp_path: Path) -> None:
    found = run(
        """
from torch._dynamo.exc import BackendCompilerFailed
from pjrt_bridge.torch_interop.compiling import agreement

agreement.PATIENCE = 0.5
text = None
if RANK == 0:
    begin = time.monotonic()
    try:
        compiled(lambda x: functional.all_reduce(x, "sum", WORLD).cos())(random(3))
    except BackendCompilerFailed as error:
        text = str(error)
    assert time.monotonic() - begin < 30
    store.put("done", b"")
else:
    store.get("done", 60)
print(json.dumps(text))
""",
        2,
        tmp_path,
    )
    assert "over the processes 0,1: found none of process 1 within 0.5 s" in found[0]


def test_a_process_that_runs_another_program(tmp_path: Path) -> None:
    """Both get the plugin's error: neither computes alone, where the other would not come."""
    found = run(
        """
from pjrt_bridge.errors import PjrtBridgeError

run, other = (compiled(function) for function in (
    lambda x: functional.all_reduce(x, "sum", WORLD).cos(),
    lambda x: functional.all_reduce(x, "max", WORLD).cos()))
x = random(3)
run(x), other(x)
try:
    (run if RANK else other)(x)
    text = None
except PjrtBridgeError as error:
    text = f"{type(error).__name__}: {error}"
print(json.dumps(text))
""",
        2,
        tmp_path,
    )
    for text in found:
        assert "InvalidArgument" in text
        assert "the processes disagree on execution" in text


def test_a_wrong_client(tmp_path: Path) -> None:
    found = run(
        """
from torch._dynamo.exc import BackendCompilerFailed
import pjrt_bridge

def text(**options):
    try:
        torch.compile(torch.sin, backend="pjrt", options=options)(torch.ones(3))
    except BackendCompilerFailed as error:
        return str(error)

print(json.dumps([text(client="reference"), text(client=client, plugin="cpu")]))
""",
        1,
        tmp_path,
    )
    assert "option client: found 'reference', expected what client() returned" in found[0][0]
    assert "option plugin: found 'cpu', and a client of plugin 'reference'" in found[0][1]
