"""Random operators with keys under torch.vmap and autograd, in PyTorch."""

import pytest
import torch

from pjrt_bridge.torch_interop.randomness.operators import counterpart, derived_keys

KEYS = torch.tensor([3, 1 << 40, -5])


def _operator(name: str) -> torch._ops.OpOverload:
    found = counterpart(f"aten.{name}")
    assert found is not None
    return found


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0)])
@pytest.mark.parametrize("name", ["rand_like.default", "multinomial.default"])
def test_rows_of_a_call(name: str, in_dims: tuple[int | None, int | None]) -> None:
    operator = _operator(name)
    rest = (4, True) if name == "multinomial.default" else ()
    keys = KEYS if in_dims[0] == 0 else KEYS[0]
    x = torch.rand(3, 8) if in_dims[1] == 0 else torch.rand(8)
    found = torch.vmap(lambda key, x: operator(key, x, *rest), in_dims=in_dims)(keys, x)
    for row in range(3):
        key = keys if in_dims[0] is None else keys[row]
        assert torch.equal(found[row], operator(key, x if in_dims[1] is None else x[row], *rest))


def test_rows_without_tensors() -> None:
    operator = _operator("randint.low")
    found = torch.vmap(lambda key: operator(key, 3, 1000, [2, 5]))(KEYS)
    assert torch.equal(found[1], operator(KEYS[1], 3, 1000, [2, 5]))


def test_several_results_and_tensors_of_other_ranks() -> None:
    dropout = _operator("native_dropout.default")
    kept, mask = torch.vmap(lambda key, x: dropout(key, x, 0.5, True))(KEYS, torch.ones(3, 9))
    assert torch.equal(kept, 2 * mask)
    normal = _operator("normal.Tensor_Tensor")
    means, scales = torch.zeros(3, 4, 9), torch.rand(3, 9)
    found = torch.vmap(normal)(KEYS, means, scales)
    assert torch.equal(found[2], normal(KEYS[2], means[2], scales[2]))


def test_mapped_twice() -> None:
    operator = _operator("randn_like.default")
    keys, x = torch.arange(6).view(2, 3), torch.zeros(2, 3, 5)
    found = torch.vmap(torch.vmap(operator))(keys, x)
    assert torch.equal(found[1, 2], operator(keys[1, 2], x[1, 2]))


def test_gradients() -> None:
    x = torch.randn(64, requires_grad=True)
    key = KEYS[0]
    found, kept = _operator("native_dropout.default")(key, x, 0.25, True)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert torch.equal(gradient, kept / 0.75)
    noise = torch.empty(64)
    rrelu = _operator("rrelu_with_noise_functional.default")
    found, slopes = rrelu(key, x, noise, 0.1, 0.3, True)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert torch.equal(gradient, slopes)
    (gradient,) = torch.autograd.grad(rrelu(key, x, noise, 0.1, 0.3, False)[0].sum(), x)
    torch.testing.assert_close(gradient, torch.where(x > 0, 1.0, 0.2))
    (gradient,) = torch.autograd.grad(_operator("rand_like.default")(key, x).sum() + x.sum(), x)
    assert torch.equal(gradient, torch.ones(64))


def test_derived_keys_differ_and_are_those_of_the_bits() -> None:
    words = torch.tensor([-7, 12], dtype=torch.int32)
    keys = torch.stack(derived_keys(words, 100))
    assert len(set(keys.tolist())) == 100
    assert int(keys[0]) == (-7 << 32) | 12
    assert torch.equal(keys, torch.stack(derived_keys(words, 100)))
