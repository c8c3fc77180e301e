"""What the plugin says of layouts: of types, buffers and programs."""

import numpy as np
import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.errors import BufferUnavailable, Closed, DataError, ExtensionUnavailable
from pjrt_bridge.extensions import Layouts
from pjrt_bridge.runtime import Client, Layout, Plugin
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType
from tests import programs
from tests.conftest import Census

BASE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
IDENTITY = Program.parse(programs.identity("tensor<2x3x4xf32>"))
ORDERS = [(2, 1, 0), (0, 1, 2), (1, 2, 0)]


@pytest.fixture(scope="module")
def layouts(client: Client) -> Layouts:
    return client.extension(Layouts)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0, 3, 4)])
@pytest.mark.parametrize("dtype", ["bool", "int4", "bfloat16", "complex128"])
def test_default_layouts(layouts: Layouts, shape: tuple[int, ...], dtype: str) -> None:
    type = TensorType(shape, dtypes.of(dtype))
    assert layouts.default(type) == Layout.default(len(shape))
    assert layouts.topology_default(type) == Layout.default(len(shape))


@pytest.mark.parametrize("order", ORDERS)
def test_layouts_of_buffers(layouts: Layouts, client: Client, order: tuple[int, ...]) -> None:
    assert layouts.of(client.put(BASE, layout=order)) == Layout(order)


@pytest.mark.parametrize("order", ORDERS)
def test_layouts_of_results(layouts: Layouts, client: Client, order: tuple[int, ...]) -> None:
    executable = client.compile(IDENTITY.with_layouts(results={0: order}))
    # Asked for twice: the executable still owns them.
    assert layouts.outputs(executable) == layouts.outputs(executable) == (Layout(order),)
    (result,) = executable(BASE)
    assert layouts.of(result) == Layout(order)


def test_programs_of_this_age_tell_no_parameter_layouts(layouts: Layouts, client: Client) -> None:
    assert layouts.offers("Executable_GetOutputLayouts")
    assert not layouts.offers("Executable_GetParameterLayouts")
    with pytest.raises(ExtensionUnavailable, match="found 72 bytes, needs 80") as caught:
        layouts.parameters(client.compile(IDENTITY))
    assert (caught.value.found, caught.value.needed) == (72, 80)


def test_nothing_is_left_behind(no_leaks: Census, layouts: Layouts, client: Client) -> None:
    buffer = client.put(BASE)
    executable = client.compile(IDENTITY)
    for _ in range(3):
        layouts.of(buffer)
        layouts.outputs(executable)


def test_what_is_gone(layouts: Layouts, client: Client) -> None:
    buffer = client.put(BASE)
    buffer.delete()
    with pytest.raises(BufferUnavailable):
        layouts.of(buffer)
    executable = client.compile(IDENTITY)
    executable.close()
    with pytest.raises(Closed):
        layouts.outputs(executable)


def test_what_is_of_another_client(layouts: Layouts, pair: Client) -> None:
    with pytest.raises(DataError, match="belongs to another client"):
        layouts.of(pair.put(BASE))
    with pytest.raises(DataError, match="belongs to another client"):
        layouts.outputs(pair.compile(IDENTITY))


def test_a_closed_client(plugin: Plugin) -> None:
    client = plugin.client({"cpu_device_count": 3})
    layouts = client.extension(Layouts)
    client.close()
    with pytest.raises(Closed):
        layouts.default(TensorType((2,), dtypes.of("float32")))
