"""Layouts and bounded dimensions: what lies on the device in an unusual way reads right."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge.errors import DataError, ProgramError, SignatureMismatch
from pjrt_bridge.runtime import Buffer, Client, CompileOptions, Executable, Layout
from pjrt_bridge.runtime.buffers.relayout import LayoutHandling
from pjrt_bridge.stablehlo.program.program import Program
from tests import programs
from tests.conftest import Census
from tests.runtime.arrays import aligned

BASE = np.arange(6, dtype=np.float32).reshape(2, 3)
TYPE = "tensor<2x3xf32>"
COLUMNS = '{mhlo.layout_mode = "{0,1}"}'
ROWS = '{mhlo.layout_mode = "{1,0}"}'
READERS = {
    "to_numpy": lambda buffer: buffer.to_numpy(),
    "view": np.asarray,
    "torch": lambda buffer: torch.from_dlpack(buffer).numpy(),
    "other device": lambda buffer: buffer.copy_to(buffer.client.devices[1]).to_numpy(),
    "same device": lambda buffer: buffer.copy_to(buffer.device).to_numpy(),
    "other memory": lambda buffer: buffer.copy_to(buffer.client.memories[1]).to_numpy(),
}


def by_columns(client: Client) -> Buffer:
    executable = client.compile(programs.identity(TYPE, result=COLUMNS))
    (result,) = executable(BASE)
    return result


@pytest.mark.parametrize("reader", READERS)
def test_column_major_results(no_leaks: Census, pair: Client, reader: str) -> None:
    buffer = by_columns(pair)
    assert buffer.layout == Layout((0, 1))
    assert buffer.custom_layout == (0, 1)
    np.testing.assert_array_equal(READERS[reader](buffer), BASE)


def test_the_memory_is_column_major(client: Client) -> None:
    view = np.asarray(by_columns(client))
    assert view.strides == (4, 8)
    assert view.ravel(order="K").tolist() == [0, 3, 1, 4, 2, 5]


def test_a_copy_has_the_default_layout(client: Client) -> None:
    copy = by_columns(client).copy_to(client.devices[0])
    assert copy.custom_layout is None
    assert copy.layout == Layout((1, 0))
    (result,) = client.compile(programs.elementwise(TYPE)).execute([copy, copy])
    np.testing.assert_array_equal(result.to_numpy(), BASE + BASE)


@pytest.mark.parametrize("wanted", ["", ROWS])
def test_a_column_major_argument_of_a_row_major_program(client: Client, wanted: str) -> None:
    executable = client.compile(programs.identity(TYPE, attributes=wanted))
    match = r"argument 0 .*found Layout\(\{0,1\}\), expected the plugin's default layout"
    with pytest.raises(SignatureMismatch, match=match):
        executable.execute([by_columns(client)])


def test_a_row_major_argument_of_a_column_major_program(client: Client) -> None:
    executable = client.compile(programs.identity(TYPE, attributes=COLUMNS))
    with pytest.raises(SignatureMismatch, match=r"found Layout\(\{1,0\}\), expected Layout\(\{0,1"):
        executable(client.put(BASE))
    (result,) = executable.execute([by_columns(client)])
    np.testing.assert_array_equal(result.to_numpy(), BASE)


def test_row_major_by_name_is_the_default(client: Client) -> None:
    executable = client.compile(programs.identity(TYPE, attributes=ROWS, result=ROWS))
    (result,) = executable(BASE)
    assert result.custom_layout is None
    (again,) = executable.execute([result])
    np.testing.assert_array_equal(again.to_numpy(), BASE)


def test_a_layout_that_the_compiler_chose(client: Client) -> None:
    """With "auto" a transposition costs nothing, and its result is column-major."""
    program = """
    module { func.func @main(%a: tensor<2x3xf32>)
        -> (tensor<3x2xf32> {mhlo.layout_mode = "auto"}) {
      %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
      return %0 : tensor<3x2xf32> } }
    """
    executable = client.compile(program)
    for _ in range(2):
        (result,) = executable(BASE)
        assert result.custom_layout == (0, 1)
        np.testing.assert_array_equal(result.to_numpy(), BASE.T)
    with pytest.raises(SignatureMismatch, match=r"found Layout\(\{0,1\}\)"):
        client.compile(programs.identity("tensor<3x2xf32>")).execute([result])


def test_layouts_survive_serialization(client: Client) -> None:
    program = programs.identity(TYPE, attributes=COLUMNS, result=COLUMNS)
    executable = client.deserialize(client.compile(program).serialize())
    with pytest.raises(SignatureMismatch, match="expected Layout"):
        executable(client.put(BASE))
    for argument in (by_columns(client), BASE):
        (result,) = executable(argument)
        np.testing.assert_array_equal(result.to_numpy(), BASE)
        assert result.custom_layout == (0, 1)


# -- chosen layouts --------------------------------------------------------------------------------

ELEMENTS = {"float32": "f32", "bfloat16": "bf16", "complex64": "complex<f32>", "int8": "i8"}


@st.composite
def arrays_and_orders(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], str, tuple[int, ...]]:
    """An array with some order of its own in memory, its type, and another order."""
    name = draw(st.sampled_from(sorted(ELEMENTS)))
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    rank = len(shape)
    order = tuple(draw(st.permutations(range(rank))))
    lies = draw(st.permutations(range(rank)))
    count = int(np.prod(shape))
    flat = np.arange(count).reshape([shape[dim] for dim in lies]).astype(dtypes.of(name).numpy)
    array = flat.transpose(np.argsort(lies))
    if draw(st.booleans()):
        array = array[::-1]
    sizes = "x".join(map(str, shape))
    return array, f"tensor<{sizes}x{ELEMENTS[name]}>", order


@settings(max_examples=60)
@given(case=arrays_and_orders())
def test_any_array_in_any_order(
    client: Client, case: tuple[np.ndarray[Any, Any], str, tuple[int, ...]]
) -> None:
    """Put, read, compute with arguments and results in a layout: the values stay the same."""
    array, type, order = case
    buffer = client.put(array, layout=order)
    assert buffer.layout.minor_to_major == order
    np.testing.assert_array_equal(buffer.to_numpy(), array)
    np.testing.assert_array_equal(np.asarray(buffer), array)
    plain = Program.parse(programs.identity(type))
    for program in (
        plain.with_layouts({0: order}),
        plain.with_layouts(results={0: order}),
        plain.with_layouts({0: order}, {0: order}),
        plain.with_layouts({0: order}, {0: "auto"}),
    ):
        (result,) = client.compile(program)(array)
        np.testing.assert_array_equal(result.to_numpy(), array)


def test_memory_in_the_wanted_order_is_shared(client: Client) -> None:
    memory = aligned(BASE.T)
    for copy in (None, False):
        buffer = client.put(memory.T, layout=(0, 1), copy=copy)
        assert buffer.address == memory.ctypes.data
        np.testing.assert_array_equal(buffer.to_numpy(), BASE)
    assert client.put(memory.T, layout=(0, 1), copy=True).address != memory.ctypes.data
    with pytest.raises(DataError, match=r"cannot be shared .* \{0,1\} order"):
        client.put(memory, layout=(0, 1), copy=False)


def test_packed_elements_in_columns(client: Client) -> None:
    data = np.array([[1, -2, 3], [-4, 5, -6]]).astype(dtypes.of("int4").numpy)
    buffer = client.put(data, layout=(0, 1))
    np.testing.assert_array_equal(buffer.to_numpy(), data)
    program = Program.parse(programs.identity("tensor<2x3xi4>"))
    # XLA's compiler would abort the process.
    for demand in (program.with_layouts({0: (0, 1)}), program.with_layouts(results={0: (0, 1)})):
        with pytest.raises(ProgramError, match=r"i4\[2,3\]: .*\{0,1\} of packed elements"):
            client.compile(demand)
    (result,) = client.compile(program.with_layouts({0: (1, 0)}, {0: "auto"}))(data)
    np.testing.assert_array_equal(result.to_numpy(), data)


def test_buffers_change_their_layout(pair: Client) -> None:
    rows = pair.put(BASE)
    columns = pair.put(rows, layout=Layout((0, 1)))
    assert columns.custom_layout == (0, 1)
    assert pair.put(columns, layout=(0, 1)) is columns
    assert pair.put(rows, layout=(1, 0)) is rows
    there = pair.put(columns, pair.devices[1], layout=(0, 1))
    assert (there.device, there.custom_layout) == (pair.devices[1], (0, 1))
    for buffer in (columns, there, pair.put(there, layout=(1, 0)), pair.put(columns, copy=True)):
        np.testing.assert_array_equal(buffer.to_numpy(), BASE)
    with pytest.raises(DataError, match=r"not in the layout \(0, 1\)"):
        pair.put(rows, layout=(0, 1), copy=False)


@pytest.mark.parametrize("layout", [(0,), (0, 0), (0, 2), Layout((0, 1), ((8, 128),))])
def test_orders_that_are_none(client: Client, layout: Any) -> None:
    with pytest.raises(DataError, match="layout: found"):
        client.put(BASE, layout=layout)


def test_how_the_plugin_places_elements(client: Client) -> None:
    assert client.layout_handling is LayoutHandling.LABELS
    assert client.reads_in_memory_order


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("{}", Layout(())),
        ("{1,0}", Layout((1, 0))),
        ("{0, 1:T(8,128)(2,1)}", Layout((0, 1), ((8, 128), (2, 1)))),
        ("{1,0:T(8,128)E(4)S(1)}", Layout((1, 0), ((8, 128),), "E(4)S(1)")),
        ("{0:T(*,2)}", Layout((0,), ((-(2**63), 2),))),
    ],
)
def test_layouts_as_text(text: str, layout: Layout) -> None:
    assert Layout.parse(text) == layout
    assert Layout.parse(str(layout)) == layout


@pytest.mark.parametrize("text", ["", "1,0", "{a}", "{1,0:T(8}", "{1,0}x", "{1;0}"])
def test_texts_that_are_no_layouts(text: str) -> None:
    with pytest.raises(DataError, match="expected a layout such as"):
        Layout.parse(text)


# -- bounded dimensions ----------------------------------------------------------------------------

BOUNDED = {
    "rows": ((8, 2), 0, "tensor<8x2xi64>", "tensor<?x2xi64, #stablehlo.bounds<8, ?>>"),
    "columns": ((2, 8), 1, "tensor<2x8xi64>", "tensor<2x?xi64, #stablehlo.bounds<?, 8>>"),
    "middle": ((2, 4, 3), 1, "tensor<2x4x3xi64>", "tensor<2x?x3xi64, #stablehlo.bounds<?, 4, ?>>"),
}


def cut(client: Client, case: str, size: int) -> tuple[Buffer, np.ndarray[Any, Any]]:
    shape, dimension, source, result = BOUNDED[case]
    data = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    executable = client.compile(programs.bounded(source, result, dimension))
    (buffer,) = executable(data, np.int32(size))
    return buffer, data.take(range(size), axis=dimension)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("case", BOUNDED)
def test_bounded_results(pair: Client, case: str, size: int, reader: str) -> None:
    buffer, expected = cut(pair, case, size)
    assert buffer.dynamic
    assert buffer.shape == BOUNDED[case][0]
    assert buffer.true_shape() == expected.shape
    found = READERS[reader](buffer)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def test_a_bounded_buffer_is_no_static_argument(client: Client) -> None:
    for size in (3, 8):
        buffer, expected = cut(client, "rows", size)
        executable = client.compile(programs.identity("tensor<8x2xi64>"))
        with pytest.raises(SignatureMismatch, match=rf"the true shape \({size}, 2\).*static"):
            executable.execute([buffer])
    (result,) = executable.execute([buffer.copy_to(client.devices[0])])
    np.testing.assert_array_equal(result.to_numpy(), expected)


def test_bounds_survive_serialization(client: Client) -> None:
    _, dimension, source, result = BOUNDED["columns"]
    executable = client.compile(programs.bounded(source, result, dimension))
    again: Executable = client.deserialize(executable.serialize())
    (buffer,) = again(np.arange(16).reshape(2, 8), np.int32(3))
    assert np.asarray(buffer).tolist() == [[0, 1, 2], [8, 9, 10]]


# -- several devices -------------------------------------------------------------------------------


def test_replicas(no_leaks: Census, pair: Client) -> None:
    executable = pair.compile(programs.ALL_REDUCE, options=CompileOptions(num_replicas=2))
    assert executable.devices == pair.devices
    rows = [[pair.put(np.full(4, i + 1.0, np.float32), d)] for i, d in enumerate(pair.devices)]
    for _ in range(3):
        results = executable.execute_sharded(rows)
        assert [result.device for (result,) in results] == list(pair.devices)
        for (result,) in results:
            assert result.to_numpy().tolist() == [3, 3, 3, 3]


SHARDED = {
    "gspmd": programs.elementwise(
        "tensor<8xf32>",
        attributes='{mhlo.sharding = "{devices=[2]0,1}"}',
        result='{mhlo.sharding = "{devices=[2]0,1}"}',
    ),
    "shardy": programs.elementwise(
        "tensor<8xf32>",
        attributes='{sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}',
        result='{sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}',
    )
    .replace("%b: tensor<8xf32>", "%b: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}")
    .replace("func.func", 'sdy.mesh @mesh = <["x"=2]>\n      func.func'),
}


@pytest.mark.parametrize("kind", SHARDED)
def test_partitions(pair: Client, kind: str) -> None:
    """The first argument and the result are split, the second argument is whole on each."""
    options = CompileOptions(num_partitions=2)
    compiled = pair.compile(SHARDED[kind], options=options)
    whole = np.arange(8, dtype=np.float32)
    for executable in (compiled, pair.deserialize(compiled.serialize())):
        assert [str(type) for type in executable.outputs] == ["f32[4]"]
        rows = [
            [pair.put(part, device), pair.put(whole, device)]
            for part, device in zip(np.split(whole, 2), pair.devices, strict=True)
        ]
        results = executable.execute_sharded(rows)
        found = np.concatenate([result.to_numpy() for (result,) in results])
        np.testing.assert_array_equal(found, whole + whole)
        with pytest.raises(SignatureMismatch, match=r"found f32\[8\], expected f32\[4\]"):
            executable.execute_sharded([[row[1], row[1]] for row in rows])


def test_arguments_for_several_devices(pair: Client) -> None:
    executable = pair.compile(programs.ALL_REDUCE, options=CompileOptions(num_replicas=2))
    here, there = ([pair.put(np.ones(4, np.float32), device)] for device in pair.devices)
    for rows, message in [
        ([here], "arguments for 1 devices, expected 2"),
        ([here, there, there], "arguments for 3 devices, expected 2"),
        ([there, here], "found a buffer on <Device 1"),
        ([here, []], "found 0 arguments, expected 1"),
        ([[], []], "found 0 arguments, expected 1"),
    ]:
        with pytest.raises(SignatureMismatch, match=message):
            executable.execute_sharded(rows)
    for call in (lambda: executable.execute(here), lambda: executable(here[0])):
        with pytest.raises(SignatureMismatch, match="runs on 2 devices; use execute_sharded"):
            call()


def test_one_device_is_one_shard(client: Client) -> None:
    one = client.put(np.ones(64, np.float32))
    ((result,),) = client.compile(programs.ADD).execute_sharded([[one, one]])
    assert (result.to_numpy() == 2).all()


def test_several_devices_and_no_results(no_leaks: Census, pair: Client) -> None:
    sink = pair.compile(programs.SINK, options=CompileOptions(num_replicas=2))
    rows = [[pair.put(np.ones(64, np.float32), device)] for device in pair.devices]
    assert sink.execute_sharded(rows) == ((), ())
