"""An optimizer's step as a graph over parameters, gradients and state.

The optimizer itself is not changed: a shallow copy of it gets other tensors for parameters and
state. Numbers in its groups (learning rate, betas, ...) become constants of the graph, those in
tensors of one element too.
"""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import InputKind, OutputKind

from pjrt_bridge.errors import NotExportable, OptionError
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.exporting.alike import (
    ParameterState,
    TracedStep,
    kinds_of,
    repeated,
    treats_each_alone,
    two_of_each,
)

_COUNTER = "step"
_SWITCHES = {"foreach": False, "fused": False, "capturable": True}
"""Options for one operation for each tensor, and none on the host."""


@dataclass(frozen=True)
class Update:
    """A traced step of an optimizer.

    Attributes:
        step: the graph.
        parameters: names of the parameters, in order.
        constants: names and values of tensors that the step holds itself.
        state: names and initial values of the optimizer's tensors, in order.
    """

    step: TracedStep
    parameters: tuple[str, ...]
    constants: tuple[tuple[str, torch.Tensor], ...]
    state: tuple[tuple[str, torch.Tensor], ...]


class _OptimizerStep(nn.Module):
    """A step as torch.export traces it."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, owners: Sequence[Any], keys: Sequence[Sequence[str]]
    ) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.owners = owners
        self.keys = keys

    def forward(
        self,
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor],
        state: list[list[torch.Tensor]],
    ) -> None:
        states = [dict(zip(k, s, strict=True)) for k, s in zip(self.keys, state, strict=True)]
        _step(self.optimizer, self.owners, parameters, gradients, states)


def capture_update(optimizer: torch.optim.Optimizer, weights: Mapping[str, torch.Tensor]) -> Update:
    """Trace a step of an optimizer.

    Args:
        optimizer: over some of the weights. Where it has taken no step yet, the state is its
            initial one.
        weights: that have gradients, by name.

    Raises:
        OptionError: the optimizer has a parameter that is none of the weights.
        NotExportable: its step cannot be traced.
    """
    names = {id(weight): name for name, weight in weights.items()}
    owners = [weight for group in optimizer.param_groups for weight in group["params"]]
    for owner in owners:
        if owner.requires_grad and id(owner) not in names:
            raise OptionError(
                f"optimizer: a parameter of shape {list(owner.shape)} is none of the model's that "
                f"have a gradient: {list(weights)}"
            )
    owners = [owner for owner in owners if id(owner) in names]
    optimizer = with_numbers(optimizer)
    try:
        states = _states(optimizer, owners)
    except NotExportable:
        raise
    except Exception as error:
        raise NotExportable(
            f"optimizer {type(optimizer).__name__}: a trial step fails: {error}"
        ) from error
    step = _whole_step(optimizer, owners, states)
    return Update(
        step,
        tuple(names[id(owner)] for owner in owners),
        tuple((f"optimizer.{name}", value) for name, value in step.constants),
        tuple(
            (f"optimizer.{key}.{names[id(owner)]}", value)
            for owner, state in zip(owners, states, strict=True)
            for key, value in state.items()
        ),
    )


def with_numbers(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """A copy of an optimizer with numbers for the tensors of one element in its groups.

    Parameters and state are the same; other tensors in its groups are copied.

    Raises:
        NotExportable: such a tensor has no elements in memory.
    """
    made = copy.copy(optimizer)
    made.param_groups = [
        {
            key: value if key == "params" else _number(value, f"{type(optimizer).__name__}: {key}")
            for key, value in group.items()
        }
        for group in optimizer.param_groups
    ]
    return made


def _number(value: Any, name: str) -> Any:
    if type(value) in (tuple, list):
        return type(value)(_number(one, name) for one in value)
    if not isinstance(value, torch.Tensor):
        return value
    if value.numel() != 1:
        return value.clone()
    if value.device.type == "meta" or isinstance(value, compat.FakeTensor):
        raise NotExportable(
            f"optimizer {name}: found a tensor on the device meta, expected a number, which "
            "becomes a constant of the program"
        )
    return value.item()


def _whole_step(
    optimizer: torch.optim.Optimizer,
    owners: Sequence[torch.Tensor],
    states: Sequence[ParameterState],
) -> TracedStep:
    """The step over all parameters, of which no more are traced than necessary."""
    if treats_each_alone(optimizer):
        kinds = kinds_of(optimizer, owners, states)
        some = two_of_each(kinds)
        if len(some) < len(owners):
            step = _traced(optimizer, [owners[at] for at in some], [states[at] for at in some])
            if (found := repeated(step, some, kinds)) is not None:
                return found
    return _traced(optimizer, owners, states)


def _traced(
    optimizer: torch.optim.Optimizer,
    owners: Sequence[torch.Tensor],
    states: Sequence[ParameterState],
) -> TracedStep:
    keys = [list(state) for state in states]
    values = [list(state.values()) for state in states]
    given = [owner.detach() for owner in owners]
    gradients = [torch.zeros_like(owner) for owner in given]
    name = type(optimizer).__name__
    try:
        with torch.no_grad():
            step = _OptimizerStep(optimizer, owners, keys)
            program = compat.decomposed(compat.trace(step, (given, gradients, values), {}, None))
    except Exception as error:
        raise NotExportable(f"optimizer {name}: its step cannot be traced: {error}") from error
    signature = program.graph_signature
    held = [spec for spec in signature.input_specs if spec.kind is not InputKind.USER_INPUT]
    positions = {spec.arg.name: at - len(held) for at, spec in enumerate(signature.input_specs)}
    updated = [s for s in signature.output_specs if s.kind is OutputKind.USER_INPUT_MUTATION]
    return TracedStep(
        program.graph,
        tuple((str(spec.target), program.constants[str(spec.target)]) for spec in held),
        tuple(map(len, values)),
        tuple(positions[str(spec.target)] for spec in updated),
    )


def _states(
    optimizer: torch.optim.Optimizer, owners: Sequence[torch.Tensor]
) -> list[ParameterState]:
    found = [dict(optimizer.state.get(owner, {})) for owner in owners]
    if not all(found):
        fresh = _first_states(optimizer, owners)
        found = [state or new for state, new in zip(found, fresh, strict=True)]
    for state in found:
        for key, value in list(state.items()):
            if value is None:
                del state[key]
            elif not isinstance(value, torch.Tensor):
                raise NotExportable(
                    f"optimizer {type(optimizer).__name__}: its state {key!r} is a "
                    f"{type(value).__name__}, expected a tensor"
                )
    return found


def _first_states(
    optimizer: torch.optim.Optimizer, owners: Sequence[torch.Tensor]
) -> list[ParameterState]:
    """The initial state of an optimizer, which it creates in its first step.

    A step of zero parameters with zero gradients leaves the initial state unchanged, except for the
    counter of steps. Whether that holds for this optimizer is tried, where parameters have values.

    Raises:
        NotExportable: it does not hold.
    """
    take = torch.no_grad()(partial(_step, optimizer, owners, capturable=False))
    zeros, no_gradients = [[torch.zeros_like(owner) for owner in owners] for _ in range(2)]
    found = take(zeros, no_gradients, [{} for _ in owners])
    for state in found:
        if isinstance(state.get(_COUNTER), torch.Tensor):
            state[_COUNTER] = torch.zeros_like(state[_COUNTER])
    if any(isinstance(owner, compat.FakeTensor) for owner in owners):
        return found
    generator = torch.Generator().manual_seed(0)
    some = [
        torch.randn(owner.shape, generator=generator, device="cpu").to(owner.dtype)
        for owner in owners
    ]
    expected_values, values = [[one.clone() for one in some] for _ in range(2)]
    expected = take(expected_values, some, [{} for _ in owners])
    again = take(values, some, [_copied(state) for state in found])
    alike = all(map(_equal, expected, again)) and all(map(torch.equal, expected_values, values))
    if not alike:
        raise NotExportable(
            f"optimizer {type(optimizer).__name__}: its first step differs from the others; take "
            "one step before exporting"
        )
    return found


def _step(
    optimizer: torch.optim.Optimizer,
    owners: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    states: list[ParameterState],
    *,
    capturable: bool = True,
) -> list[ParameterState]:
    """Take a step that changes `values`, with other states; returns the new states."""
    shell = copy.copy(optimizer)
    places = {id(owner): at for at, owner in enumerate(owners)}
    for value, gradient in zip(values, gradients, strict=True):
        value.grad = gradient
    switches = {**_SWITCHES, "capturable": capturable}
    shell.param_groups = [
        {
            **group,
            **{name: value for name, value in switches.items() if name in group},
            "params": [values[places[id(p)]] for p in group["params"] if id(p) in places],
        }
        for group in optimizer.param_groups
    ]
    shell.state = defaultdict(dict, zip(values, states, strict=True))
    # Without torch's wrapper of it: hooks, profiling and the gradient mode.
    inspect.unwrap(type(optimizer).step)(shell)
    for given, taken in zip(optimizer.param_groups, shell.param_groups, strict=True):
        for key, option in given.items():
            if isinstance(option, (int, float)) and key not in switches and taken[key] != option:
                raise NotExportable(
                    f"optimizer {type(optimizer).__name__}: its step changes {key!r} from {option} "
                    f"to {taken[key]}, expected a constant of the program"
                )
    return [dict(shell.state[value]) for value in values]


def _copied(state: ParameterState) -> ParameterState:
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in state.items()
    }


def _equal(one: ParameterState, other: ParameterState) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key]
        for key, value in one.items()
    )
