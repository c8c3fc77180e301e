"""Segments of PyTorch between segments over a mesh: what is gathered, and divided again."""

from __future__ import annotations

import pytest
import torch

from pjrt_bridge import errors
from pjrt_bridge.torch_interop import explain
from pjrt_bridge.torch_interop.sharding import Mesh, full, mark_sharding, sharding_of
from tests.torch_interop.sharding.test_marking import spec_of

pytestmark = pytest.mark.usefixtures("fresh")


def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.sin(x @ w) @ w


def test_a_host_segment_gathers_and_its_result_is_divided(mesh: Mesh) -> None:
    """Each array that crosses is counted once, with its whole size."""
    options = {"mesh": mesh, "host_ops": ("aten.sin",)}
    compiled = torch.compile(function, backend="pjrt", fullgraph=True, options=options)
    x, w = torch.randn(8, 4), torch.randn(4, 4)
    given, weight = x.to("pjrt"), mark_sharding(w, mesh, (None, "tp"))
    report = explain(compiled, given, weight)
    first, host, last = report.segments
    assert [one.placement for one in (first, host, last)] == ["device", "host", "device"]
    assert first.bytes_copied == last.bytes_copied == 8 * 4 * 4
    found = compiled(given, weight)
    assert spec_of(found) == "[dp, tp]"
    torch.testing.assert_close(full(found), function(x, w))


def test_gradients_pass_through_the_host(mesh: Mesh) -> None:
    options = {"mesh": mesh, "host_ops": ("aten.sin", "aten.cos")}
    compiled = torch.compile(function, backend="pjrt", fullgraph=True, options=options)
    x, w = torch.randn(8, 4), torch.randn(4, 4)
    weight = torch.nn.Parameter(w.clone())
    mark_sharding(weight, mesh, (None, "tp"))
    compiled(x.to("pjrt"), weight).square().sum().backward()
    expected = w.clone().requires_grad_()
    function(x, expected).square().sum().backward()
    assert weight.grad is not None
    assert sharding_of(weight.grad) == sharding_of(weight)
    torch.testing.assert_close(full(weight.grad), expected.grad)


def test_what_the_host_writes_is_divided_as_before(mesh: Mesh) -> None:
    def update(x: torch.Tensor) -> torch.Tensor:
        x.copy_(torch.sin(x))
        return x + 1

    options = {"mesh": mesh, "host_ops": ("aten.sin",)}
    compiled = torch.compile(update, backend="pjrt", fullgraph=True, options=options)
    x = torch.randn(8, 4)
    given = mark_sharding(x, mesh, ("dp", "tp"))
    found = compiled(given)
    assert spec_of(given) == "[dp, tp]"
    torch.testing.assert_close(full(given), x.sin())
    torch.testing.assert_close(full(found), x.sin() + 1)


def test_the_host_may_be_forbidden(mesh: Mesh) -> None:
    options = {"mesh": mesh, "fallback": "error"}
    compiled = torch.compile(torch.linalg.ldl_factor, backend="pjrt", options=options)
    given = mark_sharding(torch.randn(4, 4), mesh, ("dp",))
    with pytest.raises(Exception, match="linalg_ldl_factor") as raised:
        compiled(given)
    assert errors.FallbackForbidden.__name__ in f"{raised.type.__name__} {raised.value!r}"
    with pytest.warns(errors.HostFallbackWarning, match="linalg_ldl_factor"):
        torch.compile(torch.linalg.ldl_factor, backend="pjrt", options={"mesh": mesh})(given)
