"""Models that `pjrt-bridge run` runs: exported ones, and signatures of SavedModels."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pjrt_bridge.cli.console import note
from pjrt_bridge.cli.frameworks import need_tensorflow
from pjrt_bridge.errors import DataError, HostFallbackWarning

if TYPE_CHECKING:
    from pjrt_bridge.dtypes import DType
    from pjrt_bridge.exported import ExportedModel, TensorLeaf
    from pjrt_bridge.runtime import Client


class RunnableModel(Protocol):
    """Something that takes arrays by name.

    Attributes:
        name: of it.
        inputs: what each input has to be, by name.
        results: what each result will be, by what it is called.
        about: what else is worth a line.
        one_of: what an input can be given as.
    """

    name: str
    inputs: Mapping[str, str]
    results: Mapping[str, str]
    about: Mapping[str, str]
    one_of: str

    def example(self, name: str, index: int) -> str:
        """An example of what a user could give for an input."""

    def read(self, name: str, text: str) -> Any:
        """The input that a user gives.

        Raises:
            DataError: it cannot be read, or does not fit.
        """

    def run(self, given: Mapping[str, Any], client: Client) -> Sequence[Any]:
        """The results as NumPy's arrays."""


class ExportedRunnable(RunnableModel):
    """An exported model."""

    one_of = "one .npy file (numpy.save)"

    def __init__(self, model: ExportedModel) -> None:
        from pjrt_bridge.exported import TensorLeaf
        from pjrt_bridge.exported.ahead import CompiledProgram

        self._model = model
        self._leaves = {
            leaf.name: leaf for leaf in model.interface.inputs if isinstance(leaf, TensorLeaf)
        }
        self.name = model.name
        self.inputs = {
            name: described(leaf.dtype, leaf.shape) for name, leaf in self._leaves.items()
        }
        self.results = dict(zip(self._labels(), self._results(), strict=True))
        made_for = {
            one.made_for for one in model.device_programs if isinstance(one, CompiledProgram)
        }
        texts = "; ".join(" ".join(text.split()) for text in sorted(made_for))
        self.about = {"compiled for": texts} if texts else {}

    def _labels(self) -> list[str]:
        """What each result is called: its number, and its place where results are nested."""
        outputs = self._model.interface.outputs
        paths = outputs.paths("") if outputs.kind == "dict" else {}
        count = len(self._model.specializations[0].outputs)
        return [f"result {index}{paths.get(index, '')}" for index in range(count)]

    def _results(self) -> list[str]:
        from pjrt_bridge.stablehlo import Program

        one = self._model.specializations[0]
        found = []
        for slot in one.outputs:
            if slot.kind == "result" and isinstance(one.program, Program):
                type = one.program.signature.results[slot.of].type
                found.append(described(type.dtype, type.shape))
            else:
                # What a program in parts gives may have sizes that depend on data.
                found.append("computed" if slot.kind == "result" else slot.kind)
        return found

    def example(self, name: str, index: int) -> str:
        """A file."""
        return f"input_{index}.npy"

    def read(self, name: str, text: str) -> Any:
        """The array of a file."""
        return _load(Path(text), self._leaves[name])

    def run(self, given: Mapping[str, Any], client: Client) -> Sequence[Any]:
        """Compile the program that fits, and run it."""
        leaves = [
            given[leaf.name] if leaf.name in given else getattr(leaf, "value", None)
            for leaf in self._model.interface.inputs
        ]
        with self._model.load_on(client) as loaded:
            return [_array(value) for value in loaded.run(leaves)]


class SavedModelRunnable(RunnableModel):
    """A signature of a SavedModel, on the plugin and where it has to be in TensorFlow.

    Args:
        folder: of the SavedModel.
        signature: its name; None: the one that serves.

    Raises:
        OptionError: TensorFlow is not installed, or there is no such signature.
        SavedModelError: TensorFlow cannot read the folder.
    """

    one_of = "one .npy file (numpy.save), or description such as f32[8,64] or str[ant,bee],"

    def __init__(self, folder: Path, signature: str | None) -> None:
        need_tensorflow(folder)
        from pjrt_bridge.tf_interop.saved_model import read_signature

        self._signature = read_signature(folder, signature)
        self.name = self._signature.name
        self.about = {}
        self.inputs = {name: _spec(spec) for name, spec in self._signature.inputs.items()}
        self.results = {
            f"result {index}[{name!r}]": _spec(self._signature.outputs[name])
            for index, name in enumerate(self._signature.outputs)
        }

    def example(self, name: str, index: int) -> str:
        """A file, or words."""
        words = self._signature.inputs[name].dtype.name == "string"
        return "str[ant,bee]" if words else f"input_{index}.npy"

    def read(self, name: str, text: str) -> Any:
        """The tensor of a file or description."""
        from pjrt_bridge.tf_interop.example_inputs import example_input

        try:
            value = example_input(text)
            self._signature.check(name, value)
        except DataError as error:
            raise DataError(f"--input {text}: {error}") from error
        return value

    def run(self, given: Mapping[str, Any], client: Client) -> Sequence[Any]:
        """Run the signature, and say what TensorFlow computes of it."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", HostFallbackWarning)
            results = self._signature.run(given, client)
        for warning in caught:
            note(str(warning.message))
        return [_array(value) for value in results]


def described(dtype: DType | str, shape: Sequence[int | str]) -> str:
    """A type and shape, `float32 2x3`."""
    return f"{dtype} {'x'.join(map(str, shape)) or 'scalar'}"


def described_array(array: Any) -> str:
    """The type and shape of what `run` gave."""
    from pjrt_bridge import dtypes

    dtype = "string" if array.dtype.kind == "S" else dtypes.from_numpy(array.dtype)
    return described(dtype, array.shape)


def _spec(spec: Any) -> str:
    if spec.shape.rank is None:
        return f"{spec.dtype.name} of any rank"
    return described(spec.dtype.name, ["?" if size is None else size for size in spec.shape])


def _array(value: Any) -> Any:
    import numpy as np

    from pjrt_bridge.runtime import Buffer

    array = value.to_numpy() if isinstance(value, Buffer) else np.asarray(value)
    # Strings of TensorFlow, which .npy files keep as bytes of one width.
    return array.astype(np.bytes_) if array.dtype.kind == "O" else array


def _load(path: Path, expected: TensorLeaf) -> Any:
    from pjrt_bridge.example_inputs import load_array

    try:
        array = load_array(path)
    except DataError as error:
        raise DataError(f"--input {path}: {error}") from error
    host = expected.dtype.numpy
    # A .npy file keeps only the width of the types that NumPy does not know (bfloat16, ...).
    if array.dtype.kind == "V" and array.dtype.itemsize == host.itemsize:
        array = array.view(host)
    return array
