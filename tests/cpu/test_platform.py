"""What the package states of the platform keeps results right, however the plugin was opened."""

from importlib import metadata
from typing import Any

import numpy as np
import pytest
import torch

import pjrt_bridge
import pjrt_bridge_cpu
from pjrt_bridge.registry import PlatformSpec
from pjrt_bridge.runtime import Client
from pjrt_bridge.runtime.objects.client import compiling
from pjrt_bridge_cpu import builds
from pjrt_bridge_cpu.aten import processor
from tests.plugins import run_python

MATMUL = """
func.func @main(%a: tensor<256x768xf32>, %b: tensor<768x2304xf32>) -> tensor<256x2304xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<256x768xf32>, tensor<768x2304xf32>) -> tensor<256x2304xf32>
  return %0 : tensor<256x2304xf32>
}
"""


def difference(result: pjrt_bridge.Buffer, a: torch.Tensor, b: torch.Tensor) -> float:
    return float((torch.from_dlpack(result) - a @ b).abs().max())


@pytest.mark.parametrize("changed", ["left", "right"])
def test_a_shared_factor_that_is_updated_in_place(changed: str) -> None:
    client = pjrt_bridge.client()
    executable = client.compile(MATMUL)
    a, b = torch.randn(256, 768), torch.randn(768, 2304)
    buffers = [client.put(a, copy=False), client.put(b, copy=False)]
    assert difference(executable.execute(buffers)[0], a, b) < 1e-3
    for _ in range(2):
        (b if changed == "right" else a).mul_(-2.0)
        assert difference(executable.execute(buffers)[0], a, b) < 1e-2


def test_another_array_at_the_same_address() -> None:
    client = pjrt_bridge.client()
    executable = client.compile(MATMUL)
    a, memory = torch.randn(256, 768), torch.empty(768, 2304)
    for _ in range(3):
        memory.normal_()
        buffers = [client.put(a), client.put(memory, copy=False)]
        assert difference(executable.execute(buffers)[0], a, memory) < 1e-3


@pytest.mark.parametrize("operation", ["maximum", "minimum"])
def test_a_nan_wins_on_either_side(operation: str) -> None:
    program = f"""
    func.func @main(%x: tensor<2xf32>, %y: tensor<2xf32>) -> tensor<2xf32> {{
      %0 = stablehlo.{operation} %x, %y : tensor<2xf32>
      return %0 : tensor<2xf32>
    }}
    """
    x, y = np.array([np.nan, 1], np.float32), np.array([1, np.nan], np.float32)
    (result,) = pjrt_bridge.client().compile(program)(x, y)
    assert np.isnan(np.asarray(result)).all()


def test_programs_get_flags_that_are_faster_on_this_processor_unless_the_caller_has_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, compiled = pjrt_bridge.client(), []
    width, unknown = "xla_cpu_prefer_vector_width", "xla_cpu_of_another_version"
    expected = {width: 512} if processor.has_wide_vectors() else {}
    assert client.platform_spec.tuning_flags == expected
    other = Client(client.plugin, {"cpu_device_count": 1})
    spec = PlatformSpec("cpu", tuning_flags={width: 128, unknown: True})
    object.__setattr__(other, "platform_spec", spec)
    original = compiling.compile_program

    def spied(*args: Any) -> Any:
        compiled.append(dict(args[-1].env))
        return original(*args)

    monkeypatch.setattr(compiling, "compile_program", spied)
    for flags in ({}, {width: 64}):
        other.compile(MATMUL, options=pjrt_bridge.CompileOptions(env=flags)).close()
    other.close()
    *before, first, last = [found for found in compiled if width in found]
    assert (first[width], last[width]) == (128, 64)
    assert not {unknown} & {*first, *last}
    assert any(unknown in found for found in before)  # tried


def test_flags_of_a_program_that_the_plugin_refuses_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, compiled = pjrt_bridge.client(), []
    other = Client(client.plugin, {"cpu_device_count": 1})
    unknown, known = {"xla_cpu_of_another_version": True}, {"xla_cpu_prefer_vector_width": 128}
    original = compiling.compile_program

    def spied(*args: Any) -> Any:
        compiled.append(dict(args[-1].env))
        return original(*args)

    monkeypatch.setattr(compiling, "compile_program", spied)
    for flags in (unknown, known, unknown):
        spec = PlatformSpec("cpu", program_flags=lambda program, flags=flags: flags)
        object.__setattr__(other, "platform_spec", spec)
        other.compile(MATMUL).close()
    other.close()
    found = [flags for flags in compiled if flags.keys() & {*unknown, *known}]
    assert found == [unknown, known, known]  # tried, tried and used


def test_the_callers_flags_come_after_the_safe_ones() -> None:
    client = pjrt_bridge.client()
    assert client.safe_flags["xla_cpu_enable_fast_min_max"] is False
    options = pjrt_bridge.CompileOptions(env={"xla_cpu_enable_fast_min_max": True})
    a, b = np.ones((256, 768), np.float32), np.ones((768, 2304), np.float32)
    (result,) = client.compile(MATMUL, options=options)(a, b)
    assert float(np.asarray(result)[0, 0]) == 768.0


def test_a_library_that_is_opened_by_its_path_is_as_safe() -> None:
    """What the package states holds for the platform, whoever opened the plugin and how."""
    out = run_python(
        """
        import pjrt_bridge
        from pjrt_bridge.extensions import FFI
        from tests.plugins import cpu_library

        client = pjrt_bridge.client(f"mine:{cpu_library()}", cpu_device_count=1)
        print(client.plugin.name, dict(client.safe_flags), client.extension(FFI).platform)
        print(client.platform_spec.call_forms["__onednn$matmul"])
        for count in (0, 4097, "two"):
            try:
                pjrt_bridge.client(f"mine:{cpu_library()}", cpu_device_count=count)
            except OptionError as error:
                print(error)
        """
    )
    flags = dict(builds.chosen().compiler_flags)
    assert out.splitlines() == [
        f"mine {flags} HOST",
        "None",
        "option 'cpu_device_count' of plugin 'mine': found 0, expected 1 to 4096",
        "option 'cpu_device_count' of plugin 'mine': found 4097, expected 1 to 4096",
        "option 'cpu_device_count' of plugin 'mine': found 'two' of type str, expected int",
    ]


def test_a_plugin_that_the_runtime_loads_alone_is_as_safe() -> None:
    out = run_python(
        """
        client = Plugin.load(cpu_library(), name="bare").client()
        print(client.safe_flags["xla_cpu_enable_fast_min_max"])
        """,
        prelude="from pjrt_bridge.runtime import Plugin\nfrom tests.plugins import cpu_library\n",
    )
    assert out == "False"


def test_the_platform_is_stated_also_without_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)
    assert pjrt_bridge_cpu.pjrt_bridge_platforms().compiler_flags
