"""What is fuzzed: for each target how inputs are made, and what is done with one.

A target either works or raises an error of the bridge; anything else is a finding. It returns
whether the input was accepted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.runtime import Client, CompileOptions, Executable
from pjrt_bridge.runtime.compile import serialized
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.torch_interop.options import BackendOptions
from tests import programs
from tests.fuzz import objects
from tests.fuzz.mutation import blobs, texts
from tests.plugins import cpu_plugin

VALID = [
    programs.ADD,
    programs.ALIASED_ADD,
    programs.TWO_RESULTS,
    programs.CONSTANT,
    programs.SLOW,
    programs.ALL_REDUCE,
    programs.identity("tensor<2x3xbf16>", result='{mhlo.layout_mode = "{0,1}"}'),
    programs.bounded("tensor<8xf32>", "tensor<?xf32, #stablehlo.bounds<8>>", 0),
]


@dataclass(frozen=True)
class Target:
    """One target.

    Attributes:
        inputs: makes them.
        check: takes one; False where it was refused.
    """

    inputs: Callable[[], st.SearchStrategy[Any]]
    check: Callable[[Any], bool]


TARGETS: dict[str, Target] = {}


def target(
    inputs: Callable[[], st.SearchStrategy[Any]],
) -> Callable[[Callable[[Any], object]], Callable[[Any], bool]]:
    """Register a target under its function's name; what the bridge raises is a refusal."""

    def register(function: Callable[[Any], object]) -> Callable[[Any], bool]:
        def check(given: Any) -> bool:
            try:
                function(given)
            except PjrtBridgeError:
                return False
            return True

        TARGETS[function.__name__] = Target(inputs, check)
        return check

    return register


@cache
def client() -> Client:
    """One device."""
    return cpu_plugin().client({"cpu_device_count": 1})


@cache
def pair() -> Client:
    """Two devices."""
    return cpu_plugin().client({"cpu_device_count": 2})


# -- programs --------------------------------------------------------------------------------------


def _use(program: Program) -> None:
    program.signature
    program.text
    program.portable_artifact()


@target(lambda: texts(VALID))
def program_text(given: str) -> None:
    _use(Program.parse(given))


@target(lambda: blobs([Program.from_text(text).bytecode() for text in VALID]))
def program_bytecode(given: bytes) -> None:
    _use(Program.parse(given))


@target(lambda: blobs([Program.from_text(text).portable_artifact() for text in VALID]))
def program_artifact(given: bytes) -> None:
    _use(Program.parse(given))


@target(lambda: texts(VALID))
def compile_text(given: str) -> None:
    client().compile(given).close()


@target(lambda: objects.data)
def compile_object(given: Any) -> None:
    client().compile(given).close()


# -- options ---------------------------------------------------------------------------------------

_anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.lists(st.integers(-1, 3), max_size=3),
    st.lists(st.lists(st.integers(-1, 3), max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.just(object()),
)
_flags = st.dictionaries(
    st.one_of(
        st.text(max_size=6),
        st.sampled_from(["xla_cpu_enable_fast_math", "xla_backend_optimization_level"]),
        st.integers(),
    ),
    _anything,
    max_size=2,
)
_fields = st.fixed_dictionaries(
    {},
    optional={
        "num_replicas": st.one_of(st.integers(-1, 3), _anything),
        "num_partitions": st.one_of(st.integers(-1, 3), _anything),
        "use_spmd_partitioning": _anything,
        "use_shardy_partitioner": _anything,
        "device_assignment": _anything,
        "portable": _anything,
        "env": st.one_of(_flags, _anything),
    },
)


@target(lambda: _fields)
def compile_options(given: dict[str, Any]) -> None:
    pair().compile(programs.ADD, options=CompileOptions(**given)).close()


_names = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["cpu_device_count", "node_id", "platform_name"]),
    _anything,
)


@target(
    lambda: st.one_of(
        _anything,
        st.lists(st.tuples(_names.filter(_hashable), _anything), max_size=3).map(dict),
        st.builds(lambda n: {"cpu_device_count": n}, st.one_of(st.integers(-2, 6), _anything)),
    )
)
def client_options(given: Any) -> None:
    Client(cpu_plugin(), given).close()


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


_torch = st.dictionaries(
    st.one_of(
        st.sampled_from(
            ["plugin", "fallback", "host_ops", "min_segment", "buckets", "compiler_flags"]
        ),
        st.text(max_size=5),
    ),
    st.one_of(
        _anything,
        _flags,
        st.lists(
            st.one_of(st.text(max_size=8), st.sampled_from(["aten.mm", "aten::add", "aten."]))
        ),
    ),
    max_size=3,
)


@target(lambda: st.tuples(_torch, st.one_of(st.none(), st.text(max_size=8), _anything)))
def torch_options(given: tuple[dict[str, Any], Any]) -> None:
    BackendOptions.parse(*given)


# -- data ------------------------------------------------------------------------------------------


@target(
    lambda: st.tuples(
        objects.data,
        st.sampled_from([None, True, False]),
        st.sampled_from(["", "device", "memory", "foreign", "junk"]),
    )
)
def put(given: tuple[Any, bool | None, str]) -> None:
    data, copy, where = given
    here, other = client(), pair()
    place: dict[str, Any] = {
        "": {},
        "device": {"device": here.devices[0]},
        "memory": {"memory": here.memories[-1]},
        "foreign": {"device": other.devices[0]},
        "junk": {"device": 7},
    }[where]
    with here.put(data, copy=copy, **place) as buffer:
        found = buffer.to_numpy()
        if isinstance(data, np.ndarray):
            assert found.tobytes() == np.ascontiguousarray(data).astype(found.dtype).tobytes()


@cache
def _executables() -> list[Executable]:
    here = client()
    return [
        here.compile(programs.ADD),
        here.compile(programs.ALIASED_ADD),
        here.compile(programs.TWO_RESULTS),
        here.compile(programs.NOTHING),
        here.compile(programs.ADD, options=CompileOptions(portable=True)),
        here.compile(
            programs.identity("tensor<2x3xf32>", attributes='{mhlo.layout_mode = "{0,1}"}')
        ),
        pair().compile(programs.ALL_REDUCE, options=CompileOptions(num_replicas=2)),
    ]


_buffers = st.sampled_from(
    [
        "64xf32", "64xs32", "8x8xf32", "4xf32", "2xi32", "2x3xf32", "by columns", "deleted",
        "donated", "foreign", "second device", "same", "array", "none", "executable",
    ]
)  # fmt: skip
_indices = st.lists(st.one_of(st.integers(-2, 4), st.integers(), st.text(max_size=1)), max_size=3)


def _buffer(name: str, stack: ExitStack) -> Any:
    here = client()
    ones = np.ones(64, np.float32)
    if name == "same":
        return _kept()
    if name == "by columns":
        turn = '{mhlo.layout_mode = "{0,1}"}'
        columns = here.compile(programs.identity("tensor<2x3xf32>", result=turn))
        return columns(np.ones((2, 3), np.float32))[0]
    if name in ("array", "none", "executable"):
        return {"array": ones, "none": None, "executable": _executables()[0]}[name]
    if name == "donated":
        gone = here.put(ones, copy=True)
        _executables()[1].execute([gone, here.put(ones)])
        return gone
    if name == "foreign":
        return stack.enter_context(pair().put(ones))
    if name == "second device":
        return stack.enter_context(pair().put(np.ones(4, np.float32), pair().devices[1]))
    shape, dtype = {
        "64xf32": (64, np.float32),
        "64xs32": (64, np.int32),
        "8x8xf32": ((8, 8), np.float32),
        "4xf32": (4, np.float32),
        "2xi32": (2, np.int32),
        "2x3xf32": ((2, 3), np.float32),
        "deleted": (64, np.float32),
    }[name]
    buffer = stack.enter_context(here.put(np.ones(shape, dtype)))
    if name == "deleted":
        buffer.delete()
    return buffer


@cache
def _kept() -> Any:
    return client().put(np.ones(64, np.float32))


@target(
    lambda: st.tuples(
        st.integers(0, 6),
        st.lists(_buffers, max_size=4),
        st.one_of(st.none(), _indices),
        st.sampled_from(["", "right", "foreign", "junk"]),
        st.booleans(),
    )
)
def execute(given: tuple[int, list[str], list[Any] | None, str, bool]) -> None:
    which, names, donate, where, sharded = given
    executable = _executables()[which]
    device: Any = {
        "": None,
        "right": executable.devices[0],
        "foreign": pair().devices[1],
        "junk": 7,
    }[where]
    with ExitStack() as stack:
        buffers = [_buffer(name, stack) for name in names]
        if sharded:
            results = executable.execute_sharded([buffers, buffers[::-1]], donate=donate)[0]
        else:
            results = executable.execute(buffers, donate=donate, device=device)
        for result in results:
            result.to_numpy()


# -- serialized executables ------------------------------------------------------------------------


@cache
def _blob() -> bytes:
    return _executables()[0].serialize()


@target(lambda: blobs([_blob()]))
def deserialize(given: bytes) -> None:
    client().deserialize(given).close()


_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(
                st.text(max_size=4),
                st.sampled_from(["parameters", "results", "type", "shape", "dtype", "layout"]),
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)


@st.composite
def _containers(draw: st.DrawFn) -> bytes:
    """Containers whose checksum is right, around what is not."""
    header, inner = serialized.unpack(_blob())
    fields: dict[str, Any] = json.loads(json.dumps(vars_of(header)))
    holder, name = draw(st.sampled_from(_places(fields)))
    holder[name] = draw(_json)
    # Never altered machine code: nobody could tell, and it would run.
    blob = draw(st.sampled_from([inner, inner[: len(inner) // 2], b"", b"garbage"]))
    # Without the checks of a header that is made in Python.
    altered = object.__new__(serialized.Header)
    for name, value in fields.items():
        object.__setattr__(altered, name, value)
    return serialized.pack(altered, blob)


def vars_of(header: serialized.Header) -> dict[str, Any]:
    """The fields of a header."""
    return {name: getattr(header, name) for name in header.__slots__}


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in nested lists and dictionaries where a value is."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    found = [(value, key) for key, _ in items]
    for _, inner in items:
        found += _places(inner)
    return found


@target(_containers)
def deserialize_header(given: bytes) -> None:
    client().deserialize(given).close()
