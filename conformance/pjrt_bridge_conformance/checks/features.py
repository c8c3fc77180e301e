"""What the extensions that a plugin offers do, through the bridge's accessors."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ExtensionUnavailable, PjrtError, UnsupportedDtype
from pjrt_bridge.extensions import (
    FFI,
    Accessor,
    Layouts,
    MemoryDescriptions,
    PhaseCompile,
    Profiler,
)
from pjrt_bridge.profiling import xspace
from pjrt_bridge.runtime import Layout
from pjrt_bridge.runtime.core.accessors import AccessorT
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import distinct, equal, require, same, works
from pjrt_bridge_conformance.outcomes import Fail, Unsupported
from pjrt_bridge_conformance.programs import main

FEATURES = Group("extensions")

_ADD = Program.from_text(
    main(
        "%a: tensor<4xf32>",
        "tensor<4xf32>",
        "%0 = stablehlo.add %a, %a : tensor<4xf32> return %0 : tensor<4xf32>",
    )
)
_CALL = """
%0 = stablehlo.custom_call @NAME(%a) {api_version = 4 : i32, backend_config = {factor = 3.0 : f32},
  operand_layouts = [dense<0> : tensor<1xindex>], result_layouts = [dense<0> : tensor<1xindex>]
} : (tensor<4xf32>) -> tensor<4xf32>
return %0 : tensor<4xf32>
"""


def _accessor(context: Context, kind: type[AccessorT]) -> AccessorT:
    try:
        return context.client.extension(kind)
    except ExtensionUnavailable as error:
        raise Unsupported("not offered") from error


def _offered(accessor: Accessor, *functions: str) -> None:
    missing = [function for function in functions if not accessor.offers(function)]
    if missing:
        raise Unsupported(f"{missing[0]} is not offered")


_SHAPES = {"0d": (), "1d": (5,), "2d": (2, 3), "empty": (2, 0, 3), "4d": (2, 3, 4, 5)}


@FEATURES.each(_SHAPES)
def default_layout(context: Context, name: str) -> None:
    """The default layout of a type names each dimension once, for every element type."""
    layouts = _accessor(context, Layouts)
    _offered(layouts, "Client_GetDefaultLayout", "MemoryLayout_Serialize", "MemoryLayout_Destroy")
    shape = _SHAPES[name]
    for dtype in dtypes.ALL:
        try:
            found = layouts.default(TensorType(shape, dtype))
        except UnsupportedDtype:
            continue
        order = sorted(found.minor_to_major)
        equal(order, list(range(len(shape))), f"dimensions of the layout of {dtype}")


@FEATURES.check
def buffer_layout(context: Context) -> None:
    """A buffer that was put without a layout has the default one."""
    layouts = _accessor(context, Layouts)
    _offered(layouts, "Buffer_MemoryLayout", "Client_GetDefaultLayout")
    buffer = context.client.put(np.zeros((3, 4), np.float32))
    equal(layouts.of(buffer), layouts.default(buffer.type), "layout of the buffer")


@FEATURES.check
def output_layouts(context: Context) -> None:
    """A program tells one layout for each result, and the results have them."""
    layouts = _accessor(context, Layouts)
    _offered(layouts, "Executable_GetOutputLayouts", "Buffer_MemoryLayout")
    executable = context.client.compile(_ADD)
    told = layouts.outputs(executable)
    found = tuple(layouts.of(one) for one in executable(np.zeros(4, np.float32)))
    equal(found, told, "layouts of the results")


@FEATURES.check
def parameter_layouts(context: Context) -> None:
    """A program tells one layout for each argument."""
    layouts = _accessor(context, Layouts)
    _offered(layouts, "Executable_GetParameterLayouts")
    equal(layouts.parameters(context.client.compile(_ADD)), (Layout((0,)),), "layouts")


@FEATURES.check
def custom_call(context: Context) -> None:
    """A function that is registered is called with the arguments, attributes and results."""
    client = _registrable(context)
    seen: list[Any] = []

    def scale(x: Any, out: Any, *, factor: float) -> None:
        seen.append(float(factor))
        np.multiply(x, factor, out=out)

    _accessor(context, FFI).register("conformance.scale", scale)
    a = np.arange(4, dtype=np.float32)
    (result,) = client.compile(_calling("conformance.scale"))(a)
    same(result.to_numpy(), a * 3, "result of the call")
    equal(seen, [3.0], "attributes")


@FEATURES.check
def custom_call_that_fails(context: Context) -> None:
    """An error of a registered function reaches the caller with its message."""
    client = _registrable(context)

    def fail(x: Any, out: Any, *, factor: float) -> None:
        raise ArithmeticError("the tortoise won")

    _accessor(context, FFI).register("conformance.fail", fail)
    executable = client.compile(_calling("conformance.fail"))
    try:
        (result,) = executable(np.zeros(4, np.float32))
        result.to_numpy()
    except PjrtError as error:
        require("the tortoise won" in error.message, f"the message was lost: {error.message}")
    else:
        raise Fail("a failing function went unnoticed")
    works(client, "a custom call that failed")


@FEATURES.check
def memory_descriptions(context: Context) -> None:
    """The described memory spaces of a device have kinds, and at most one is the default."""
    memories = _accessor(context, MemoryDescriptions)
    _offered(memories, "DeviceDescription_MemoryDescriptions", "MemoryDescription_Kind")
    for device in context.client.devices:
        found = memories.of(device)
        require(all(one.kind for one in found), f"a memory space without a kind: {found}")
        require(sum(one.default for one in found) <= 1, f"several defaults: {found}")


@FEATURES.check
def profile(context: Context) -> None:
    """A profile of an execution is an XSpace that can be read."""
    profiler = _accessor(context, Profiler)
    executable = context.client.compile(_ADD)
    for _ in range(2):
        with profiler.session() as session:
            executable(np.zeros(4, np.float32))[0].to_numpy()
        try:
            planes = xspace.decode(session.data)
        except ValueError as error:
            data = session.data
            raise Fail(
                f"no XSpace: {error}; {len(data)} bytes: {data[:32].hex(' ')}"
                f"{' ... ' + data[-8:].hex(' ') if len(data) > 40 else ''}"
            ) from error
        for line in (line for plane in planes for line in plane.lines):
            require(all(one.end >= one.start for one in line.spans), f"times of {line.name!r}")


@FEATURES.check
def phase_names(context: Context) -> None:
    """The phases of the compiler have names, each its own."""
    phases = _accessor(context, PhaseCompile)
    _offered(phases, "get_compiler", "get_phase_names", "destroy_compiler")
    found = phases.phases()
    require(found and all(found), f"a phase has no name: {found}")
    distinct(found, "names of phases")


def _registrable(context: Context) -> Any:
    """The client, where functions of Python can be registered with its plugin."""
    _offered(_accessor(context, FFI), "register_handler")
    if not context.client.shares_host_memory:
        raise Unsupported("its arrays are not in host memory, so Python cannot read them")
    return context.client


def _calling(name: str) -> Program:
    body = _CALL.replace("NAME", name)
    return Program.from_text(main("%a: tensor<4xf32>", "tensor<4xf32>", body))
