"""Signatures of SavedModels: functions that were saved by name, with their variables.

What other exporters wrote there as StableHLO (JAX, PyTorch/XLA) is an operation of TensorFlow's
graph, `XlaCallModule`, and runs on plugins like others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from pjrt_bridge.errors import DataError, NotExportable, OptionError, SavedModelError
from pjrt_bridge.exported import ExportedModel, of_program
from pjrt_bridge.runtime import Client
from pjrt_bridge.tf_interop.compiled import Settings
from pjrt_bridge.tf_interop.export import export
from pjrt_bridge.tf_interop.function import Function

DEFAULT = "serving_default"
"""What TensorFlow and Keras call the signature of a model that has one."""


@dataclass(frozen=True)
class SavedSignature:
    """A signature of a SavedModel.

    Attributes:
        name: of the signature.
        function: TensorFlow's concrete function; takes its arguments by name, gives a dict.
        inputs: a `tf.TensorSpec` for each argument, by name and in the order of names.
        outputs: the same for the results.
        model: what TensorFlow loaded, which keeps the variables.
    """

    name: str
    function: Any
    inputs: Mapping[str, tf.TensorSpec]
    outputs: Mapping[str, tf.TensorSpec]
    model: Any

    def check(self, name: str, value: tf.Tensor) -> None:
        """Check that an argument fits.

        Raises:
            DataError: it has another type or shape.
        """
        spec = self.inputs[name]
        if not spec.is_compatible_with(value):
            raise DataError(
                f"argument {name!r}: found {_described(value)}, expected {_described(spec)}"
            )

    def run(self, given: Mapping[str, tf.Tensor], client: Client) -> list[Any]:
        """The results as NumPy's arrays: the plugin runs what it can, and TensorFlow the rest.

        Args:
            given: the arguments by name.
            client: of the plugin.

        Raises:
            DataError: TensorFlow refuses the values.
        """
        function = Function(self.function, Settings(client, "host"), None)
        try:
            results = function(**given)
        except tf.errors.OpError as error:
            raise DataError(f"signature {self.name!r}: TensorFlow: {error.message}") from error
        return [results[name].numpy() for name in self.outputs]

    def exported(self, sizes: Mapping[str, int]) -> ExportedModel:
        """The signature as one program, which takes the arguments and then the variables.

        Args:
            sizes: for each size that the signature leaves open, by `ARGUMENT.DIMENSION`: `"x.0"`.

        Raises:
            OptionError: a size that is missing, or that is not open.
            NotExportable: operations that do not compile, arguments of any rank.
            UnsupportedDtype: an argument that no device takes.
        """
        open_sizes = [
            f"{name}.{at}"
            for name, spec in self.inputs.items()
            for at, size in enumerate(_shape(name, spec))
            if size is None
        ]
        if set(open_sizes) != set(sizes):
            raise OptionError(
                f"signature {self.name!r}: sizes: found {_listed(sizes)}, needed "
                f"{_listed(open_sizes)}"
            )
        specs = {
            name: tf.TensorSpec(
                [
                    sizes[f"{name}.{at}"] if size is None else size
                    for at, size in enumerate(_shape(name, spec))
                ],
                spec.dtype,
            )
            for name, spec in self.inputs.items()
        }
        program = export(self.function, **specs)
        return of_program(program, exporter=f"tensorflow {tf.__version__}")


def read_signature(folder: Path, name: str | None = None) -> SavedSignature:
    """A signature of a SavedModel; loading restores its variables and fills its tables.

    Args:
        folder: of the SavedModel.
        name: of the signature; None: `serving_default`, or the only one.

    Raises:
        SavedModelError: TensorFlow cannot read it, or it has no signatures.
        OptionError: no such signature, or none named of several.
    """
    try:
        model = tf.saved_model.load(str(folder))
    except Exception as error:
        # TensorFlow raises errors of its own, of protobuf and of Python for damaged files.
        raise SavedModelError(f"{folder}: TensorFlow cannot read it: {error}") from error
    found = dict(getattr(model, "signatures", {}))
    if not found:
        raise SavedModelError(
            f"{folder}: a SavedModel without signatures; name them in tf.saved_model.save(model, "
            "folder, signatures=...)"
        )
    chosen = name or (DEFAULT if DEFAULT in found or len(found) > 1 else next(iter(found)))
    if chosen not in found:
        raise OptionError(
            f"{folder}: found no signature {chosen!r}, expected one of {_listed(found)}"
        )
    function = found[chosen]
    _, inputs = function.structured_input_signature
    outputs = function.structured_outputs
    return SavedSignature(chosen, function, _in_order(inputs), _in_order(outputs), model)


def _in_order(specs: Mapping[str, tf.TensorSpec]) -> dict[str, tf.TensorSpec]:
    # TensorFlow gives another order in each process.
    return {name: specs[name] for name in sorted(specs)}


def _shape(name: str, spec: tf.TensorSpec) -> list[int | None]:
    if spec.shape.rank is None:
        reason = f"argument {name!r} may have any rank; give it one in its signature"
        raise NotExportable(f"signature: {reason}", reasons=[reason])
    return list(spec.shape)


def _described(value: tf.TensorSpec | tf.Tensor) -> str:
    return f"{value.dtype.name}{'[...]' if value.shape.rank is None else _sizes(value.shape)}"


def _sizes(shape: tf.TensorShape) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
