"""The dispatcher: the same results, errors and lifetimes as the general path, in C.

What holds also where tensors are read and made in another way is in `test_launches.py`.
"""

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from pjrt_bridge.abi.functions import FUNCTIONS
from pjrt_bridge.errors import Closed
from pjrt_bridge.runtime import Client, Executable, Plugin, native
from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.ownership import pending
from pjrt_bridge.runtime.ownership.exit import live
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER
from tests import programs
from tests.conftest import Census
from tests.counting import settled
from tests.forked import TORCH
from tests.plugins import require_dispatcher, run_python
from tests.runtime.dispatch.launching import Launcher
from tests.runtime.ownership.pending import Pending

require_dispatcher()

ONES = torch.ones(64)


@pytest.fixture
def add(client: Client) -> Iterator[Launcher]:
    with client.compile(programs.ADD) as executable:
        yield Launcher(executable)


def test_the_structs_are_those_of_the_tables() -> None:
    assert native.module is not None
    assert set(native.module.LAYOUTS) == set(native.module.FUNCTIONS)
    for name, fields in native.module.LAYOUTS.items():
        struct = FUNCTIONS[name]
        assert struct is not None
        declared = {
            field.name: (struct.offset(field.name), getattr(struct.ctype, field.name).size)
            for field in struct.fields
        }
        base = {"struct_size": (0, 8), "extension_start": (8, 8)}
        assert base | fields == declared


# -- launching -------------------------------------------------------------------------------------


def test_a_result_of_inference_mode_is_one(add: Launcher) -> None:
    with torch.inference_mode():
        (result,) = add(ONES, ONES)
    assert result.is_inference()


@pytest.mark.parametrize(
    "value",
    [torch._neg_view(torch.ones(64)), torch.ones(64).to_sparse()],
    ids=["negated", "sparse"],
)
def test_tensors_that_do_not_fit_as_they_are(no_leaks: Census, add: Launcher, value: Any) -> None:
    assert add.start(value, ONES) == 0
    assert add.start(ONES, value) == 1
    assert add(ONES, ONES)[0].tolist() == [2.0] * 64


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers(no_leaks: Census, client: Client, dtype: torch.dtype) -> None:
    """As they lie in memory, unless they are conjugated or negated when they are read."""
    part = {torch.complex64: "f32", torch.complex128: "f64"}[dtype]
    x = torch.randn(4, dtype=dtype)
    with client.compile(programs.elementwise(f"tensor<4xcomplex<{part}>>")) as executable:
        add = Launcher(executable)
        for lazy in (x.conj(), torch._neg_view(x)):
            assert add.start(lazy, x) == 0
            assert add.start(x, lazy) == 1
        (result,) = add(x, x)
        assert torch.equal(result, x + x)


def test_too_few_values(no_leaks: Census, add: Launcher) -> None:
    with pytest.raises(IndexError):
        add.start(ONES)
    for wrong in [(), (1, 2, 3), ([ONES], (None, b"", b""), None), ([ONES, ONES], (), None)]:
        with pytest.raises(TypeError):
            add.plan.launch(*wrong)


def test_results_are_arguments_as_they_are(no_leaks: Census, client: Client, add: Launcher) -> None:
    """Also of an execution that has not ended."""
    value = Pending(client, np.full(64, 5, np.float32))
    with client.compile(programs.ADD) as executable:
        first = Launcher(executable, [value.buffer])
        one = first.start(ONES)
        two = add.start(one.outputs[0], ONES)
        assert (two.shared, two.copied) == (256, 0)
        three = add.start(two.outputs[0], two.outputs[0])
        del one, two
        value.arrive()
        three.finish()
        assert three.tensors()[0].tolist() == [14.0] * 64


def test_results_of_another_client_or_form_do_not_fit(
    no_leaks: Census, plugin: Plugin, client: Client, add: Launcher
) -> None:
    with Client(plugin, {"cpu_device_count": 1}) as other:
        foreign = Launcher(other.compile(programs.ADD)).start(ONES, ONES)
        foreign.finish()
        assert add.start(foreign.outputs[0], ONES) == 0
    square = client.compile(programs.elementwise("tensor<8x8xf32>"))
    launch = Launcher(square).start(torch.ones(8, 8), torch.ones(8, 8))
    assert add.start(ONES, launch.outputs[0]) == 1
    launch.finish()


@pytest.mark.parametrize("shape", [(), (0, 3), (1, 1, 1)])
def test_numbers_and_nothing(no_leaks: Census, client: Client, shape: tuple[int, ...]) -> None:
    text = "".join(f"{size}x" for size in shape)
    with client.compile(programs.elementwise(f"tensor<{text}f32>")) as executable:
        (result,) = Launcher(executable)(torch.ones(shape), torch.ones(shape))
    assert torch.equal(result, torch.full(shape, 2.0))


def test_a_program_without_results(no_leaks: Census, client: Client) -> None:
    with client.compile(programs.SINK) as sink:
        assert Launcher(sink)(ONES) == []


def test_starting_waits_for_nothing(no_leaks: Census, client: Client) -> None:
    value = Pending(client, np.full(64, 5, np.float32))
    with client.compile(programs.ADD) as executable:
        launch = Launcher(executable, [value.buffer]).start(ONES)
        ended: list[float] = []
        thread = threading.Thread(target=lambda: ended.append(launch.finish()))
        thread.start()
        # This thread goes on while the other one waits.
        time.sleep(0.05)
        assert not ended
        value.arrive()
        thread.join(20)
        assert launch.tensors()[0].tolist() == [6.0] * 64


def test_memory_is_lent_until_the_program_has_read_it(no_leaks: Census, client: Client) -> None:
    value = Pending(client, np.full(64, 5, np.float32))
    with client.compile(programs.ADD) as executable:
        argument = torch.full((64,), 4.0)
        launch = Launcher(executable, [value.buffer]).start(argument)
        # The tensor gets other memory, and this is all that knew the old one.
        argument.set_(torch.zeros(64))  # type: ignore[call-overload]
        gc.collect()
        scratch = [torch.full((64,), -1.0) for _ in range(50)]
        value.arrive()
        launch.finish()
        assert launch.tensors()[0].tolist() == [9.0] * 64
        assert len(scratch) == 50


def test_memory_that_the_result_takes_over_is_lent_as_long(
    no_leaks: Census, client: Client
) -> None:
    """Also where a call has ended, whose tensors may get other memory then."""
    with client.compile(programs.ALIASED_ADD) as executable:
        form = ValueSpec.row_major(executable.outputs[0])
        plan = executable.plan(
            [plans.BoundParameter(0, form, written=True), plans.BoundParameter(1, form)],
            [form],
            ADAPTER.exchange(),  # type: ignore[arg-type]
        )
        kept = plans.PinnedBuffers([None, None], [0, 0])
        for call in (True, False):
            argument = torch.full((64,), 4.0)
            address = argument.data_ptr()
            if call:
                (result,) = plan.call((argument, ONES), kept.parts)
            else:
                launch = plan.launch([argument, ONES], kept.parts, None)
                launch.finish()
                (result,) = launch.tensors()
                del launch
            assert result.data_ptr() == address
            argument.set_(torch.zeros(64))  # type: ignore[call-overload]
            gc.collect()
            scratch = [torch.full((64,), -1.0) for _ in range(50)]
            assert result.tolist() == [5.0] * 64
            assert len(scratch) == 50
            del result


def test_tensors_of_one_result_share_it(no_leaks: Census, add: Launcher) -> None:
    launch = add.start(ONES, ONES)
    launch.finish()
    assert launch.outputs == launch.outputs
    (output,) = launch.outputs
    del launch
    for _ in range(3):
        one, two = output.tensor(), output.tensor()
        assert one.data_ptr() == two.data_ptr()
        del one
        gc.collect()
        two.add_(1)
        three = output.tensor()
        del two
        assert three.tolist() == output.tensor().tolist()
    del output
    assert three.tolist() == [5.0] * 64


# -- what is kept ----------------------------------------------------------------------------------


def test_a_value_that_moved_is_stale(no_leaks: Census, client: Client, add: Launcher) -> None:
    weight = torch.ones(64)
    kept = plans.PinnedBuffers([None, client.put(weight)], [0, weight.data_ptr()])
    launch = add.plan.launch([ONES, weight], kept.parts, None)
    assert launch.shared == 256
    launch.finish()
    weight.data = torch.zeros(64)
    assert add.plan.launch([ONES, weight], kept.parts, None) is None
    assert add.plan.launch([ONES, None], kept.parts, None) is None


def test_a_call_may_come_with_what_was_replaced(
    no_leaks: Census, client: Client, add: Launcher
) -> None:
    """Another thread found a parameter elsewhere, while this one was about to call."""
    weight = torch.ones(64)
    parts = plans.PinnedBuffers([None, client.put(weight)], [0, weight.data_ptr()]).parts
    settled()
    assert add.plan.call((ONES, weight), parts)[0].tolist() == [2.0] * 64
    weight.data = torch.zeros(64)
    assert add.plan.call((ONES, weight), parts) is None
    del parts
    assert not no_leaks.more.get("Buffer")


def test_what_is_kept_ends_with_its_client(no_leaks: Census, plugin: Plugin) -> None:
    client = Client(plugin, {"cpu_device_count": 1})
    launcher = Launcher(client.compile(programs.ADD), [client.put(ONES)])
    (result,) = launcher(ONES)
    client.close()
    with pytest.raises(Closed):
        launcher.start(ONES)
    # The result is all that keeps the client.
    assert no_leaks.more == {"Client": 1, "Buffer": 1}
    assert result.tolist() == [2.0] * 64
    del result
    assert not no_leaks.more


# -- ends ------------------------------------------------------------------------------------------


def test_closed_things_are_refused(no_leaks: Census, plugin: Plugin) -> None:
    client = Client(plugin, {"cpu_device_count": 1})
    executable = client.compile(programs.ADD)
    one, two = Launcher(executable), Launcher(client.compile(programs.ADD))
    started = one.start(ONES, ONES)
    executable.close()
    with pytest.raises(Closed, match="executable 'add' was closed"):
        one.start(ONES, ONES)
    assert two(ONES, ONES)[0].tolist() == [2.0] * 64
    client.close()
    with pytest.raises(Closed):
        two.start(ONES, ONES)
    # What is under way ends as it should.
    started.finish()
    assert started.tensors()[0].tolist() == [2.0] * 64


def test_launches_that_nobody_waits_for(client: Client) -> None:
    census = Census()
    value = Pending(client, np.full(64, 5, np.float32))
    with client.compile(programs.ADD) as executable:
        launcher = Launcher(executable, [value.buffer])
        for _ in range(5):
            launcher.start(ONES.clone())
        gc.collect()
        assert len(pending.queue) >= 5
        value.arrive()
        del value, launcher
    census.check()
    assert not pending.queue


def test_a_result_that_goes_while_an_exception_is_on_its_way(add: Launcher) -> None:
    def fail() -> None:
        (result,) = add(ONES, ONES)
        raise ValueError(str(result.sum().item()))

    before = settled()
    for _ in range(100):
        with pytest.raises(ValueError, match="128"):
            fail()
    gc.collect()
    assert live() == before


def test_closing_a_client_that_threads_use(no_leaks: Census, plugin: Plugin) -> None:
    def use(launcher: Launcher) -> None:
        while True:
            try:
                assert launcher(ONES)[0].tolist() == [2.0] * 64
            except Closed:
                return

    for _ in range(8):
        client = Client(plugin, {"cpu_device_count": 1})
        launcher = Launcher(client.compile(programs.ADD), [client.put(ONES)])
        threads = [threading.Thread(target=use, args=(launcher,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.03)
        client.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


# -- other ways ------------------------------------------------------------------------------------


def test_programs_that_take_the_general_path(
    client: Client, pair: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(executable: Executable) -> bool:
        return Launcher(executable).plan is not None

    add = client.compile(programs.ADD)
    assert planned(add)
    assert not planned(client.compile(programs.DONOR_ADD))
    assert not planned(client.compile(programs.ALIASED_ADD))
    with monkeypatch.context() as patch:
        patch.setattr(client, "shares_host_memory", False)
        assert not planned(add)
    with monkeypatch.context() as patch:
        # An older table ends before the function, or the slot is NULL.
        missing = "Buffer_OpaqueDeviceMemoryDataPointer"
        has = client.api.has
        patch.setattr(client.api, "has", lambda name: name != missing and has(name))
        assert not planned(add)
    with monkeypatch.context() as patch:
        patch.setattr(plans, "enabled", False)
        assert not planned(add)


def test_forms_that_the_program_does_not_have(client: Client) -> None:
    add = client.compile(programs.ADD)
    square = client.compile(programs.elementwise("tensor<8x8xf32>"))
    form = ValueSpec.row_major(square.outputs[0])
    given = [plans.BoundParameter(index, form) for index in range(2)]
    made = [form]
    found = ADAPTER.exchange()
    assert found is not None
    assert square.plan(given, made, found) is not None
    assert add.plan(given, made, found) is None
    assert square.plan(given[:1], made, found) is None
    assert square.plan(given, [], found) is None


def test_without_the_module_the_results_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
import torch
from pjrt_bridge.runtime import native
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh())
def function(x):
    return torch.neg(model(x)).sum(), x.t() * 2, x[:0]
found = torch.compile(function, backend="pjrt", options={"host_ops": ["aten.neg"]})
results = found(torch.randn(16, 16))
results[0].backward()
tensors = [*results, *(parameter.grad for parameter in model.parameters())]
print(native.module is None, [(t.stride(), t.sum().item()) for t in tensors])
"""
    quiet = "import warnings; warnings.simplefilter('ignore')\n"
    printed = []
    for way in ("c", "python"):
        monkeypatch.setenv("PJRT_BRIDGE_DISPATCH", way)
        printed.append(run_python(source, prelude=quiet, imported=[TORCH]))
    with_module, without = printed
    assert with_module.replace("False", "True", 1) == without
    assert without.startswith("True")
