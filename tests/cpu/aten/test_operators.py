"""The list of operators says what PyTorch says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop import compat
from pjrt_bridge_cpu.aten import operators
from pjrt_bridge_cpu.aten.library import is_stated_so
from pjrt_bridge_cpu.aten.operators import OPERATORS, REQUIRED, Operator

KINDS = {
    "int[]": "List[int]",
    "int[1]": "List[int]",
    "SymInt[]": "List[int]",
    "bool[2]": "List[bool]",
    "bool[3]": "List[bool]",
    "SymInt": "int",
}
"""Types of a schema in the words of PyTorch's type system."""


def stated(operator: Operator) -> Any:
    found = compat.operator(str(operator).replace("::", "."))
    assert found is not None
    return found._schema


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_it_is_stated_so(operator: Operator) -> None:
    schema = stated(operator)
    assert str(schema) == operator.schema
    assert (schema.name, schema.overload_name) == (operator.name, operator.overload)
    assert is_stated_so(operator)


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_parameters(operator: Operator) -> None:
    arguments = stated(operator).arguments
    assert [parameter.name for parameter in operator.parameters] == [a.name for a in arguments]
    for parameter, argument in zip(operator.parameters, arguments, strict=True):
        kind = argument.type
        assert parameter.optional == isinstance(kind, torch.OptionalType), parameter
        kind = kind.getElementType() if parameter.optional else kind
        # What is a number to scripts has a name of its own in a schema.
        if parameter.kind != "ScalarType":
            assert str(kind) == KINDS.get(parameter.kind, parameter.kind), parameter
        alias = argument.alias_info
        assert parameter.written == (alias is not None and alias.is_write), parameter
        assert (parameter.default is not REQUIRED) == argument.has_default_value(), parameter
        if parameter.default is not REQUIRED:
            assert parameter.default == argument.default_value, parameter
            assert type(parameter.default) is type(argument.default_value), parameter


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_what_the_custom_call_knows(operator: Operator) -> None:
    name, overload, codes, lengths, returns = operator.signature
    schema = stated(operator)
    assert (name, overload, returns) == (operator.name, operator.overload, len(schema.returns))
    assert all(str(item.type) == "Tensor" for item in schema.returns)
    assert len(codes) == len(schema.arguments)
    for code, argument in zip(codes, schema.arguments, strict=True):
        assert code.isupper() == isinstance(argument.type, torch.OptionalType)
        assert (code in "toT") == ("Tensor" in str(argument.type))
        assert (code == "o") == (argument.alias_info is not None)
        # Numbers that stand for element types are the only ones that no call needs.
        assert (code in "uU") == ("ScalarType" in operator.schema and argument.name == "dtype")
    # One for each parameter, and only for tensors.
    fields = lengths.split(",")
    assert lengths == "" or len(fields) == len(codes)
    for code, field in zip(codes, fields, strict=False):
        assert not field or (code in "tT" and field.removeprefix("~").isalpha())


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_it_writes_what_it_returns(operator: Operator) -> None:
    """By this the custom call knows where a returned tensor was written."""
    schema = stated(operator)
    written = [item.alias_info.before_set for item in schema.arguments if item.alias_info]
    returned = [item.alias_info.before_set for item in schema.returns if item.alias_info]
    assert written == returned
    assert len(written) in (0, len(schema.returns))


def test_defaults() -> None:
    found = {parameter.name: parameter for parameter in operators.ATTENTION.parameters}
    assert found["query"].default is REQUIRED
    assert found["dropout_p"].default == 0.0
    assert found["is_causal"].default is False
    assert found["attn_mask"].default is None
    assert found["scale"].kind == "float"
    assert found["scale"].code == "F"


def test_a_type_that_no_call_needs() -> None:
    parameters = Operator("aten::f(Tensor self, Scalar s, ScalarType? d=None) -> Tensor").parameters
    assert [parameter.code for parameter in parameters] == ["t", "u", "U"]


def test_each_is_listed_once() -> None:
    assert len({(operator.name, operator.overload) for operator in OPERATORS}) == len(OPERATORS)
    assert operators.MM in OPERATORS
