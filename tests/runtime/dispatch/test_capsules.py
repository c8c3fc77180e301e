"""The dispatcher with a framework that exchanges tensors as DLPack capsules.

PyTorch plays it here, through its functions for capsules. What holds of every kind of framework is
in `test_launches.py`, what has nothing to do with how tensors are read and made in
`test_dispatch.py`.
"""

from __future__ import annotations

import ctypes
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.dlpack import to_dlpack

from pjrt_bridge.errors import PluginIncompatible
from pjrt_bridge.runtime import Client, Executable, Plugin
from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.ownership.deferred import drain
from pjrt_bridge.stablehlo.types import TensorType
from tests import programs
from tests.conftest import Census
from tests.plugins import require_dispatcher
from tests.runtime.dispatch.launching import FailingFunction, Launcher, capsules
from tests.runtime.ownership.pending import Pending

require_dispatcher()

ONES = torch.ones(64)


def aligned(count: int) -> Any:
    """Ones at an address that suits every plugin, which NumPy's own need not."""
    return torch.ones(count).numpy()


def launcher(executable: Executable, *kept: Any, **changes: Callable[[Any], Any]) -> Launcher:
    return Launcher(executable, kept, capsules(**changes))


@pytest.fixture
def executable(client: Client) -> Iterator[Executable]:
    with client.compile(programs.ADD) as found:
        yield found


@pytest.fixture
def add(executable: Executable) -> Launcher:
    return launcher(executable)


# -- values ----------------------------------------------------------------------------------------


def test_a_call_gives_the_tensors(no_leaks: Census, add: Launcher) -> None:
    (result,) = add.call(ONES, torch.arange(65.0)[1:])
    assert add.plan.crossed == (256, 256)
    assert result.tolist() == [value + 2.0 for value in range(64)]
    assert add.call(ONES, ONES.int()) is None
    with pytest.raises(IndexError):
        add.call(ONES)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.int8,
        torch.uint16,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.complex64,
        torch.complex128,
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (0, 3), (1, 1, 1), (2, 5)], ids=str)
def test_types_and_shapes(
    no_leaks: Census, client: Client, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    names = {
        torch.bool: "i1",
        torch.uint16: "ui16",
        torch.bfloat16: "bf16",
        torch.complex64: "complex<f32>",
        torch.complex128: "complex<f64>",
    }
    name = names.get(dtype) or ("f" if dtype.is_floating_point else "i") + str(dtype.itemsize * 8)
    text = "".join(f"{size}x" for size in shape) + name
    value = torch.arange(10)[: torch.Size(shape).numel()].reshape(shape).to(dtype)
    with client.compile(programs.elementwise(f"tensor<{text}>")) as executable:
        (result,) = launcher(executable)(value, value)
    assert result.dtype == dtype
    assert result.shape == shape
    # PyTorch itself does not add all of these types.
    wide = torch.complex128 if dtype.is_complex else torch.float64
    doubled = value.to(wide) if dtype == torch.bool else value.to(wide) * 2
    assert result.tolist() == doubled.to(dtype).tolist()


@pytest.mark.parametrize("name", ["f8E5M2", "i4", "f4E2M1FN"])
def test_types_that_capsules_do_not_know_take_the_general_path(client: Client, name: str) -> None:
    with client.compile(programs.elementwise(f"tensor<4x{name}>")) as executable:
        assert launcher(executable).plan is None


def _used(tensor: torch.Tensor) -> Any:
    capsule = to_dlpack(tensor)
    torch.from_dlpack(capsule)
    return capsule


@pytest.mark.parametrize(
    "export",
    [
        lambda tensor: None,
        lambda tensor: tensor,
        lambda tensor: tensor.__dlpack__(max_version=(1, 0)),
        _used,
        lambda tensor: tensor.no_such_attribute,
    ],
    ids=["nothing", "no capsule", "of another name", "used", "raises"],
)
def test_exports_that_give_something_else(
    no_leaks: Census, executable: Executable, export: Callable[[Any], Any]
) -> None:
    add = launcher(executable, export=export)
    assert add.start(ONES, ONES) == 0
    assert add.call(ONES, ONES) is None


def test_an_interrupted_export_ends_the_call(no_leaks: Census, executable: Executable) -> None:
    def interrupted(tensor: torch.Tensor) -> Any:
        raise KeyboardInterrupt

    add = launcher(executable, export=interrupted)
    with pytest.raises(KeyboardInterrupt):
        add.start(ONES, ONES)
    with pytest.raises(KeyboardInterrupt):
        add.call(ONES, ONES)


class _Strideless:
    """Changes what a capsule says of its strides to nothing, which stands for row-major."""

    _STRIDES = 32
    """Offset of the pointer in DLManagedTensor."""

    def __init__(self) -> None:
        self._address = ctypes.pythonapi.PyCapsule_GetPointer
        self._address.restype = ctypes.c_void_p
        self._address.argtypes = [ctypes.py_object, ctypes.c_char_p]

    def __call__(self, tensor: torch.Tensor) -> Any:
        capsule = to_dlpack(tensor)
        address = self._address(capsule, b"dltensor")
        ctypes.c_void_p.from_address(address + self._STRIDES).value = None
        return capsule


def test_without_strides_a_tensor_is_row_major(no_leaks: Census, client: Client) -> None:
    type = "tensor<3x4xf32>"
    with client.compile(programs.elementwise(type)) as executable:
        matrix = torch.arange(12.0).reshape(3, 4)
        (result,) = launcher(executable, export=_Strideless())(matrix, matrix)
        assert torch.equal(result, matrix * 2)
        form = executable.outputs[0]
        columns = ValueSpec.ordered(TensorType((4, 3), form.dtype), (1, 0))
        rows = ValueSpec.row_major(form)
        given = [plans.BoundParameter(index, columns) for index in range(2)]
        plan = executable.plan(given, [rows], capsules(export=_Strideless()))
        kept = plans.PinnedBuffers([None, None], [0, 0])
        transposed = torch.ones(4, 3)
        assert plan.launch([transposed, transposed], kept.parts, None) == 0


# -- results ---------------------------------------------------------------------------------------


def test_results_are_arguments_as_they_are(
    no_leaks: Census, client: Client, executable: Executable, add: Launcher
) -> None:
    """Also of an execution that has not ended, and between frameworks."""
    value = Pending(client, np.full(64, 5, np.float32))
    exchanging = Launcher(executable)
    one = launcher(executable, value.buffer).start(ONES)
    two = exchanging.start(one.outputs[0], ONES)
    assert (two.shared, two.copied) == (256, 0)
    three = add.start(two.outputs[0], two.outputs[0])
    del one, two
    value.arrive()
    three.finish()
    assert three.tensors()[0].tolist() == [14.0] * 64
    (four,) = add.call(three.outputs[0], ONES)
    assert four.tolist() == [15.0] * 64


def test_a_result_keeps_its_client_and_nothing_else(no_leaks: Census, plugin: Plugin) -> None:
    client = Client(plugin, {"cpu_device_count": 1})
    (result,) = launcher(client.compile(programs.ADD))(ONES, ONES)
    client.close()
    assert no_leaks.more == {"Client": 1, "Buffer": 1}
    assert result.tolist() == [2.0] * 64
    del result
    assert not no_leaks.more


def test_capsules_that_are_not_adopted(no_leaks: Census, executable: Executable) -> None:
    kept: list[Any] = []

    def refuse(capsule: Any) -> Any:
        kept.append(capsule)
        raise ValueError("not this one")

    add = launcher(executable, adopt=refuse)
    before = no_leaks.more
    for _ in range(3):
        with pytest.raises(ValueError, match="not this one"):
            add(ONES, ONES)
        with pytest.raises(ValueError, match="not this one"):
            add.call(ONES, ONES)
    gc.collect()
    assert no_leaks.more - before == {"Buffer": 6}
    # They are as good as when they were made.
    assert torch.from_dlpack(kept.pop()).tolist() == [2.0] * 64
    kept.clear()
    gc.collect()
    assert no_leaks.more == before


# -- memory ----------------------------------------------------------------------------------------


class Variable:
    """A value that is read as a fresh view in each call, which nobody else holds."""

    def __init__(self) -> None:
        self.memory = aligned(64)
        self.views: list[weakref.ref[Any]] = []

    def read(self) -> Any:
        view = self.memory.view()
        self.views.append(weakref.ref(view))
        return view


NUMPY = capsules(np.ndarray.__dlpack__, tensor=np.ndarray)


def test_a_value_that_moved_is_stale(no_leaks: Census, client: Client, add: Launcher) -> None:
    plan, variable = Launcher(add.executable, (), NUMPY).plan, Variable()
    buffer = client.put(variable.memory)
    kept = plans.PinnedBuffers([None, buffer], [0, variable.memory.ctypes.data])
    ones = aligned(64)
    for step in range(3):
        variable.memory[:] = step
        launch = plan.launch([ones, variable.read()], kept.parts, None)
        assert launch.shared == 256
        launch.finish()
        assert launch.tensors()[0].tolist() == [1.0 + step] * 64
        (result,) = plan.call((ones, variable.read()), kept.parts)
        assert result.tolist() == [1.0 + step] * 64
    read_only = variable.read()
    read_only.flags.writeable = False
    for value in (aligned(64), None, variable.memory.reshape(8, 8), read_only):
        assert plan.launch([ones, value], kept.parts, None) is None
        assert plan.call((ones, value), kept.parts) is None


@pytest.mark.parametrize("kept", [False, True], ids=["given", "kept"])
def test_memory_is_lent_until_the_launch_has_ended(
    no_leaks: Census, client: Client, add: Launcher, kept: bool
) -> None:
    variable, value = Variable(), Pending(client, np.full(64, 5, np.float32))
    form = ValueSpec.row_major(add.executable.outputs[0])
    plan = add.executable.plan(
        [plans.BoundParameter(0, form), plans.BoundParameter(None, form)],
        [form],
        NUMPY,
    )
    view = client.put(variable.memory) if kept else None
    stays = plans.PinnedBuffers([view, value.buffer], [variable.memory.ctypes.data, 0])
    launch = plan.launch([variable.read()], stays.parts, None)
    gc.collect()
    assert variable.views[0]() is not None
    value.arrive()
    launch.finish()
    # The plugin says a moment later that it has done with the memory.
    for _ in range(500):
        drain(patient=True)
        if variable.views[0]() is None:
            break
        time.sleep(0.01)
    assert variable.views[0]() is None
    assert launch.tensors()[0].tolist() == [6.0] * 64


# -- faults ----------------------------------------------------------------------------------------


def test_results_that_are_not_aligned_are_not_adopted(
    monkeypatch: pytest.MonkeyPatch, executable: Executable
) -> None:
    def shifted(args: Any) -> None:
        args.device_memory_ptr += 4

    census = Census()
    function, entry = "Buffer_OpaqueDeviceMemoryDataPointer", plans._entry
    fault = FailingFunction(executable.client.api, function, shifted, late=True)
    with monkeypatch.context() as patch:
        patch.setattr(
            plans,
            "_entry",
            lambda api, name: fault.entry if name == function else entry(api, name),
        )
        add = launcher(executable)
    fault.active = True
    for run in (add, add.call):
        with pytest.raises(PluginIncompatible, match=f"{function} made memory that is not aligned"):
            run(ONES, ONES)
    fault.active = False
    assert add(ONES, ONES)[0].tolist() == [2.0] * 64
    del add, run
    census.check()
