"""The package `pjrt-bridge-cuda`: without its wheel, without a GPU, and compiling for both."""

from __future__ import annotations

import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

import pjrt_bridge_cuda
from pjrt_bridge.errors import OptionError, PluginNotFound
from pjrt_bridge.registry import TopologySpec
from pjrt_bridge_cuda import GPUS, presence
from pjrt_bridge_cuda.gpus import Gpu
from tests.accelerators.wheels import PRELUDE, need
from tests.plugins import run_python

HERE = (Path(sys.executable),)

TERAFLOPS = {
    "v100": 15.7,
    "v100-32gb": 15.7,
    "t4": 8.1,
    "a100-40gb": 19.5,
    "a100": 19.5,
    "a10": 31.2,
    "a6000": 38.7,
    "rtx3090": 35.6,
    "l4": 30.3,
    "l40s": 91.6,
    "rtx4090": 82.6,
    "h100-pcie": 51.2,
    "h100": 66.9,
    "h200": 66.9,
    "b200": 74.5,
    "rtx5090": 104.8,
}
"""Single precision, without tensor cores, from NVIDIA's data sheets."""


@pytest.mark.parametrize("name", GPUS)
def test_the_figures_of_a_gpu_give_its_published_speed(name: str) -> None:
    gpu = GPUS[name]
    lanes = gpu.multiprocessors * gpu.capability.fp32_lanes
    assert 2 * lanes * gpu.clock_ghz / 1000 == pytest.approx(TERAFLOPS[name], rel=0.02)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_a_description_is_a_text_proto(gpu: Gpu) -> None:
    text = gpu.target_config()
    assert text.count("{") == text.count("}") == 2
    assert f'device_description_str: "{gpu.model}"' in text
    assert 48 <= gpu.capability.block_shared_kib <= gpu.capability.shared_kib


@pytest.mark.parametrize(("target", "shape"), [("h100", "1x1x1"), ("A100:8", "1x1x8")])
@pytest.mark.parametrize("plugin", [None, "cuda"])
def test_a_gpu_by_name(plugin: str | None, target: str, shape: str) -> None:
    found = pjrt_bridge_cuda.pjrt_bridge_topology(plugin, target, {})
    gpu = GPUS[target.lower().partition(":")[0]]
    options = {"target_config": gpu.target_config(), "topology": shape}
    assert found == TopologySpec("cuda", target, options, gpu.figures(), int(shape[4:]))
    assert gpu.figures().memory == gpu.memory_mib << 20


def test_a_gpu_of_the_users_own() -> None:
    options = {"target_config": GPUS["l4"].target_config()}
    found = pjrt_bridge_cuda.pjrt_bridge_topology("cuda", "", options)
    assert found == TopologySpec("cuda", "described", {"topology": "1x1x1"})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("core_count: 132", "core_count: 0", "core_count: found 0, expected a positive number"),
        ("threads_per_warp: 32", "threads_per_warp: 0", "threads_per_warp: found 0, expected 32"),
        ("threads_per_warp: 32", "threads_per_warp: 5", "threads_per_warp: found 5, expected 32"),
        ("clock_rate_ghz: 1.98", "", "clock_rate_ghz: found nothing"),
        ("clock_rate_ghz: 1.98", "clock_rate_ghz: nan", "clock_rate_ghz: found nan"),
        ("clock_rate_ghz: 1.98", "clock_rate_ghz: fast", "clock_rate_ghz: found fast"),
        ("cuda_compute", "rocm_compute", "no cuda_compute_capability"),
    ],
)
def test_descriptions_that_the_compiler_would_die_of(old: str, new: str, said: str) -> None:
    text = GPUS["h100"].target_config()
    assert old in text
    with pytest.raises(OptionError, match=said):
        pjrt_bridge_cuda.pjrt_bridge_topology(None, "", {"target_config": text.replace(old, new)})


WRONG = ["h101", "", "h100:0", "h100:", "h100:-1", "v5e:2x2", "h100:2x2"]


@pytest.mark.parametrize("target", WRONG)
def test_gpus_that_there_are_not(target: str) -> None:
    assert pjrt_bridge_cuda.pjrt_bridge_topology(None, target, {}) is None
    assert pjrt_bridge_cuda.pjrt_bridge_topology("tpu", target, {}) is None
    with pytest.raises(OptionError, match=r"it knows v100, .* or take a target_config"):
        pjrt_bridge_cuda.pjrt_bridge_topology("cuda", target, {})


def test_without_the_wheel_the_hook_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)
    with pytest.raises(PluginNotFound, match=r"pip install 'pjrt-bridge-cuda\[cuda13\]'"):
        pjrt_bridge_cuda.pjrt_bridge_plugins()


def test_without_a_driver_no_process_is_started(tmp_path: Path) -> None:
    missing = tmp_path / "nvidiactl"
    assert presence.ask([missing], "raise SystemExit('asked')", 1) == (
        f"no NVIDIA driver (there is no {missing})"
    )


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        ("pass", None),
        ("raise SystemExit('the driver sees no GPU')", "the driver sees no GPU"),
        ("import os; os.abort()", "the driver's probe ended with status -6"),
    ],
)
def test_what_the_driver_says(probe: str, said: str | None) -> None:
    assert presence.ask(HERE, probe, 30) == said


def test_a_driver_that_hangs() -> None:
    started = time.monotonic()
    assert presence.ask(HERE, "import time; time.sleep(60)", 0.5) == (
        "the NVIDIA driver did not answer for 0.5 s"
    )
    assert time.monotonic() - started < 20


def test_the_real_probe_ends_with_a_reason_or_a_gpu() -> None:
    said = presence.ask(HERE, presence.PROBE, 60)
    assert said is None or said.startswith("the driver")


def test_it_compiles_for_every_gpu_without_one() -> None:
    need(*pjrt_bridge_cuda.WHEELS)
    shown = run_python(
        """
        from pjrt_bridge_cuda import GPUS
        for name, gpu in GPUS.items():
            with compile_for(programs.MATMUL, topology=name) as made:
                assert made.target == name
                assert made.memory_limit == gpu.memory_mib << 20
                assert 0 < made.memory_stats().needed < made.memory_limit
                assert len(made.serialize()) > 1000
                (device,) = made.topology.devices
                assert device.kind == gpu.model
                own = gpu.capability
                assert device.attributes["compute_capability"] == f"{own.major}.{own.minor}"
            print(name)
        """,
        prelude=PRELUDE,
        timeout=200,
    )
    assert shown.split() == list(GPUS)


def test_what_ends_the_compiler_is_refused() -> None:
    need(*pjrt_bridge_cuda.WHEELS)
    shown = run_python(
        """
        for name in ("f6E2M3FN", "f6E3M2FN"):
            type = f"tensor<3x{name}>"
            body = f"%0 = stablehlo.constant dense<[1.0, 2.0, 0.5]> : {type} return %0 : {type}"
            try:
                compile_for(f"func.func @main() -> {type} {{ {body} }}", topology="h100")
            except UnsupportedDtype as error:
                print(error)
        """,
        prelude=PRELUDE,
    )
    assert len(shown.splitlines()) == 2
    assert shown.count("on which this version of plugin 'cuda' ends the process") == 2


def test_libraries_choose_how_products_and_convolutions_are_computed() -> None:
    """The compiler chooses badly where it cannot try: what it chose did not run, or was slow."""
    need(*pjrt_bridge_cuda.WHEELS)
    shown = run_python(
        '''
        from pjrt_bridge.runtime import CompileOptions
        convolution = """
        func.func @main(%x: tensor<4x16x16x8xf32>, %w: tensor<3x3x8x16xf32>)
            -> tensor<4x14x14x16xf32> {
          %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
            window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
            : (tensor<4x16x16x8xf32>, tensor<3x3x8x16xf32>) -> tensor<4x14x14x16xf32>
          return %0 : tensor<4x14x14x16xf32>
        }
        """
        product, _ = compile_for(programs.MATMUL, topology="h100").optimized()
        convolved, _ = compile_for(convolution, topology="h100").optimized()
        print(b"__cublas" in product, b"__triton" in product)
        print(b"__cudnn" in convolved, b'"algo_id":"-1"' in convolved)
        own = CompileOptions(env={"xla_gpu_enable_triton_gemm": True})
        product, _ = compile_for(programs.MATMUL, topology="h100", options=own).optimized()
        print(b"__cublas" in product, b"__triton" in product)
        ''',
        prelude=PRELUDE,
    )
    assert shown.splitlines() == ["True False", "True False", "False True"]


def test_without_a_gpu_it_is_listed_and_tells_what_it_can() -> None:
    need(*pjrt_bridge_cuda.WHEELS)
    if presence.no_gpu() is None:
        pytest.skip("there is a GPU")
    shown = run_python(
        """
        from pjrt_bridge.extensions import Layouts
        (info,) = [info for info in registry.plugins() if info.name == "cuda"]
        assert info.available and info.no_device, info
        try:
            registry.client("cuda")
        except PluginNotFound as error:
            print(error)
        eight = topology("h100:8")
        assert [device.id for device in eight.devices] == list(range(8))
        half = TensorType((256, 64), dtypes.from_numpy(np.dtype(ml_dtypes.bfloat16)))
        assert str(eight.extension(Layouts).default(half)) == "{1,0}"
        own = topology("mine", "cuda", target_config=eight.attributes["target_config"])
        assert own.devices[0].kind == eight.devices[0].kind
        for wrong in (eight.attributes["target_config"] + "no { proto", ""):
            try:
                topology("mine", "cuda", target_config=wrong)
            except (PjrtError, OptionError) as error:
                print(type(error).__name__)
        """,
        prelude=PRELUDE,
    )
    first, *rest = shown.splitlines()
    assert first.startswith("plugin 'cuda' has no device on this machine: ")
    assert rest == ["FailedPrecondition", "OptionError"]


def test_float32_becomes_tf32_only_where_torch_allows_it(tmp_path: Path) -> None:
    need(*pjrt_bridge_cuda.WHEELS)
    pytest.importorskip("torch")
    shown = run_python(
        f"""
        import os
        from pathlib import Path
        os.environ["XLA_FLAGS"] = "--xla_dump_to={tmp_path} --xla_dump_emitter_re=.*"
        import torch
        from pjrt_bridge.runtime import CompileOptions
        from pjrt_bridge.torch_interop import export
        # A library of NVIDIA's would show no code.
        own = CompileOptions(env={{"xla_gpu_enable_triton_gemm": True}})
        for setting in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(setting)
            model = export(torch.nn.Linear(512, 512), (torch.randn(512, 512),), name=setting)
            compile_for(model.program, topology="h100", options=own)
            (code,) = [
                path.read_text()
                for path in Path({str(tmp_path)!r}).glob(f"*.{{setting}}.*.ptx")
                if "gemm" in path.read_text()
            ]
            print("tf32" in code)
        """,
        prelude=PRELUDE,
        timeout=200,
    )
    assert shown.split() == ["False", "True", "True"]


def test_what_a_program_rounds_stays_rounded(tmp_path: Path) -> None:
    need(*pjrt_bridge_cuda.WHEELS)
    shown = run_python(
        f"""
        import os
        from pathlib import Path
        os.environ["XLA_FLAGS"] = "--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
        compile_for(
            '''func.func @main(%a: tensor<64xf32>) -> tensor<64xf32> {{
                %0 = stablehlo.convert %a : (tensor<64xf32>) -> tensor<64xbf16>
                %1 = stablehlo.convert %0 : (tensor<64xbf16>) -> tensor<64xf32>
                return %1 : tensor<64xf32>
            }}''',
            topology="h100",
        )
        (text,) = Path({str(tmp_path)!r}).glob("*after_optimizations.txt")
        print("bf16[64]" in text.read_text())
        """,
        prelude=PRELUDE,
    )
    assert shown == "True"
