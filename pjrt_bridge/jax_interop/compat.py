"""Everything of JAX that is not public, in one place.

JAX's own registration of plugins, `xla_bridge.register_plugin`, makes JAX as a whole fail where one
plugin finds no device. The steps here are the same but for that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.errors import ProgramError, RegistrationError, UnsupportedDtype
from pjrt_bridge.exported import Tree
from pjrt_bridge.jax_interop.artifact import Aval, Exported
from pjrt_bridge.stablehlo.program.program import Program

_P = ParamSpec("_P")
_T = TypeVar("_T")

_CAPSULE = b"pjrt_c_api"
"""What JAX calls the capsules that hold a PJRT_Api."""

UNKNOWN = "pjrt"
"""A platform of which JAX knows nothing: it writes StableHLO that is for no library's functions."""


def _of_jax(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Say which version of JAX lacks what a function needs."""

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except (ImportError, AttributeError) as error:
            try:
                import jax
            except ImportError:
                raise RegistrationError(
                    f"JAX cannot be imported ({error}); run: pip install 'pjrt-bridge[jax]'"
                ) from error
            raise RegistrationError(
                f"JAX {jax.__version__} registers plugins in an unknown way: {error}"
            ) from error

    return call


@_of_jax
def started() -> bool:
    """Whether JAX has made its backends, after which there are no more."""
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


@_of_jax
def platforms() -> set[str]:
    """Names that JAX gives a meaning, with those of the plugins that it found by itself."""
    from jax._src import xla_bridge

    xla_bridge._discover_and_register_pjrt_plugins()
    return set(xla_bridge.known_platforms())


@_of_jax
def tables() -> dict[int, str]:
    """The name of JAX's backend for each PJRT_Api that it has, by address."""
    from jax._src import xla_bridge

    xla_bridge._discover_and_register_pjrt_plugins()
    # A prototype of its own: the attributes of ctypes.pythonapi are shared by all modules.
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    address = pointer(("PyCapsule_GetPointer", ctypes.pythonapi))
    return {
        address(backend.c_api, _CAPSULE): name
        for name, backend in xla_bridge._backend_factories.items()
        if backend.c_api is not None
    }


@_of_jax
def add_backend(
    name: str,
    address: int,
    *,
    priority: int,
    options: Mapping[str, NamedValue],
    profiled: bool,
) -> None:
    """Make a PJRT_Api a backend; where it cannot make a client, only this backend is missing.

    Args:
        name: of the platform.
        address: of the table.
        priority: the backend of the highest one is JAX's default.
        options: create options of the client.
        profiled: JAX's profiler may ask the plugin for its part.
    """
    from jax._src import xla_bridge

    capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    new = capsule(("PyCapsule_New", ctypes.pythonapi))
    table: Any = new(address, _CAPSULE, None)
    xla_bridge.xla_client.load_pjrt_plugin_with_c_api(name, table)
    if profiled:
        xla_bridge._profiler.register_plugin_profiler(table)
    xla_bridge.register_backend_factory(
        name,
        partial(xla_bridge.make_pjrt_c_api_client, name, options=dict(options)),
        priority=priority,
        fail_quietly=True,
        experimental=True,
        make_topology=partial(xla_bridge.xla_client.make_c_api_device_topology, table),
        c_api=table,
    )


@dataclass(frozen=True)
class LoweredFunction:
    """A function as `jax.jit(f).lower(...)` gives it.

    Attributes:
        function: how it is called; its module is empty, as there is a program.
        program: its parameters are first the constants, then the arguments that are kept.
        constants: arrays that the function closes over.
    """

    function: Exported
    program: Program
    constants: tuple[np.ndarray[Any, Any], ...]


def name_and_version() -> str:
    """JAX with its version."""
    import jax

    return f"jax {jax.__version__}"


@_of_jax
def exported(value: object) -> Exported:
    """The description of an exported function, read from the object.

    Raises:
        ProgramError: no such object, or one that needs JAX at run time.
    """
    import jax.export

    if not isinstance(value, jax.export.Exported):
        raise ProgramError(
            f"exported: found a {type(value).__name__}, expected bytes or a jax.export.Exported"
        )
    if value.ordered_effects:
        raise ProgramError(
            f"function {value.fun_name!r} of jax.export: found ordered effects, which need JAX at "
            "run time"
        )
    return Exported(
        name=value.fun_name,
        inputs=_tree(value.in_tree, []),
        avals=tuple(_aval(value.fun_name, aval) for aval in value.in_avals),
        outputs=_tree(value.out_tree, []),
        kept=tuple(value.module_kept_var_idx),
        platforms=tuple(value.platforms),
        devices=value.nr_devices,
        module=bytes(value.mlir_module_serialized),
    )


@_of_jax
def lowered(value: object) -> LoweredFunction:
    """The description of a lowered function.

    Raises:
        ProgramError: no such object, or one that calls functions of this process.
    """
    import jax

    if not isinstance(value, jax.stages.Lowered):
        raise ProgramError(
            f"lowered: found a {type(value).__name__}, expected what jax.jit(f).lower(...) gives"
        )
    program = Program.from_module(value.compiler_ir("stablehlo"))
    details = value._lowering.compile_args
    if details["ordered_effects"] or details["host_callbacks"]:
        raise ProgramError(
            f"lowered function {program.name!r}: it calls functions of this process, or has "
            "effects in an order, which need JAX at run time"
        )
    leaves = jax.tree.leaves(value.args_info)
    constants = value._lowering.const_args
    # JAX counts the constants as arguments, too.
    kept = sorted(index - len(constants) for index in details["kept_var_idx"])
    return LoweredFunction(
        Exported(
            name=program.name,
            inputs=_tree(value.in_tree, []),
            avals=tuple(_aval(program.name, leaf) for leaf in leaves),
            outputs=_tree(value.out_tree, []),
            kept=tuple(index for index in kept if index >= 0),
            platforms=(),
            devices=details["num_devices"],
            module=b"",
        ),
        program,
        tuple(np.asarray(array) for array in constants),
    )


def _aval(where: str, aval: Any) -> Aval:
    try:
        dtype = dtypes.from_numpy(aval.dtype)
    except (UnsupportedDtype, TypeError) as error:
        raise ProgramError(f"function {where!r}: an argument is of type {aval.dtype}") from error
    return Aval(dtype, tuple(map(str, aval.shape)))


def _tree(definition: Any, leaves: list[None]) -> Tree:
    node = definition.node_data()
    if node is None:
        leaves.append(None)
        return Tree("leaf", leaf=len(leaves) - 1)
    kind, details = node
    if kind is type(None):
        return Tree("none")
    items = tuple(_tree(child, leaves) for child in definition.children())
    if kind is dict:
        return Tree("dict", items=items, keys=tuple(map(str, details)))
    if kind is list:
        return Tree("list", items=items)
    return Tree("tuple", items=items, origin="" if kind is tuple else kind.__qualname__)


@_of_jax
def varying_axes(value: Any) -> frozenset[Any]:
    """The axes of a mesh over which an array varies, within `jax.shard_map`."""
    import jax

    return _varying(jax.typeof(value))


def _varying(aval: Any) -> frozenset[Any]:
    # Up to JAX 0.9 the type itself has them.
    found: frozenset[Any] = (
        aval.manual_axis_type.varying if hasattr(aval, "manual_axis_type") else aval.vma
    )
    return found


@_of_jax
def array_type(shape: tuple[int, ...], dtype: Any, like: Sequence[Any]) -> Any:
    """The type of an array that varies over the same axes of a mesh as these do.

    Args:
        shape: of the array.
        dtype: of the array.
        like: types of arrays that all vary over the same axes.
    """
    import jax

    if not like or not _varying(like[0]):
        return jax.core.ShapedArray(shape, dtype)
    name = "manual_axis_type" if hasattr(like[0], "manual_axis_type") else "vma"
    undivided = jax.sharding.PartitionSpec(*(None for _ in shape))
    return jax.core.ShapedArray(
        shape,
        dtype,
        sharding=like[0].sharding.update(spec=undivided),
        **{name: getattr(like[0], name)},
    )


@_of_jax
def is_mapped_constant(value: object) -> bool:
    """Whether a value is a row of an array of NumPy, within `jax.vmap`.

    Rules of gradients within others (`jax.custom_vjp`) fail on it in a program that is traced.
    """
    from jax._src.interpreters.batching import BatchTracer

    while isinstance(value, BatchTracer):
        value = value.val
        if isinstance(value, np.ndarray):
            return True
    return False


@_of_jax
def new_primitive(
    name: str,
    types: Callable[..., Any],
    lower: Callable[..., Any],
    mapped: Callable[..., Any],
) -> Any:
    """An operation of JAX with several results.

    Args:
        name: of it.
        types: gives the types of the results for those of the operands.
        lower: writes it into the module of a context.
        mapped: gives results and the dimensions that were mapped, for operands with theirs.
    """
    import jax
    from jax.extend.core import Primitive
    from jax.interpreters import batching, mlir

    made = Primitive(name)
    made.multiple_results = True
    made.def_abstract_eval(types)
    made.def_impl(lambda *given, **options: jax.jit(partial(made.bind, **options))(*given))
    mlir.register_lowering(made, lower)
    batching.primitive_batchers[made] = mapped
    return made


@_of_jax
def lower_by_default(primitive: str, function: Callable[..., Any]) -> None:
    """Write a primitive as others, on platforms for which JAX cannot write it.

    Args:
        primitive: its name in `jax.lax.linalg`.
        function: takes the primitive's operands and options, and gives a list of its results.
    """
    import jax.lax.linalg
    from jax.interpreters import mlir

    rule = mlir.lower_fun(function, multiple_results=True)
    mlir.register_lowering(getattr(jax.lax.linalg, primitive), rule)


@_of_jax
def portable_program(
    function: Callable[..., Any], operands: Sequence[tuple[tuple[int, ...], Any]]
) -> Program:
    """A function of arrays, as JAX writes it for a platform that it does not know.

    Args:
        function: takes and gives arrays.
        operands: shape and type of each.
    """
    import jax

    described = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in operands]
    with jax.enable_x64(True):
        traced = jax.jit(function, keep_unused=True).trace(*described)
        return lowered(traced.lower(lowering_platforms=(UNKNOWN,))).program
