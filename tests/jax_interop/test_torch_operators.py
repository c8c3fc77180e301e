"""Functions of JAX that torch calls."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from pjrt_bridge import client  # noqa: E402
from pjrt_bridge.errors import OptionError, ProgramError  # noqa: E402
from pjrt_bridge.jax_interop import torch_op  # noqa: E402
from pjrt_bridge.torch_interop import compiled_graphs, export  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


class Parameters(NamedTuple):
    weight: Any
    bias: Any


@torch_op
def layer(x: Any, parameters: Any, scale: Any = 1.0) -> Any:
    found = jax.nn.gelu(x @ parameters.weight + parameters.bias, approximate=False)
    return {"y": found * scale, "norm": (jnp.sum(found**2), None)}


def _expected(x: torch.Tensor, parameters: Parameters, scale: float = 1.0) -> Any:
    found = torch.nn.functional.gelu(x @ parameters.weight + parameters.bias)
    return {"y": found * scale, "norm": ((found**2).sum(), None)}


def _inputs(rows: int = 4) -> tuple[torch.Tensor, Parameters]:
    x = torch.randn(rows, 8, requires_grad=True)
    return x, Parameters(torch.randn(8, 6, requires_grad=True), torch.randn(6))


def _compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="pjrt", fullgraph=True, **options)


def _losses(function: Any, x: torch.Tensor, parameters: Parameters) -> list[torch.Tensor]:
    """A loss, and the gradients of what needs them."""
    found = function(x, parameters, scale=0.5)
    loss = found["y"].sum() + found["norm"][0]
    return [loss, *torch.autograd.grad(loss, (x, parameters.weight))]


def test_nested_arguments_and_results_in_eager() -> None:
    x, parameters = _inputs()
    found, expected = layer(x, parameters), _expected(x, parameters)
    assert list(found) == ["norm", "y"]
    assert found["norm"][1] is None
    torch.testing.assert_close(found["y"], expected["y"])
    torch.testing.assert_close(_losses(layer, x, parameters), _losses(_expected, x, parameters))


def test_it_is_part_of_the_program_of_a_graph() -> None:
    step = _compiled(lambda x, parameters, scale: layer(x * 2, parameters, scale))
    for rows in (4, 5, 6, 7):
        x, parameters = _inputs(rows)
        # Terms of a gradient cancel: it is compared with what is more exact than eager.
        exact = [x, *parameters]
        exact = [item.detach().double().requires_grad_(item.requires_grad) for item in exact]
        expected = _losses(
            lambda x, *rest, scale: _expected(x * 2, *rest, scale), exact[0], Parameters(*exact[1:])
        )
        found = [item.double() for item in _losses(step, x, parameters)]
        torch.testing.assert_close(found, expected, rtol=1.3e-6, atol=1e-5)
    reports = compiled_graphs()
    assert {graph.kind for graph in reports} == {"forward", "backward"}
    for graph in reports:
        (segment,) = graph.segments
        assert segment.placement == "device"
        assert segment.bytes_copied == 0
        assert any("layer" in operator for operator in segment.operators)


def test_sizes_that_change_are_symbols() -> None:
    halves = torch_op(lambda x: jnp.concatenate([x, x[: x.shape[0] // 2]]))
    compiled = _compiled(lambda x: halves(x) * 2, dynamic=True)
    for rows in (2, 5, 8, 3):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(compiled(x), 2 * torch.cat([x, x[: rows // 2]]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_element_types(dtype: torch.dtype) -> None:
    function = torch_op(lambda x, s: jnp.cumsum(x * s))
    x = torch.randn(5).to(dtype)
    found = function(x, 0.5)
    assert found.dtype == dtype
    torch.testing.assert_close(found, (x * 0.5).cumsum(0), rtol=0.02, atol=0.02)


def test_integers_have_32_bits_beside_floats_of_32() -> None:
    rows = torch_op(lambda x, i: (jnp.take(x, i, axis=0), i, x.argmax()))
    x, i = torch.randn(5, 3, requires_grad=True), torch.tensor([0, 4, 2])
    found, same, most = rows(x, i)
    found.sum().backward()
    assert torch.equal(found, x[i])
    assert (same.dtype, most.dtype) == (torch.int32, torch.int32)
    assert not most.requires_grad
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == [1, 0, 1, 0, 1]
    with jax.enable_x64(True):
        assert torch_op(lambda i: i + 1)(torch.tensor([2**40])).tolist() == [2**40 + 1]


@pytest.mark.parametrize("real", [False, True])
def test_complex_gradients_are_torchs(real: bool) -> None:
    def function(module: Any, x: Any, r: Any) -> Any:
        return module.exp(x * r) * (1 - 2j)

    weights = torch.randn(3, dtype=torch.complex128)
    r = torch.randn(3, dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, dtype=torch.float64 if real else torch.complex128, requires_grad=True)
    found, expected = (
        torch.autograd.grad((call(x, r) * weights).abs().sum(), (x, r))
        for call in (
            torch_op(lambda x, r: function(jnp, x, r)),
            lambda x, r: function(torch, x, r),
        )
    )
    torch.testing.assert_close(found, expected)


def test_static_arguments() -> None:
    reduced = torch_op(lambda x, axis, act: act(x.sum(axis)), static_argnames=("axis", "act"))
    by_number = torch_op(static_argnums=-1)(lambda x, axis: x.sum(axis))
    x = torch.randn(3, 4)
    torch.testing.assert_close(reduced(x, 0, act=jnp.cos), x.sum(0).cos())
    torch.testing.assert_close(_compiled(lambda x: by_number(x, 1))(x), x.sum(1))


def test_random_keys_come_from_torchs_generator() -> None:
    noisy = torch_op(lambda key, x: x + jax.random.normal(key, x.shape), random=True)
    compiled = _compiled(lambda x: noisy(x))
    x = torch.zeros(2000)
    for function in (noisy, compiled):
        torch.manual_seed(1)
        first, second = function(x), function(x)
        torch.manual_seed(1)
        assert torch.equal(function(x), first)
        assert not torch.equal(first, second)
        assert abs(first.mean()) < 0.1
        assert abs(first.std() - 1) < 0.1


def test_transformations_of_functions() -> None:
    cube = torch_op(lambda x: (x**3).sum())
    x = torch.randn(4)
    torch.testing.assert_close(torch.func.grad(cube)(x), 3 * x**2)
    torch.testing.assert_close(torch.vmap(torch.func.grad(cube))(x[None]), 3 * x[None] ** 2)
    hessian = torch.func.jacrev(torch.func.jacrev(cube))(x)
    torch.testing.assert_close(hessian, torch.diag(6 * x))
    product = torch_op(lambda x, y: x @ y)
    xs, y = torch.randn(5, 3), torch.randn(3)
    torch.testing.assert_close(torch.vmap(product, in_dims=(0, None))(xs, y), xs @ y)


def test_gradients_of_gradients() -> None:
    function = torch_op(lambda x, w: jnp.sin(x @ w) ** 3)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (x, w))
    assert torch.autograd.gradgradcheck(function, (x, w))


def test_the_functions_own_rule_for_gradients() -> None:
    @jax.custom_vjp
    def own(x: Any) -> Any:
        return jnp.sin(x)

    own.defvjp(lambda x: (jnp.sin(x), x), lambda x, given: (100 * given,))
    x = torch.randn(3, requires_grad=True)
    function = torch_op(own)
    for call in (function, _compiled(lambda x: function(x))):
        (found,) = torch.autograd.grad(call(x).sum(), x)
        assert found.tolist() == [100, 100, 100]


def test_resident_tensors_stay_on_the_device() -> None:
    x, parameters = _inputs()
    on_device = x.detach().to("pjrt").requires_grad_()
    moved = Parameters(*(tensor.detach().to("pjrt") for tensor in parameters))
    found = layer(on_device, moved)["y"]
    assert found.device.type == "pjrt"
    torch.testing.assert_close(found.cpu(), _expected(x, parameters)["y"])
    (gradient,) = torch.autograd.grad(found.sum(), on_device)
    assert gradient.device.type == "pjrt"


def test_exported_models_contain_it() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = layer(x, Parameters(self.linear.weight, self.linear.bias))["y"]
            return found

    model, x = Model(), torch.randn(2, 8)
    loaded = export(model, (x,)).load_on(client("cpu"))
    np.testing.assert_allclose(np.asarray(loaded(x)), model(x).detach(), rtol=1e-5, atol=1e-6)


def test_arrays_that_a_function_holds() -> None:
    held = jnp.arange(3.0)
    function = torch_op(lambda x: x * held)
    assert _compiled(lambda x: function(x) + 1)(torch.ones(3)).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "make", [lambda: torch.ones(4, 3).t(), lambda: torch.ones(3, 1).expand(3, 4)]
)
def test_tensors_that_do_not_lie_in_order(make: Any) -> None:
    function = torch_op(lambda x, y: x - y)
    x, y = make(), torch.randn(3, 4)
    torch.testing.assert_close(function(x, y), x - y)


def test_nothing_to_compute() -> None:
    doubled, total = torch_op(lambda x: (x * 2, x.sum()))(torch.ones(0, 3))
    assert doubled.shape == (0, 3)
    assert total.item() == 0


# -- wrong use -------------------------------------------------------------------------------------


def test_errors_of_jax_pass_through() -> None:
    product = torch_op(lambda x, y: x @ y)
    with pytest.raises(TypeError, match="contracting dimensions"):
        product(torch.ones(2), torch.ones(3))
    assert product(torch.ones(2), torch.ones(2)).item() == 2


def test_calls_back_into_python_are_refused() -> None:
    def function(x: Any) -> Any:
        return jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(ProgramError, match=r"jax\.function on plugin 'cpu'"):
        torch_op(function)(torch.ones(2))


def test_arguments_that_are_no_arrays() -> None:
    with pytest.raises(OptionError, match=r"found an argument of type str, .*static_argnames"):
        layer(torch.ones(2), "text")
    with pytest.raises(OptionError, match="static_argnames: found 'z', expected one of x"):
        torch_op(lambda x: x, static_argnames="z")
    with pytest.raises(OptionError, match="static_argnums: found 3, expected a position among"):
        torch_op(lambda x: x, static_argnums=3)


def test_results_must_be_nested_alike() -> None:
    function = torch_op(lambda x: x if x.shape[0] == 2 else (x, x))
    function(torch.ones(2))
    with pytest.raises(OptionError, match="found results nested as"):
        function(torch.ones(3))


def _cubed(x: Any, w: Any, at: Any) -> Any:
    return {"y": jnp.sin(x) ** 3 * w, "at": at + 1}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_tangents_are_torchs() -> None:
    """In a dual level, by `jvp`, over rows, and of gradients."""
    function = torch_op(_cubed)
    x, w, dx, dw = (torch.randn(4) for _ in range(4))
    at = torch.tensor([1, 2])

    def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.sin() ** 3 * w

    def ours(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return function(x, w, at)["y"]

    expected = torch.func.jvp(plain, (x, w), (dx, dw))
    assert_close(torch.func.jvp(ours, (x, w), (dx, dw)), expected)
    with forward_ad.dual_level():
        # One argument has a tangent, and one of the results none.
        found = function(forward_ad.make_dual(x, dx), w, at)
        tangent = forward_ad.unpack_dual(found["y"]).tangent
        assert_close(found["at"], (at + 1).int())
        assert_close(ours(x, w), plain(x, w))
    assert_close(tangent, torch.func.jvp(lambda x: plain(x, w), (x,), (dx,))[1])
    assert_close(torch.func.jacfwd(ours)(x, w), torch.func.jacfwd(plain)(x, w))
    both = (ours, plain)
    found, expected = (torch.func.hessian(lambda x, f=f: f(x, w).sum())(x) for f in both)
    assert_close(found, expected, rtol=1e-4, atol=1e-5)
    x.requires_grad_()
    with forward_ad.dual_level():
        tangents = [forward_ad.unpack_dual(f(forward_ad.make_dual(x, dx), w))[1] for f in both]
    found, expected = (torch.autograd.grad(tangent.sum(), x)[0] for tangent in tangents)
    assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tangents_in_compiled_functions() -> None:
    function = torch_op(lambda x: jnp.sin(x) * 2)
    x, dx = torch.randn(4), torch.randn(4)
    run = torch.compile(lambda x, dx: torch.func.jvp(function, (x,), (dx,)), backend="pjrt")
    assert_close(run(x, dx), (x.sin() * 2, x.cos() * 2 * dx))


@pytest.mark.parametrize("compiled", [False, True])
def test_activation_checkpointing(compiled: bool) -> None:
    function = torch_op(jnp.sin)

    def call(x: torch.Tensor) -> Any:
        return checkpoint(lambda x: function(x) * 2, x, use_reentrant=False)

    x = torch.randn(4, requires_grad=True)
    run = torch.compile(call, backend="pjrt") if compiled else call
    assert_close(torch.autograd.grad(run(x).sum(), x)[0], 2 * x.cos())


def test_one_that_is_made_in_a_compiled_function() -> None:
    """Dynamo does not trace what makes it."""
    run = torch.compile(lambda x: torch_op(jnp.sin)(x) * 2, backend="pjrt")
    assert_close(run(torch.ones(2)), torch.ones(2).sin() * 2)
    whole = torch.compile(lambda x: torch_op(jnp.sin)(x) * 2, backend="pjrt", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="made outside of compiled functions"):
        whole(torch.ones(2))


def test_results_that_are_no_arrays() -> None:
    class Both:
        pass

    for result in ("text", Both()):
        function = torch_op(lambda x, result=result: (x, result))
        with pytest.raises(OptionError, match=f"found a result of type {type(result).__name__}"):
            function(torch.ones(2))


def test_what_is_negated_or_conjugated_lazily() -> None:
    """Calls with the same shapes and strides have one program, which reads memory as it is."""
    negate = torch_op(lambda x: -x)
    x, z = torch.randn(4), torch.randn(4, dtype=torch.complex64)
    for plain, lazy in ((x, torch._neg_view(x)), (z, z.conj())):
        for _ in range(3):
            torch.testing.assert_close(negate(plain), -plain)
        torch.testing.assert_close(negate(lazy), -lazy)


def test_functions_that_the_same_code_calls_are_told_apart() -> None:
    """Dynamo knows a function by its code, which all functions of JAX have in common."""
    x = torch.arange(6.0).reshape(2, 3)
    functions = [lambda x: x * 2, lambda x: x + 5, lambda x: x[:, ::2], lambda x: x * 2]
    found = []
    for function in functions:
        operator = torch_op(function)
        found.append(_compiled(lambda x, operator=operator: operator(x))(x))
    for item, expected in zip(found, [x * 2, x + 5, x[:, ::2], x * 2], strict=True):
        assert_close(item, expected)


def test_a_module_calls_the_function_that_it_has_now() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.function = torch_op(lambda x: x * 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.function(x)
            return made

    module, x = Layer(), torch.ones(3)
    compiled = _compiled(module)
    assert_close(compiled(x), x * 2)
    module.function = torch_op(lambda x: x * 3)
    assert_close(compiled(x), x * 3)
