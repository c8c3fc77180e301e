"""Opening the file or folder of a command: a saved model, a bundle, or a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pjrt_bridge.cli.frameworks import need_tensorflow
from pjrt_bridge.errors import (
    NotExportable,
    OptionError,
    ProgramError,
    SavedModelError,
    UnsupportedDtype,
)

if TYPE_CHECKING:
    from pjrt_bridge.exported import ExportedModel

FUNCTION_FLAGS = ("--function", "--signature")
TRUSTED_HELP = (
    "Also load the parts of the model that are code. Only for models whose authors you trust."
)
FUNCTION_HELP = "The function of a bundle with several, or the signature of a SavedModel."

MODEL = "a saved model"
BUNDLE = "a bundle of PyTorch/XLA"
SAVED_MODEL = "a SavedModel of TensorFlow"
"""What folders hold, as messages call it."""


@dataclass(frozen=True)
class Choice:
    """The user's choice of a program, from a file that holds several.

    Attributes:
        function: of a bundle, or the signature of a SavedModel.
        platform: of an artifact of jax.export.
        sizes: `name=number` for each symbolic size of an artifact or a signature, or for some of
            those by which the programs of a saved model differ.
        default_platform: asked where an artifact is for several platforms and none was named.
        trusted: load what runs code when it is loaded.
    """

    function: str | None
    platform: str | None
    sizes: Sequence[str]
    default_platform: Callable[[], str]
    trusted: bool = False


def open_model(path: Path, choice: Choice) -> ExportedModel:
    """The model that a folder or file holds; what it holds decides, not its name.

    Raises:
        SavedModelError: a folder that holds no model, or a damaged one.
        ProgramError: a file that cannot be read, or that is no program.
        OptionError: a choice that is missing, or that there is not.
    """
    if path.is_dir():
        return _open_folder(path, choice)
    from pjrt_bridge.exported import of_program
    from pjrt_bridge.runtime.compile.serialized import MAGIC as EXECUTABLE
    from pjrt_bridge.stablehlo import Program
    from pjrt_bridge.stablehlo.program.bytecode import MAGIC
    from pjrt_bridge.stablehlo.program.program import read_file

    content = read_file(path)
    if content.startswith(EXECUTABLE):
        raise ProgramError(
            f"{path}: found one compiled program, which `Client.deserialize` loads; give the model "
            "or program that it was compiled from"
        )
    if content.startswith(MAGIC) or _is_text(content):
        check_offered(path, "one program", choice)
        try:
            return of_program(Program.parse(content), exporter="file")
        except ProgramError as error:
            raise ProgramError(f"{path}: {error}") from error
    return _open_artifact(path, content, choice)


def kind_of(folder: Path) -> str:
    """The kind of a folder: MODEL, BUNDLE or SAVED_MODEL.

    Raises:
        SavedModelError: something else.
    """
    from pjrt_bridge.exported import torch_xla_bundle
    from pjrt_bridge.exported.manifest import FILE

    if (folder / FILE).is_file():
        return MODEL
    if torch_xla_bundle.is_bundle(folder):
        return BUNDLE
    if any((folder / file).is_file() for file in ("saved_model.pb", "saved_model.pbtxt")):
        return SAVED_MODEL
    raise SavedModelError(
        f"{folder}: found neither {FILE} (a saved model) nor {torch_xla_bundle.FUNCTIONS}/*.meta "
        "(a bundle of PyTorch/XLA) nor saved_model.pb (a SavedModel of TensorFlow)"
    )


def _open_folder(path: Path, choice: Choice) -> ExportedModel:
    from pjrt_bridge.exported import ExportedModel, torch_xla_bundle

    kind = kind_of(path)
    if kind == MODEL:
        check_offered(path, kind, choice, "sizes")
        return _of_sizes(
            path, ExportedModel.load(path, trusted=choice.trusted), _sizes(choice.sizes)
        )
    if kind == BUNDLE:
        check_offered(path, kind, choice, "function")
        return torch_xla_bundle.read_bundle(path, choice.function)
    check_offered(path, kind, choice, "function", "sizes")
    return _export_saved_model(path, choice)


def _export_saved_model(path: Path, choice: Choice) -> ExportedModel:
    need_tensorflow(path)
    from pjrt_bridge.tf_interop.saved_model import read_signature

    signature = read_signature(path, choice.function)
    sizes = _sizes(choice.sizes)
    try:
        return signature.exported(sizes)
    except (OptionError, UnsupportedDtype) as error:
        raise type(error)(f"{path}: {error}") from error
    except NotExportable as error:
        raise NotExportable(f"{path}: {error}", reasons=error.reasons) from error


def _open_artifact(path: Path, content: bytes, choice: Choice) -> ExportedModel:
    from pjrt_bridge.jax_interop import from_exported
    from pjrt_bridge.jax_interop.artifact import read

    try:
        platforms = read(content).platforms
    except ProgramError as error:
        raise ProgramError(
            f"{path}: neither StableHLO (text, bytecode, portable artifact) nor an {error}"
        ) from error
    check_offered(path, "an artifact of jax.export", choice, "platform", "sizes")
    platform = choice.platform
    if platform is None and len(platforms) > 1:
        platform = choice.default_platform()
    sizes = _sizes(choice.sizes)
    try:
        return from_exported(content, platform=platform, sizes=sizes)
    except (OptionError, ProgramError) as error:
        raise type(error)(f"{path}: {error}") from error


def check_offered(path: Path, what: str, choice: Choice, *offered: str) -> None:
    """Refuse choices that do not exist there.

    Raises:
        OptionError: there is one.
    """
    for name, plural in (("function", "functions"), ("platform", "platforms"), ("sizes", "sizes")):
        if getattr(choice, name) and name not in offered:
            option = name.removesuffix("s")
            raise OptionError(f"--{option}: {path} is {what}, and has no {plural} to choose")


def _of_sizes(path: Path, model: ExportedModel, sizes: Mapping[str, int]) -> ExportedModel:
    """The model with those of its programs that are for some sizes.

    Raises:
        OptionError: there is none.
    """
    fitting = tuple(one for one in model.specializations if sizes.items() <= one.sizes.items())
    if not fitting:
        raise OptionError(
            f"--size: found {sizes_text(sizes)}, which no program of {path} has; their sizes are: "
            f"{known_sizes(model)}"
        )
    return replace(model, specializations=fitting)


def known_sizes(model: ExportedModel) -> str:
    """The sizes of each program of a model."""
    return "; ".join(sizes_text(one.sizes) for one in model.specializations)


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Sizes as options give them."""
    return " ".join(f"{name}={size}" for name, size in sizes.items()) or "none"


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _sizes(pairs: Sequence[str]) -> dict[str, int]:
    found = {}
    for pair in pairs:
        name, _, number = pair.partition("=")
        if not name or not number.isdecimal():
            raise OptionError(f"--size: found {pair!r}, expected name=number")
        found[name] = int(number)
    return found
