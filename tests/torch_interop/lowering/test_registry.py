import pytest

from pjrt_bridge.torch_interop.lowering import registry
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, find_lowering, lowering, names


def test_names_are_sorted_and_found():
    known = names()
    assert list(known) == sorted(set(known))
    assert all(find_lowering(name) is not None for name in known)
    assert {"aten.add.Tensor", "aten.convolution_backward.default"} <= set(known)


def test_unknown_operators_have_no_lowering():
    assert find_lowering("aten.nonzero.default") is None
    assert find_lowering("nonsense") is None


def test_two_lowerings_of_one_operator_are_an_error(monkeypatch):
    names()
    monkeypatch.setattr(registry, "_LOWERINGS", dict(registry._LOWERINGS))
    with pytest.raises(ValueError, match=r"aten\.add\.Tensor has two lowerings"):
        lowering("aten.add.Tensor")(lambda c, x, y: x)


def test_the_reason_of_a_refusal_is_its_text():
    error = NotLowerable("because")
    assert (error.reason, str(error)) == ("because", "because")


def test_every_name_is_an_operator_of_this_torch():
    # These define operators of their own.
    import transformers.integrations.moe  # noqa: F401

    import pjrt_bridge.torch_interop.device.operators.operators  # noqa: F401
    from tests.torch_interop.lowering.harness import overload

    for name in names():
        # A higher-order operator prints without its namespace.
        assert str(overload(name)) == name.removeprefix("higher_order.")
