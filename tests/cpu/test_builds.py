"""The table of builds, which of them is the plugin `cpu`, and what is refused by version."""

from __future__ import annotations

import tomllib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import pjrt_bridge
from pjrt_bridge.dtypes import of
from pjrt_bridge.errors import (
    OptionError,
    PjrtError,
    PluginNotFound,
    ProgramError,
    UnsupportedDtype,
)
from pjrt_bridge.runtime import Client
from pjrt_bridge.runtime.objects import compiling
from pjrt_bridge.stablehlo import Program
from pjrt_bridge_cpu import builds
from pjrt_bridge_cpu.builds import BUILDS, Build

ROOT = Path(__file__).parent.parent.parent
CONSTANT = """
func.func @main() -> tensor<2xf32> {
  %0 = stablehlo.constant dense<1.0> : tensor<2xf6E2M3FN>
  %1 = stablehlo.convert %0 : (tensor<2xf6E2M3FN>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}
"""


def made(
    name: str, *, api: int, passed: tuple[str, ...] = builds.SUITES, time: float | None
) -> Build:
    return Build(name, f"{name}.so", "1", api, "1.0.0", passed=frozenset(passed), time=time)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Names of the wheels that are there, for a test to change."""
    names: list[str] = []

    def library(wheel: str, file: str) -> Path:
        if wheel not in names:
            raise PluginNotFound(f"the wheel {wheel!r} is not installed: pip install {wheel}")
        return tmp_path / wheel / file

    monkeypatch.setattr(builds, "wheel_library", library)
    monkeypatch.delenv(builds.VARIABLE, raising=False)
    return names


def test_the_preferred_build_is_the_plugin(installed: list[str]) -> None:
    with pytest.raises(PluginNotFound, match="pip install xla-cpu-pjrt"):
        builds.plugins()
    installed.append("lammps-jax-pjrt-cpu")
    assert [spec.name for spec in builds.plugins()] == ["cpu"]
    installed.append("xla-cpu-pjrt")
    cpu, other = builds.plugins()
    assert cpu.path is not None
    assert (cpu.name, cpu.path.name, cpu.priority) == ("cpu", "xla_cpu_pjrt.so", 0)
    assert (other.name, other.priority) == ("lammps-jax-pjrt-cpu", builds.OTHERS_PRIORITY)
    assert "PJRT_BRIDGE_CPU_BUILD=lammps-jax-pjrt-cpu makes it 'cpu'" in other.description


def test_the_fastest_build_that_passes_all_suites_is_preferred(
    installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [
        made("xla-cpu-pjrt", api=81, time=1.0),
        made("quick", api=100, time=0.9),
        made("unproven", api=120, passed=("models",), time=0.5),
        made("unmeasured", api=130, time=None),
    ]
    monkeypatch.setattr(builds, "BUILDS", {build.name: build for build in known})
    installed += ["unproven"]
    (cpu,) = builds.plugins()
    assert cpu.description.endswith(
        "unproven (not run in full: conformance, operators, faults; 0.50x the time of "
        "xla-cpu-pjrt); no installed build passes all suites"
    )
    installed += ["xla-cpu-pjrt", "unmeasured"]
    assert builds.chosen().name == "xla-cpu-pjrt"
    installed.append("quick")
    cpu, *others = builds.plugins()
    assert cpu.description.endswith(
        "quick (passes all suites; 0.90x the time of xla-cpu-pjrt); the fastest installed build "
        "that passes all suites"
    )
    assert [other.name for other in others] == ["xla-cpu-pjrt", "unproven", "unmeasured"]
    monkeypatch.setenv("PJRT_BRIDGE_CPU_BUILD", "unproven")
    assert builds.plugins()[0].description.endswith("; PJRT_BRIDGE_CPU_BUILD names it")


@pytest.mark.parametrize("project", [ROOT, ROOT / "plugins" / "cpu"])
def test_an_extra_installs_the_newer_build(project: Path) -> None:
    extras = tomllib.loads((project / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    if project == ROOT:
        assert extras["cpu-newer"] == ["pjrt-bridge-cpu[newer]"]
        return
    name, version = extras["newer"][0].split("==")
    assert BUILDS[name].version == version


def test_the_variable_names_the_build(
    installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed += ["xla-cpu-pjrt", "lammps-jax-pjrt-cpu"]
    monkeypatch.setenv("PJRT_BRIDGE_CPU_BUILD", "lammps-jax-pjrt-cpu")
    cpu, other = builds.plugins()
    assert cpu.path is not None
    assert (cpu.path.name, other.name) == ("pjrt_c_api_cpu_plugin.so", "xla-cpu-pjrt")
    assert set(cpu.option_types or ()) == {"cpu_device_count", "asynchronous", "process_id"}
    monkeypatch.setenv("PJRT_BRIDGE_CPU_BUILD", "fastatomstruct-xla-cpu")
    with pytest.raises(PluginNotFound, match="'fastatomstruct-xla-cpu' is not installed"):
        builds.plugins()
    monkeypatch.setenv("PJRT_BRIDGE_CPU_BUILD", "newest")
    with pytest.raises(OptionError, match="found 'newest', expected one of xla-cpu-pjrt, fast"):
        builds.plugins()


def test_the_build_here_is_as_the_table_says(client: Client) -> None:
    build = builds.chosen()
    assert client.plugin.api_version == (0, build.api)
    assert client.plugin.stablehlo_version == build.stablehlo
    assert client.safe_flags == build.compiler_flags


def test_a_version_that_nobody_knows_gets_all_flags() -> None:
    platform = builds.platform()
    for build in BUILDS.values():
        known = platform.for_api((0, build.api))
        assert known.compiler_flags == build.compiler_flags
        assert known.fatal_constants == build.fatal_constants
        assert set(build.compiler_flags) <= set(platform.for_api((0, 200)).compiler_flags)


def test_flags_that_a_plugin_does_not_know_cost_the_others_nothing(client: Client) -> None:
    other = Client(client.plugin, {"cpu_device_count": 1})
    flags = {"xla_cpu_enable_fast_min_max": False, "xla_cpu_of_another_version": True}
    object.__setattr__(other, "platform_spec", pjrt_bridge.registry.PlatformSpec("cpu", flags))
    assert other.safe_flags == {"xla_cpu_enable_fast_min_max": False}
    other.close()


def test_constants_that_would_end_the_process_are_refused() -> None:
    def refusing(name: str) -> pjrt_bridge.registry.PlatformSpec:
        return pjrt_bridge.registry.PlatformSpec("cpu", fatal_constants=(name,))

    program = Program.parse(CONSTANT)
    assert program.has_constant(of("float6_e2m3fn"))
    assert not program.has_constant(of("float6_e3m2fn"))
    assert not program.has_constant(of("float32"))
    with pytest.raises(UnsupportedDtype, match=r"a constant of float6_e2m3fn, on which this vers"):
        compiling.check_for(program, refusing("float6_e2m3fn"), plugin="cpu")
    compiling.check_for(program, refusing("float6_e3m2fn"), plugin="cpu")


def test_unknown_options_are_refused_before_the_plugin() -> None:
    with pytest.raises(OptionError, match=r"no option 'asynchronous'|found 'yes' of type str"):
        pjrt_bridge.client("cpu", asynchronous="yes")


@pytest.mark.parametrize("count", [1, 4])
def test_several_devices(count: int) -> None:
    client = pjrt_bridge.client("cpu", cpu_device_count=count)
    assert len(client.devices) == count
    x = np.arange(6, dtype=np.float32)
    for device in client.devices:
        assert np.array_equal(client.put(x, device).to_numpy(), x)


CALL = """
func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {{
  {results}stablehlo.custom_call @"{target}"({operands}) {{has_side_effect = true}}
    : ({types}) -> ({found})
  return %a : tensor<8x8xf32>
}}
"""
KIND = "tensor<8x8xf32>"


def calling(target: str, operands: int, results: int) -> str:
    return CALL.format(
        target=target,
        results=f"%0:{results} = " if results else "",
        operands=", ".join(["%a"] * operands),
        types=", ".join([KIND] * operands),
        found=", ".join([KIND] * results),
    )


@pytest.mark.parametrize("target", builds._CALL_FORMS)
@pytest.mark.parametrize(("operands", "results"), [(0, 1), (1, 1), (2, 1), (1, 2), (1, 0)])
def test_calls_that_end_the_process_are_refused(
    client: Client, target: str, operands: int, results: int
) -> None:
    form = builds._CALL_FORMS[target]
    text = calling(target, operands, results)
    if form == (operands, results):
        # What the compiler counts it may refuse, but it survives.
        with suppress(PjrtError):
            client.compile(text).close()
        return
    with pytest.raises(ProgramError, match="calls ") as caught:
        client.compile(text)
    said = "for its own use" if form is None else f"with {operands} operands and {results} results"
    assert said in str(caught.value)
