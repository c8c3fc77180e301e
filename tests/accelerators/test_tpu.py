"""The package `pjrt-bridge-tpu`: without its wheel, without a TPU, and compiling for one."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

import pjrt_bridge_tpu
from pjrt_bridge.errors import OptionError, PluginNotFound
from pjrt_bridge.registry import TopologySpec
from tests.accelerators.wheels import PRELUDE, need
from tests.plugins import run_python


def plug_in(folder: Path, slot: str, vendor: str, device: str | None) -> None:
    there = folder / slot
    there.mkdir(parents=True)
    (there / "vendor").write_text(vendor + "\n")
    if device is not None:
        (there / "device").write_text(device + "\n")


def test_chips_are_counted_on_the_bus(tmp_path: Path) -> None:
    assert pjrt_bridge_tpu.chips(tmp_path) == []
    plug_in(tmp_path, "00:01.0", "0x8086", "0x0063")
    plug_in(tmp_path, "00:02.0", "0x1ae0", "0x0042")
    plug_in(tmp_path, "00:03.0", "0x1ae0", None)
    assert pjrt_bridge_tpu.chips(tmp_path) == []
    plug_in(tmp_path, "00:04.0", "0x1ae0", "0x0063")
    plug_in(tmp_path, "00:05.0", "0x1ae0", "0x0063")
    assert pjrt_bridge_tpu.chips(tmp_path) == ["v5e", "v5e"]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "libtpu.so"
    monkeypatch.setattr(pjrt_bridge_tpu, "wheel_library", lambda *_: made)
    monkeypatch.setattr(pjrt_bridge_tpu, "PCI_DEVICES", tmp_path / "devices")
    return made


def test_a_machine_without_a_tpu_asks_no_metadata_service(library: Path) -> None:
    spec = pjrt_bridge_tpu.pjrt_bridge_plugins()
    assert (spec.path, spec.no_device) == (library, "no TPU on the PCI bus")
    assert spec.environment["TPU_SKIP_MDS_QUERY"] == "1"


def test_a_machine_with_tpus_does(library: Path, tmp_path: Path) -> None:
    plug_in(tmp_path / "devices", "00:04.0", "0x1ae0", "0x006f")
    spec = pjrt_bridge_tpu.pjrt_bridge_plugins()
    assert spec.no_device is None
    assert "TPU_SKIP_MDS_QUERY" not in spec.environment
    assert spec.description == "Google's TPUs (1 x v6e)"


NAMES = ["v5e:2x2", "v5e:1x1", "v6e:4x4", "v4:2x2x1", "v5p:4x4x4_twisted", "tpu7x:2x2x1", "v2=2x2"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("plugin", [None, "tpu"])
def test_names_of_slices(plugin: str | None, name: str) -> None:
    found = pjrt_bridge_tpu.pjrt_bridge_topology(plugin, name, {})
    assert isinstance(found, TopologySpec)
    assert (found.plugin, found.name, dict(found.options)) == ("tpu", name, {})


def test_figures_of_chips() -> None:
    v5e, v2 = (
        pjrt_bridge_tpu.pjrt_bridge_topology(None, name, {}) for name in ("v5e:4x4", "v2:2x2")
    )
    assert v5e is not None
    assert v5e.figures is not None
    assert (v5e.figures.flops, v5e.figures.memory, v5e.devices) == (197e12, 16e9, 16)
    assert v2 is not None
    assert v2.figures is None
    assert v2.devices is None


WRONG = ["", " ", "v5e", "v5e:", "2x2", "v5e:0x2", "v5e:2x", "h100", "h100:8", "v5e:2x2 "]


@pytest.mark.parametrize("name", WRONG)
def test_names_of_none(name: str) -> None:
    assert pjrt_bridge_tpu.pjrt_bridge_topology(None, name, {}) is None
    assert pjrt_bridge_tpu.pjrt_bridge_topology("cuda", name, {}) is None
    with pytest.raises(OptionError, match=r"no topology .* such as 'v5e:2x2'"):
        pjrt_bridge_tpu.pjrt_bridge_topology("tpu", name, {})


def test_without_the_wheel_the_hook_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)
    with pytest.raises(PluginNotFound, match="pip install libtpu"):
        pjrt_bridge_tpu.pjrt_bridge_plugins()


def test_it_compiles_for_every_generation_without_one() -> None:
    need("libtpu")
    shown = run_python(
        """
        for name in ("v2:2x2", "v3:2x2", "v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2",
                     "tpu7x:2x2x1"):
            with compile_for(programs.MATMUL, topology=name) as made:
                assert made.target == name
                assert made.cost()["flops"] > 0
                assert 0 < made.memory_stats().needed < made.memory_limit
                assert len(made.serialize()) > 1000
                int(made.fingerprint(), 16)
                print(len(made.topology.devices), made.memory_limit >> 30)
        """,
        prelude=PRELUDE,
        timeout=200,
    )
    # Cores or chips of the slice, and the whole GiB that a program can have on each.
    assert shown.splitlines() == [
        "8 7",
        "8 15",
        "8 30",
        "4 15",
        "4 95",
        "4 31",
        "8 94",
    ]


def test_what_libtpu_tells_without_a_device() -> None:
    need("libtpu")
    shown = run_python(
        """
        from pjrt_bridge.extensions import Layouts, MemoryDescriptions, PhaseCompile
        from pjrt_bridge.extensions.tables import TpuTopology
        with topology("v5e:2x2") as four:
            layouts = four.extension(Layouts)
            half = TensorType((256, 64), dtypes.from_numpy(np.dtype(ml_dtypes.bfloat16)))
            assert layouts.default(half).minor_to_major == (0, 1)
            kinds = [m.kind for m in four.extension(MemoryDescriptions).of(four.devices[0])]
            assert kinds == ["device", "pinned_host", "unpinned_host"]
            assert "phase1_hlo_opts" in four.extension(PhaseCompile).phases()
            chips = four.extension(TpuTopology).call("chip_count", topology=four.pointer)
            print(four.serialize() != b"", four.fingerprint() != 0, chips.chip_count)
            with four.compile(programs.MATMUL) as made:
                assert len(layouts.outputs(made)) == 1
                assert len(layouts.parameters(made)) == 1
                assert set(made.parameter_memory_kinds()) == {"device"}
        """,
        prelude=PRELUDE,
    )
    assert shown == "True True 4"


def test_a_program_that_does_not_fit() -> None:
    need("libtpu")
    shown = run_python(
        """
        large = programs.elementwise("tensor<65536x65536xf32>", op="multiply")
        try:
            compile_for(large, topology="v5e:1x1")
        except ResourceExhausted as error:
            print(error)
        """,
        prelude=PRELUDE,
    )
    assert "exceeds available HBM" in shown or "exceeded hbm capacity" in shown.lower()


@pytest.mark.parametrize("name", ["v5e:3x3", "v9z:2x2"])
def test_slices_that_libtpu_does_not_have(name: str) -> None:
    need("libtpu")
    shown = run_python(
        f"""
        try:
            topology({name!r})
        except InvalidArgument as error:
            print(error.function)
        """,
        prelude=PRELUDE,
    )
    assert shown == "TopologyDescription_Create"


def test_without_a_tpu_there_are_no_clients_and_nothing_hangs() -> None:
    need("libtpu")
    if pjrt_bridge_tpu.chips(pjrt_bridge_tpu.PCI_DEVICES):
        pytest.skip("there is a TPU")
    shown = run_python(
        """
        try:
            registry.client("tpu")
        except PluginNotFound as error:
            print(error)
        try:
            registry.load("tpu").client()
        except PjrtError as error:
            print(type(error).__name__)
        """,
        prelude=PRELUDE,
        timeout=30,
    )
    first, second = shown.splitlines()
    assert "no device on this machine: no TPU on the PCI bus" in first
    assert second in ("NotFound", "Unavailable", "FailedPrecondition")


def test_planning_over_a_slice() -> None:
    """A program over four chips that are not there, and one for which they have no memory."""
    need("libtpu")
    shown = run_python(
        """
        from pjrt_bridge.registry import budget
        from pjrt_bridge.stablehlo import Mesh, Program, Sharding, shard

        def product(n, left, right):
            kind = f"tensor<{n}x{n}xf32>"
            program = Program.parse(f'''
            func.func @main(%x: {kind}, %w: {kind}) -> {kind} {{
              %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
                : ({kind}, {kind}) -> {kind}
              return %0 : {kind}
            }}''')
            mesh = Mesh.of({"tp": 4})
            shardings = [Sharding.of(mesh, spec, 2) for spec in (left, right)]
            return shard(program, mesh, shardings, [None])

        fits = budget(product(1024, (None, "tp"), ("tp",)), "v5e:2x2")
        names = [one.operation for one in fits.collectives]
        print(fits.source, fits.fits, fits.compiled is not None, names, fits.bound is not None)
        large = budget(product(65536, (), ()), "v5e:2x2")
        print(large.fits, large.is_estimate, "RESOURCE_EXHAUSTED" in large.refused)
        """,
        prelude=PRELUDE,
    )
    assert shown.splitlines() == [
        "the compiler of plugin 'tpu' True True ['all-reduce'] True",
        "False True True",
    ]
