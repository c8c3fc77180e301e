"""Graphs of torch.compile over resident tensors."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import get_compilation_metrics
from torch._higher_order_ops import scan, while_loop

from pjrt_bridge.errors import DeviceError
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.bind.graphs import DeviceGraph
from pjrt_bridge.torch_interop.resident.storages.transfer import COUNTS

pytestmark = pytest.mark.usefixtures("fresh")


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="pjrt", fullgraph=True, options=options)


def moved() -> tuple[int, int]:
    return COUNTS.to_device, COUNTS.to_host


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.t(),
        lambda x: x[1:, ::2],
        lambda x: x.view(2, 2, 6),
        lambda x: x.expand(3, 4, 6),
        lambda x: x.unfold(1, 3, 1),
    ],
)
def test_arguments_that_are_views(view: Any) -> None:
    there = torch.randn(4, 6)
    run = compiled(lambda x: (x * 2 + 1, x.sum(-1)))
    before = moved()
    found = run(view(there.to("pjrt")))
    assert moved() == (before[0] + there.nbytes, before[1])
    for one, other in zip(found, (view(there) * 2 + 1, view(there).sum(-1)), strict=True):
        assert one.device.type == "pjrt"
        assert one.stride() == other.stride()
        torch.testing.assert_close(one.cpu(), other)


def test_results_that_are_views_and_arguments() -> None:
    x = torch.randn(4, 6).to("pjrt")
    same, row, fresh = compiled(lambda x: (x, x[1], (x + 1).t()))(x)
    assert same is x
    row.zero_()
    assert not bool(x[1].any())
    torch.testing.assert_close(fresh.t().cpu()[0], x[0].cpu() + 1)
    assert fresh.stride() == (1, 6)


def test_writes_into_arguments() -> None:
    there = torch.randn(4, 6)
    here = there.to("pjrt")

    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x[0].mul_(3)
        return x.sum()

    run = compiled(f)
    for _ in range(2):
        torch.testing.assert_close(run(here).cpu(), f(there))
        torch.testing.assert_close(run(here[1:]).cpu(), f(there[1:]))
    torch.testing.assert_close(here.cpu(), there)
    assert here._version > 0


def test_conjugated_and_negated_arguments() -> None:
    """Their memory holds something else than their values."""
    there = torch.randn(4, dtype=torch.complex64)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x + 1

    run = compiled(f)
    for view in (torch.conj, lambda x: x.conj().imag, lambda x: x.imag, lambda x: x):
        for one, other in zip(run(view(there.to("pjrt"))), f(view(there)), strict=True):
            torch.testing.assert_close(one.cpu(), other)


def test_saved_values_that_are_conjugated() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.conj() * x

    gradients = []
    for device in ("cpu", "pjrt"):
        x = torch.arange(3.0).mul(1 + 2j).to(device).requires_grad_()
        out = compiled(f)(x)
        (gradient,) = torch.autograd.grad(out, x, torch.full_like(out, 2 + 1j).conj())
        gradients.append(gradient.cpu())
    torch.testing.assert_close(*gradients)


def test_writes_into_conjugated_and_negated_arguments() -> None:
    for view in (torch.conj, lambda x: x.conj().imag):
        there = torch.randn(4, dtype=torch.complex64)
        here = there.to("pjrt")

        def f(x: torch.Tensor) -> torch.Tensor:
            x.mul_(3)
            return x.sum()

        torch.testing.assert_close(compiled(f)(view(here)).cpu(), f(view(there)))
        torch.testing.assert_close(here.cpu(), there)


def test_writes_into_arguments_of_both_kinds() -> None:
    """Optimizers count their steps on the host."""

    def step(parameter: torch.Tensor, count: torch.Tensor) -> None:
        count.add_(1)
        parameter.mul_(2).add_(1)

    here, there = torch.tensor(0.0), torch.ones(3).to("pjrt")
    run = compiled(step)
    for _ in range(3):
        run(there, here)
    assert here == 3
    torch.testing.assert_close(there.cpu(), torch.full((3,), 15.0))


def test_buffers_of_modules_are_updated() -> None:
    there = nn.BatchNorm1d(5)
    here = nn.BatchNorm1d(5).to("pjrt")
    run = compiled(here)
    for _ in range(3):
        x = torch.randn(8, 5)
        torch.testing.assert_close(run(x.to("pjrt")).cpu(), there(x), rtol=1e-4, atol=1e-5)
    for one, other in zip(here.buffers(), there.buffers(), strict=True):
        torch.testing.assert_close(one.cpu(), other)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_host_segments_take_what_they_read() -> None:
    x = torch.randn(4, 6)
    run = compiled(lambda x, y: ((x * 2).sin() + 1, y.cos()), host_ops=["aten.sin.default"])
    here, other = x.to("pjrt"), torch.randn(100, 100).to("pjrt")
    before = moved()
    found = run(here, other)
    assert moved()[0] - before[0] <= x.nbytes
    assert moved()[1] == before[1]
    assert [segment.placement for segment in compiled_graphs()[0].segments].count("host") == 1
    torch.testing.assert_close(found[0].cpu(), (x * 2).sin() + 1)
    assert all(one.device.type == "pjrt" for one in found)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_writes_of_host_segments_arrive() -> None:
    there = torch.randn(4, 6)
    here = there.to("pjrt")

    def f(x: torch.Tensor) -> torch.Tensor:
        x.copy_(x.sin() * 2)
        return x + 1

    run = compiled(f, host_ops=["aten.sin.default", "aten.mul.Tensor", "aten.add.Tensor"])
    torch.testing.assert_close(run(here).cpu(), f(there))
    torch.testing.assert_close(here.cpu(), there)


PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "behind the start": lambda x: x[2:6],
    "every second": lambda x: x[1::2],
    "transposed": lambda x: x.reshape(2, 4).t()[1:],
    "conjugated": lambda x: torch.complex(x, x)[2:6].conj(),
    "negated": lambda x: torch.complex(x, x)[2:6].conj().imag,
    "of a storage that is larger": lambda x: x.clone().resize_(4),
}
ADDRESSING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "read": lambda x: x.as_strided((2, 2), (1, 2), 1) + 0,
    "of its own offset": lambda x: x.as_strided((2,), (1,)) + 0,
    "written": lambda x: torch.as_strided_scatter(x, x.flatten()[:2] * 3, (2,), (1,), 1),
    "after a write": lambda x: x.clone().select_scatter(x[0] * 0, 0, 0) + x.as_strided((1,), (1,)),
}


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize("name", ADDRESSING)
@pytest.mark.parametrize("part", PARTS)
def test_memory_around_an_argument(part: str, name: str) -> None:
    there, here = (PARTS[part](torch.arange(8.0).to(device)) for device in ("cpu", "pjrt"))
    function = ADDRESSING[name]
    found = torch.compile(function, backend="pjrt")(here)
    torch.testing.assert_close(found.cpu(), function(there), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_memory_behind_an_argument_that_grew() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.resize_(8)
        x[4:] = 7.0
        x.resize_(4)
        return x.as_strided((8,), (1,), 0) + 1

    here = torch.arange(4.0).to("pjrt")
    found = torch.compile(function, backend="pjrt")(here)
    assert found.tolist() == [1, 2, 3, 4, 8, 8, 8, 8]
    assert here.tolist() == [0, 1, 2, 3]


def test_tensors_come_and_go_within_a_graph() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = y.to("pjrt") + x
        return z, z.cpu() * 2, torch.zeros(3, device="pjrt") + 1, x.new_ones(2)

    x, y = torch.randn(3), torch.randn(3)
    found = compiled(f)(x.to("pjrt"), y)
    assert [one.device.type for one in found] == ["pjrt", "cpu", "pjrt", "pjrt"]
    torch.testing.assert_close(found[0].cpu(), x + y)
    torch.testing.assert_close(found[1], (x + y) * 2)
    assert found[2].tolist() == [1, 1, 1]


def test_changing_sizes() -> None:
    run = torch.compile(lambda x: (x * 2).sum(-1), backend="pjrt", dynamic=True)
    for size in (3, 8, 5, 17, 5):
        x = torch.randn(2, size)
        torch.testing.assert_close(run(x.to("pjrt")).cpu(), (x * 2).sum(-1))


def test_another_device_of_the_client() -> None:
    run = compiled(lambda x: x * 2)
    assert run(torch.ones(3, device="pjrt:1")).device == torch.device("pjrt:1")
    assert run(torch.ones(3, device="pjrt:0")).device == torch.device("pjrt:0")


def test_another_plugin_is_refused() -> None:
    with pytest.raises(Exception, match="is plugin 'cpu'") as caught:
        compiled(lambda x: x * 2, plugin="reference")(torch.ones(3, device="pjrt"))
    assert isinstance(caught.value, DeviceError) or isinstance(
        getattr(caught.value, "inner_exception", None), DeviceError
    )


def test_inference_of_a_model() -> None:
    there = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)).eval()
    x = torch.randn(4, 6)
    expected = there(x)
    here = there.to("pjrt")
    run = compiled(here)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x.to("pjrt")).cpu(), expected.detach())


def test_control_flow() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def turned(x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.max() > 1, torch.sin, torch.cos, (x,))

        chosen = torch.cond(x.sum() > 0, turned, lambda x: x + torch.ones_like(x), (x,))
        _, found = while_loop(
            lambda n, x: n > 0,
            lambda n, x: (n - 1, x * 2),
            (torch.full((), 3, device=x.device), x),
        )
        last, rows = scan(lambda c, x: (c + x, c * x), torch.zeros_like(x[0]), x, dim=0)
        return chosen, found, last, rows

    there = torch.randn(3, 4)
    found = compiled(f)(there.to("pjrt"))
    for one, other in zip(found, torch.compile(f, backend="eager")(there), strict=True):
        torch.testing.assert_close(one.cpu(), other)
    assert [graph.on_device for graph in compiled_graphs()[-1:]] == [1]
    assert not compiled_graphs()[-1].fallback_reasons


def test_control_flow_backward() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() * x, lambda x: x * 3, (x,))

    gradients = []
    for device in ("cpu", "pjrt"):
        x = torch.linspace(-1, 2, 5).to(device).requires_grad_()
        compiled(f)(x).sum().backward()
        gradients.append(x.grad.cpu())
        assert not any(graph.fallback_reasons for graph in compiled_graphs()[-2:])
    torch.testing.assert_close(*gradients)


def test_dynamo_leaves_the_kernels_of_the_device_alone() -> None:
    """Operators that torch calls between the graphs of a function run in Python."""
    x = torch.linspace(-1, 1, 7)

    def f(x: torch.Tensor) -> torch.Tensor:
        # Its check of the variances divides the function.
        return nn.functional.gaussian_nll_loss(x, x + 1, x.abs())

    before = len(get_compilation_metrics())
    found = torch.compile(f, backend="pjrt")(x.to("pjrt"))
    torch.testing.assert_close(found.cpu(), f(x))
    traced = [metrics.co_filename for metrics in get_compilation_metrics()[before:]]
    assert not [name for name in traced if "pjrt_bridge" in name]
    assert not any(graph.fallback_reasons for graph in compiled_graphs())


def test_dynamo_leaves_what_the_compiled_module_calls_alone() -> None:
    """The numbers of an operator are made in Python, also where its program is found in C."""
    x = torch.linspace(-1, 1, 7)

    def f(x: torch.Tensor) -> torch.Tensor:
        for number in (1.5, 2.5, 3.5, 4.5):
            x = x * number
            torch._dynamo.graph_break()
            x = nn.functional.dropout(x.add_(number), 0.0)
        return x

    run = torch.compile(f, backend="pjrt")
    before = len(get_compilation_metrics())
    for _ in range(4):
        torch.testing.assert_close(run(x.to("pjrt")).cpu(), f(x.clone()))
    traced = [metrics.co_filename for metrics in get_compilation_metrics()[before:]]
    assert not [name for name in traced if name and "pjrt_bridge" in name]


def test_reset_lets_go_of_compiled_graphs() -> None:
    """Also of those that have nothing to do with the device, once it is registered."""
    x = torch.linspace(-1, 1, 7)
    assert x.to("pjrt").sum().isfinite()

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cumsum(0)

    def graphs() -> int:
        gc.collect()
        return sum(type(each) is DeviceGraph for each in gc.get_objects())

    before = graphs()
    torch.compile(f, backend="pjrt")(x)
    assert graphs() == before + 1
    torch.compiler.reset()
    assert graphs() == before


def test_fractional_pools_backward() -> None:
    """Torch states no promise for it."""
    pool = nn.FractionalMaxPool3d(2, output_size=3, _random_samples=torch.rand(1, 2, 3))
    gradients = []
    for device in ("cpu", "pjrt"):
        pool = pool.to(device)
        x = torch.arange(432.0).cos().reshape(1, 2, 6, 6, 6).to(device).requires_grad_()
        torch.compile(pool, backend="pjrt")(x).sin().sum().backward()
        gradients.append(x.grad.cpu())
    torch.testing.assert_close(*gradients)


def test_assertions_on_resident_tensors() -> None:
    function = compiled(lambda x: torch.nn.functional.one_hot(x, 3))
    x = torch.tensor([1, 2], device="pjrt")
    assert function(x).tolist() == [[0, 1, 0], [0, 0, 1]]
    with pytest.raises(RuntimeError, match="non-negative"):
        function(x - 5)
    inverse = compiled(torch.linalg.inv)
    assert torch.equal(inverse(torch.eye(2, device="pjrt")).cpu(), torch.eye(2))
    with pytest.raises(RuntimeError, match="singular"):
        inverse(torch.zeros(2, 2, device="pjrt"))
    torch._assert_async(x[0])
    with pytest.raises(RuntimeError, match="wrong"):
        torch._assert_async(x[0] > 1, "wrong")


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_functions_whose_backward_cannot_be_traced_are_divided() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[y < 0] *= 0.5
        return y

    x = torch.tensor([-2.0, 3], device="pjrt", requires_grad=True)
    y = torch.compile(function, backend="pjrt")(x)
    y.sum().backward()
    assert y.tolist() == [-1, 3]
    assert x.grad is not None
    assert x.grad.tolist() == [0.5, 1]
