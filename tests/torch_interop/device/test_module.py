"""`torch.pjrt`, `torch.accelerator`, and what else asks torch for its devices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pjrt_bridge.errors import BridgeWarning, DeviceError, OptionError, VariableError
from pjrt_bridge.torch_interop.device import buffer_of, tensor_of, use
from pjrt_bridge.torch_interop.named_device import first_use
from pjrt_bridge.torch_interop.resident.client import backward_threads, chosen

MODULE: Any = torch.pjrt  # type: ignore[attr-defined]


def test_the_module_tells_of_the_devices() -> None:
    assert MODULE.is_available()
    assert MODULE.is_initialized()
    assert MODULE.device_count() == 2
    assert MODULE.current_device() == 0
    assert MODULE.get_device_name(1)
    assert MODULE.memory_allocated() >= 0
    assert len(MODULE.mem_get_info()) == 2
    MODULE.set_device("pjrt:1")
    try:
        assert torch.ones(1, device="pjrt").device.index == 1
        assert torch.ones(1).to("pjrt").device.index == 1
        assert torch.nn.Linear(2, 2).to("pjrt").weight.device.index == 1
    finally:
        MODULE.set_device(0)
    assert torch.ones(1).to("pjrt").device.index == 0
    MODULE.synchronize()
    MODULE.empty_cache()
    with pytest.raises(DeviceError, match="has 2 devices"):
        MODULE.set_device(2)
    with pytest.raises(ValueError, match="expected one of type 'pjrt'"):
        MODULE.set_device("cpu")


@pytest.fixture
def third_of_five(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process as the third of five that a launcher started on this machine."""
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    # As if the device had been used before the first backward pass, and not by an operator: what
    # else this process ran, and in which order, is nobody's choice.
    monkeypatch.setattr(backward_threads, "_threads", 5)
    monkeypatch.setattr(first_use, "by_operators", [])
    chosen.forget_names()
    yield
    monkeypatch.undo()
    chosen.forget_names()


def test_numbers_of_processes_are_names_of_their_devices(third_of_five: None) -> None:
    """As programs under torchrun, and `init_device_mesh`, use them."""
    assert torch.accelerator.device_count() == 5
    with ThreadPoolExecutor(1) as others:
        assert others.submit(torch.ones, 1, device="pjrt").result().device.index == 2
        assert others.submit(torch.ones(1).to, "pjrt").result().device.index == 2
    x = torch.arange(3.0).to("pjrt:2")
    assert x.device == torch.device("pjrt", 2)
    assert (x * 2).tolist() == [0, 2, 4]
    assert buffer_of(x).device is chosen.client().devices[0]
    moved = x.to("pjrt:4")
    moved.add_(1)
    assert (moved.device.index, moved.tolist(), x.tolist()) == (4, [1, 2, 3], [0, 1, 2])
    with torch.accelerator.device_index(4):
        assert tensor_of(buffer_of(x)).device.index == 4
    assert tensor_of(buffer_of(x.to("pjrt:1"))).device.index == 1
    with pytest.raises(DeviceError, match=r"has 2 devices, .* which 5 processes share"):
        torch.ones(1, device="pjrt:5")


def test_more_devices_than_processes(monkeypatch: pytest.MonkeyPatch, third_of_five: None) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    chosen.forget_names()
    assert torch.accelerator.device_count() == 2
    with ThreadPoolExecutor(1) as others:
        assert others.submit(torch.ones, 1, device="pjrt").result().device.index == 0
    with pytest.raises(DeviceError, match=r"has 2 devices, counted from 0$"):
        MODULE.set_device(2)


def test_a_number_of_the_process_that_is_none(third_of_five: None) -> None:
    os.environ["LOCAL_RANK"] = "first"
    chosen.forget_names()
    with pytest.raises(VariableError, match="LOCAL_RANK: found 'first', expected a number"):
        torch.ones(1, device="pjrt:1")


def test_accelerators() -> None:
    assert torch.accelerator.is_available()
    assert str(torch.accelerator.current_accelerator()) == "pjrt"
    assert torch.accelerator.device_count() == 2


def test_functions_of_accelerators() -> None:
    assert torch.accelerator.memory_allocated() == MODULE.memory_allocated()
    assert torch.accelerator.max_memory_reserved("pjrt:1") >= 0
    assert torch.accelerator.get_memory_info(0) == MODULE.mem_get_info(0)
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
    torch.accelerator.reset_accumulated_memory_stats()
    with torch.accelerator.device_index(1):
        assert torch.accelerator.current_device_index() == 1
        assert torch.ones(1, device="pjrt").device.index == 1
    torch.accelerator.set_device_index(1)
    try:
        assert MODULE.current_device() == 1
    finally:
        torch.accelerator.set_device_index(0)


def test_properties_of_devices_and_of_their_memory() -> None:
    properties = MODULE.get_device_properties(1)
    assert properties.name == MODULE.get_device_name(1)
    assert properties.total_memory == MODULE.mem_get_info(1)[1]
    assert properties.platform == "cpu"
    assert "'pjrt:1'" in MODULE.memory_summary(1)
    with pytest.warns(BridgeWarning, match="plugin 'cpu' goes on counting the peaks"):
        MODULE.reset_peak_memory_stats()


def test_the_state_of_random_numbers() -> None:
    state = MODULE.get_rng_state()
    first = torch.randn(4, device="pjrt")
    MODULE.set_rng_state(state)
    assert torch.equal(torch.randn(4, device="pjrt").cpu(), first.cpu())
    with torch.random.fork_rng([0], device_type="pjrt"):
        torch.randn(4, device="pjrt")


def test_promises_of_the_device() -> None:
    with FakeTensorMode():
        made = torch.empty(2, 3, device="pjrt") @ torch.empty(3, 4, device="pjrt")
    assert made.shape == (2, 4)
    assert made.device == torch.device("pjrt:0")


def test_methods_of_tensors_and_modules() -> None:
    here = torch.ones(2).pjrt()  # type: ignore[attr-defined]
    assert here.is_pjrt
    assert next(torch.nn.Linear(2, 2).pjrt().parameters()).device.type == "pjrt"


def test_another_client_is_refused_while_one_is_in_use() -> None:
    here = torch.ones(2, device="pjrt")
    with pytest.raises(DeviceError, match="choose 'cpu' before the first tensor"):
        use("cpu", cpu_device_count=1)
    assert here.sum().item() == 2
    assert use("cpu", cpu_device_count=2) is chosen.client()


def test_synchronous_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    from pjrt_bridge.torch_interop.device.programs import programs

    monkeypatch.setenv("PJRT_BRIDGE_EAGER", "sync")
    x = torch.ones(3, device="pjrt")
    assert (x + 1).tolist() == [2, 2, 2]
    with pytest.raises(IndexError, match="found indices from 5 to 5, expected 0 to 2"):
        x.index_select(0, torch.tensor([5], device="pjrt"))
    programs.forget()
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", "later")
    with pytest.raises(OptionError, match="PJRT_BRIDGE_EAGER: found 'later'"):
        x * 2


@pytest.mark.parametrize("autoload", ["1", "0"])
def test_a_process_that_says_nothing_of_the_bridge(autoload: str) -> None:
    source = """
import sys, torch
assert not torch.accelerator.is_available()
assert torch.get_device_module() is torch.cpu
assert "pjrt_bridge.runtime" not in sys.modules
if AUTOLOAD == "0":
    from pjrt_bridge.torch_interop.device import use
    use("cpu")
x = torch.ones(3, device="pjrt")
assert (x + 1).tolist() == [2, 2, 2]
assert torch.accelerator.is_available()
assert torch.get_device_module() is torch.pjrt
print("well")
"""
    done = subprocess.run(
        [sys.executable, "-c", source.replace("AUTOLOAD", repr(autoload))],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.strip() == "well", done.stderr


def test_torch_export_of_a_model_on_the_device() -> None:
    net = torch.nn.Linear(3, 2).to("pjrt")
    x = torch.randn(4, 3).to("pjrt")
    program = torch.export.export(net, (x,))
    torch.testing.assert_close(program.module()(x).cpu(), net(x).cpu())


def test_the_profiler_sees_operators() -> None:
    x = torch.ones(3, device="pjrt")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        x + 1
    assert any(event.key == "aten::add" for event in found.key_averages())


def test_the_stream_of_a_device() -> None:
    stream = torch.pjrt.current_stream()  # type: ignore[attr-defined]
    assert stream == torch.pjrt.current_stream("pjrt:0")  # type: ignore[attr-defined]
    x = torch.full((4,), 2.0, device="pjrt").requires_grad_()
    assert stream == torch.pjrt.Stream(priority=-1)  # type: ignore[attr-defined]
    with torch.pjrt.stream(stream):  # type: ignore[attr-defined]
        y = (x * x).to("cpu", non_blocking=True)
    stream.wait_stream(stream)
    stream.synchronize()
    assert y.tolist() == [4] * 4
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.to("cpu", torch.float64, non_blocking=True).tolist() == [4] * 4


def test_events_take_the_time_of_what_is_between_them() -> None:
    begin, end = (MODULE.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(DeviceError, match="this event was not recorded"):
        begin.elapsed_time(end)
    begin.record()
    y = torch.ones(4, device="pjrt") * 2
    assert MODULE.default_stream().record_event(end) is end
    MODULE.current_stream().wait_event(end)
    assert begin.elapsed_time(end) > 0
    assert end.query()
    assert MODULE.current_stream().query()
    assert y.tolist() == [2] * 4
    untimed = MODULE.current_stream("pjrt:1").record_event()
    untimed.synchronize()
    with pytest.raises(DeviceError, match=r"the other event takes no time.*enable_timing=True"):
        begin.elapsed_time(untimed)
    with pytest.raises(DeviceError, match="interprocess=True"):
        MODULE.Event(interprocess=True)


def test_streams_are_made_as_those_of_cuda() -> None:
    made = MODULE.Stream(device=torch.device("pjrt:1"), priority=-1)
    assert made.device == torch.device("pjrt", 1)
    assert made == MODULE.current_stream(1) != MODULE.Stream()
    with made as entered:
        assert entered is made
    assert len({made, MODULE.Stream(1), MODULE.Stream()}) == 2
    with pytest.raises(ValueError, match="found device cpu"):
        MODULE.Stream("cpu")


def test_tensors_are_recorded_on_a_stream_of_torch() -> None:
    x = torch.ones(3, device="pjrt:1")
    for stream in (MODULE.current_stream(1), torch.Stream("pjrt:1")):
        assert isinstance(stream, torch.Stream)
        x.record_stream(stream)
    assert x.tolist() == [1] * 3


def test_a_stream_has_an_existing_device() -> None:
    for asked in (
        MODULE.Stream,
        MODULE.current_stream,
        MODULE.default_stream,
        MODULE.synchronize,
    ):
        with pytest.raises(DeviceError, match="has 2 devices"):
            asked("pjrt:7")
    MODULE.set_stream(MODULE.default_stream())
    assert MODULE.max_memory_reserved() >= 0


def test_the_states_of_random_numbers_of_all_devices() -> None:
    states = MODULE.get_rng_state_all()
    assert len(states) == 2
    first = torch.randn(4, device="pjrt")
    MODULE.set_rng_state_all(states)
    assert torch.equal(torch.randn(4, device="pjrt").cpu(), first.cpu())
