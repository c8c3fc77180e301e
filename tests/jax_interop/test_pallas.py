"""Kernels of Pallas in graphs of torch: interpreted on the host, compiled for what is not there."""

from __future__ import annotations

from functools import partial
from importlib import metadata
from typing import Any

import pytest
import torch

jax = pytest.importorskip("jax")
pallas = pytest.importorskip("jax.experimental.pallas")
triton = pytest.importorskip("jax.experimental.pallas.triton")

import jax.numpy as jnp  # noqa: E402

from pjrt_bridge import client, compile_for  # noqa: E402
from pjrt_bridge.errors import NotExportable  # noqa: E402
from pjrt_bridge.jax_interop import torch_op  # noqa: E402
from pjrt_bridge.torch_interop import compiled_graphs, export  # noqa: E402
from tests.accelerators.wheels import need  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


def _kernel(x: Any, y: Any, out: Any) -> None:
    out[...] = jnp.maximum(x[...], 0) * y[...] + 1


@partial(torch_op, static_argnames=("compiler",))
def gated(x: Any, y: Any, compiler: str) -> Any:
    """The kernel over blocks of rows, with a gradient of its own."""
    block = pallas.BlockSpec((8, 128), lambda row: (row, 0))

    @jax.custom_vjp
    def call(x: Any, y: Any) -> Any:
        made = pallas.pallas_call(
            _kernel,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(x.shape[0] // 8,),
            in_specs=[block, block],
            out_specs=block,
            interpret=compiler == "none",
            compiler_params=triton.CompilerParams() if compiler == "triton" else None,
        )
        return made(x, y)

    def backward(kept: Any, given: Any) -> Any:
        x, y = kept
        return given * y * (x > 0), given * jnp.maximum(x, 0)

    call.defvjp(lambda x, y: (call(x, y), (x, y)), backward)
    return call(x, y)


def _expected(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.sin().relu() * y + 1).sum(-1)


class Model(torch.nn.Module):
    def __init__(self, compiler: str = "none") -> None:
        super().__init__()
        self.compiler = compiler

    def forward(self, x: Any, y: Any) -> Any:
        return gated(x.sin(), y, compiler=self.compiler).sum(-1)


def test_interpreted_in_eager_and_in_a_compiled_graph() -> None:
    x, y = (torch.randn(16, 128, requires_grad=True) for _ in range(2))
    wanted = torch.autograd.grad(_expected(x, y).square().sum(), (x, y))
    model = Model()
    for run in (model, torch.compile(model, backend="pjrt", fullgraph=True)):
        torch.testing.assert_close(run(x, y), _expected(x, y))
        found = torch.autograd.grad(run(x, y).square().sum(), (x, y))
        torch.testing.assert_close(found, wanted)
    graphs = compiled_graphs()
    assert {graph.kind for graph in graphs} == {"forward", "backward"}
    for graph in graphs:
        (segment,) = graph.segments
        assert segment.placement == "device"


def test_interpreted_in_an_exported_model() -> None:
    x, y = torch.randn(16, 128), torch.randn(16, 128)
    exported = export(Model(), (x, y))
    assert not exported.program.custom_calls
    host = client("cpu")
    found = torch.from_dlpack(exported.load_on(host)(x, y)).clone()
    torch.testing.assert_close(found, _expected(x, y))


COMPILERS = {"tpu": ("mosaic_tpu", "tpu_custom_call"), "cuda": ("triton", "__gpu$xla.gpu.triton")}
"""By platform the compiler of the kernel, and the custom call that holds it."""


@pytest.mark.parametrize("platform", COMPILERS)
def test_a_model_for_one_platform_holds_the_kernel(platform: str) -> None:
    compiler, call = COMPILERS[platform]
    x = torch.randn(16, 128)
    exported = export(Model(compiler), (x, x), platform=platform)
    assert exported.program.custom_calls == {call}


def test_without_a_platform_that_has_the_kernel() -> None:
    x = torch.randn(16, 128)
    with pytest.raises(NotExportable, match=r"jax\.gated.*'pallas_call' not found for platform"):
        export(Model("mosaic_tpu"), (x, x))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "topology", "wheels"),
    [
        ("tpu", "v5e:1x1", ["libtpu"]),
        ("cuda", "h100", ["jax-cuda13-pjrt", "jax-cuda12-pjrt"]),
    ],
)
def test_the_executable_holds_the_kernel(platform: str, topology: str, wheels: list[str]) -> None:
    need(*wheels)
    if platform == "cuda" and not any(map(_is_of_this_jax, wheels)):
        pytest.skip("kernels of Triton are read by the plugin of the same version as JAX alone")
    x = torch.randn(16, 128)
    compiler, call = COMPILERS[platform]
    program = export(Model(compiler), (x, x), platform=platform).program
    with compile_for(program, topology=topology) as made:
        optimized, _ = made.optimized()
        assert call.encode() in optimized
        assert len(made.serialize()) > 1000


def _is_of_this_jax(wheel: str) -> bool:
    try:
        return metadata.version(wheel) == jax.__version__
    except metadata.PackageNotFoundError:
        return False
