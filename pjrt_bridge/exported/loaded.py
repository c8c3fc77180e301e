"""LoadedModel: an exported model on a client, with its weights and what it changes of them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pjrt_bridge.errors import (
    DataError,
    OptionError,
    PjrtBridgeError,
    SignatureMismatch,
    UnsupportedDtype,
)
from pjrt_bridge.exported import checks
from pjrt_bridge.exported.files import Array
from pjrt_bridge.exported.interface import Interface, Slot, TensorLeaf, Weight
from pjrt_bridge.exported.parts import SplitProgram
from pjrt_bridge.exported.running import RunnableProgram, compiled
from pjrt_bridge.exported.specialization import Specialization
from pjrt_bridge.runtime import Buffer, Client, CompileOptions
from pjrt_bridge.runtime.transfers.host import overwrite
from pjrt_bridge.wrong_arguments import checked_methods, wrong

_KEY_BITS = 64


@checked_methods
class LoadedModel:
    """An exported model on one client.

    Weights are put when they are first needed: as views of the mapped file where the plugin uses
    host memory in place, once for all programs. What a program changes (running statistics, weights
    of a training step, the optimizer's state) stays on the device and is given to the next call.

    A call belongs to one thread at a time.

    Args:
        name: of the model.
        interface: how it is called.
        weights: the tensors that it keeps.
        tensors: their elements.
        specializations: its programs.
        client: compiles and runs them.
        seed: of what the model draws; None: another one in each process.
        options: for compiling.
    """

    def __init__(
        self,
        name: str,
        interface: Interface,
        weights: Mapping[str, Weight],
        tensors: Mapping[str, Array],
        specializations: Sequence[Specialization],
        client: Client,
        *,
        seed: int | None = None,
        options: CompileOptions | None = None,
    ) -> None:
        self.name = name
        self.client = client
        self.interface = interface
        self._weights = weights
        self._tensors = tensors
        self._specializations = specializations
        self._options = options
        self._layouts = _layouts(specializations[0])
        self._compiled: dict[int, RunnableProgram] = {}
        self._plain = list(filter(_is_plain, specializations))
        self._state: dict[str, Buffer] = {}
        if seed is not None and seed < 0:
            raise OptionError(wrong("seed", seed, "a number from 0 up"))
        self._draws = np.random.default_rng(secrets.randbits(_KEY_BITS) if seed is None else seed)

    def compile(self) -> None:
        """Compile all programs now, which a first call with such sizes would do.

        Raises:
            PjrtError: the plugin could not compile one.
            SavedModelError: one cannot be expressed for the StableHLO versions that the plugin
                reads.
        """
        for one in self._specializations:
            self._runnable(one)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; arguments by position or by name, as the exported function had them.

        Returns before the results are computed, except where an argument gets a new value, a part
        of the model runs on the host, or the model asserts something of them.

        Args:
            *args: arrays of any kind that `Client.put` takes, nested as they were.
            **kwargs: the same.

        Returns:
            Buffers, nested as the exported function's results in lists, tuples and dicts.

        Raises:
            SignatureMismatch: an argument that does not fit; the text names it.
            CheckFailed: what the model asserts does not hold; the model keeps what it had before.
            PjrtError: the plugin failed.
            Exception: what a framework raises in a part that runs on the host.
        """
        leaves = self.interface.bind(args, kwargs)
        return self.interface.outputs.unflatten(self.run(leaves))

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        """The leaves of the results for the leaves of the arguments (`interface.inputs`).

        Raises:
            SignatureMismatch: another number of leaves, or one that does not fit.
        """
        if len(leaves) != len(self.interface.inputs):
            raise SignatureMismatch(
                f"found {len(leaves)} leaves of arguments, expected {len(self.interface.inputs)}"
            )
        for one in self._plain:
            direct = self._run_directly(one, leaves)
            if direct is not None:
                return direct
        given = {
            index: self._put(leaf, leaves[index], self._layouts.get(("input", index)))
            for index, leaf in enumerate(self.interface.inputs)
            if isinstance(leaf, TensorLeaf)
        }
        one = self._choose(given)
        runnable = self._runnable(one)
        arguments, kept = [], []
        for index, slot in enumerate(one.parameters):
            if slot.kind == "weight":
                arguments.append(self.weight(slot.of))
                kept.append(index)
            elif slot.kind == "input":
                arguments.append(given[slot.of])
            else:
                key = self._draws.integers(0, 1 << 63, dtype=np.int64)
                arguments.append(self.client.put(np.asarray(key), copy=True))
        # A call that fails a check leaves the weights as they were.
        results = runnable.run(arguments, () if one.checks else kept)
        changed = {
            (update.kind, update.of): result
            for update, result in zip(one.updates, results, strict=True)
            if update is not None
        }

        def value(slot: Slot) -> Any:
            if slot.kind == "result":
                return results[slot.of]
            if slot.kind == "input":
                return given.get(slot.of, leaves[slot.of])
            return self.weight(slot.of) if slot.kind == "weight" else slot.of

        checks.hold(one.checks, value)
        for (kind, of), result in changed.items():
            if kind == "weight":
                self._state[self._weights[of].tensor] = result
            else:
                _write_into(leaves[of], result, self.interface.inputs[of].name)
        outputs: list[Any] = []
        for slot in one.outputs:
            if slot.kind == "weight":
                # The next call may consume the weight itself.
                outputs.append(self.weight(slot.of).copy_to(self.client.devices[0]))
            elif ("input", slot.of) in changed and slot.kind == "input":
                outputs.append(changed["input", slot.of])
            else:
                outputs.append(value(slot))
        return outputs

    def _run_directly(self, one: Specialization, leaves: Sequence[Any]) -> list[Any] | None:
        """The leaves of the results, without the steps that a plain program does not need.

        None where it was not compiled, or an argument does not lie as it takes it, or does not fit.
        """
        runnable = self._compiled.get(id(one))
        if runnable is None:
            return None
        found = runnable.run_directly(
            [
                self.weight(slot.of) if slot.kind == "weight" else leaves[slot.of]
                for slot in one.parameters
            ]
        )
        if found is None:
            return None
        return [found[slot.of] if slot.kind == "result" else slot.of for slot in one.outputs]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the weights."""
        return tuple(self._weights)

    def weight(self, name: str) -> Buffer:
        """A weight as it is now, on the device; a later call may consume it.

        Raises:
            DataError: the model has none of this name.
        """
        if name not in self._weights:
            known = ", ".join(self._weights) or "none"
            raise DataError(f"model {self.name!r} has no weight {name!r}; it has {known}")
        tensor = self._weights[name].tensor
        found = self._state.get(tensor)
        if found is None:
            layout = self._layouts.get(("weight", name))
            found = self._state[tensor] = self.client.put(self._tensors[tensor], layout=layout)
        return found

    def weights(self) -> dict[str, Array]:
        """A copy of all weights as they are now, by name; for `ExportedModel.with_weights`."""
        return {name: self.weight(name).to_numpy() for name in self._weights}

    def reset(self) -> None:
        """Go back to the weights of the exported model."""
        self._state.clear()

    def close(self) -> None:
        """Unload the programs and drop the weights; the client stays open."""
        for runnable in self._compiled.values():
            runnable.close()
        self._compiled.clear()
        self.reset()

    def __enter__(self) -> LoadedModel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _runnable(self, one: Specialization) -> RunnableProgram:
        found = self._compiled.get(id(one))
        if found is None:
            found = compiled(one.program, self.client, self._options)
            self._compiled[id(one)] = found
        return found

    def _put(self, leaf: TensorLeaf, value: Any, layout: Sequence[int] | None) -> Buffer:
        try:
            found = self.client.put(value, layout=None if isinstance(value, Buffer) else layout)
        except PjrtBridgeError as error:
            raise SignatureMismatch(f"argument {leaf.name!r}: {error}") from error
        if found.dtype != leaf.dtype or len(found.shape) != len(leaf.shape):
            raise SignatureMismatch(
                f"argument {leaf.name!r}: found {found.dtype}{list(found.shape)}, expected {leaf}"
            )
        return found

    def _choose(self, given: Mapping[int, Buffer]) -> Specialization:
        """The program for these sizes.

        Raises:
            SignatureMismatch: there is none.
        """
        for one in self._specializations:
            if all(given[index].shape == shape for index, shape in one.shapes().items()):
                return one
        inputs = self.interface.inputs
        if self._specializations[0].sizes:
            found = ", ".join(f"{inputs[i].name}: {list(b.shape)}" for i, b in given.items())
            sizes = "; ".join(
                ", ".join(f"{name}={size}" for name, size in one.sizes.items())
                for one in self._specializations
            )
            raise SignatureMismatch(
                f"model {self.name!r}: no program for the sizes of {found}; it was exported for "
                f"{sizes}. Export it with these sizes, too"
            )
        for index, shape in self._specializations[0].shapes().items():
            if given[index].shape != shape:
                raise SignatureMismatch(
                    f"argument {inputs[index].name!r}: found shape {list(given[index].shape)}, "
                    f"expected {list(shape)}, which it was exported for"
                )
        raise AssertionError("one of the shapes differs")

    def __repr__(self) -> str:
        return f"<LoadedModel {self.name!r} on {self.client!r}>"


def _is_plain(one: Specialization) -> bool:
    """Whether a call does nothing but to run the program, on its arguments and the weights."""
    return (
        not one.checks
        and not any(one.updates)
        and all(slot.kind in ("weight", "input") for slot in one.parameters)
        and not any(slot.kind in ("weight", "input") for slot in one.outputs)
    )


def _layouts(one: Specialization) -> dict[tuple[str, Any], Sequence[int] | None]:
    """In what layout weights and inputs are put: all programs of a model ask for the same."""
    if isinstance(one.program, SplitProgram):
        return {}
    parameters = one.program.signature.parameters
    pairs = zip(one.parameters, parameters, strict=True)
    return {(slot.kind, slot.of): parameter.layout for slot, parameter in pairs}


def _write_into(value: Any, result: Buffer, name: str) -> None:
    """Give a caller's array its new value, as the framework's function did.

    Raises:
        SignatureMismatch: it cannot be written to.
    """
    try:
        overwrite(value, result.to_numpy())
    except (DataError, UnsupportedDtype, ValueError) as error:
        raise SignatureMismatch(
            f"argument {name!r} gets a new value in the call, but cannot be written to: {error}"
        ) from error
