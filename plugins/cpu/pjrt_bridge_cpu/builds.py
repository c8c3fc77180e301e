"""The builds of XLA's CPU plugin that wheels bring: what each is, needs, and does wrong.

What is stated of a build was seen with it; `docs/plugins.md` holds the measurements. Of a library
that was opened by its path only the version of its PJRT API tells which build it may be, so
`platform()` states flags by version: those of the nearest known build, for unknown versions all
flags that any build needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pjrt_bridge import environment
from pjrt_bridge.errors import PluginNotFound, VariableError
from pjrt_bridge.registry import PlatformSpec, PluginSpec, wheel_library
from pjrt_bridge.runtime.core.compile_options import Override
from pjrt_bridge.runtime.core.platforms import CallForm, OptionType
from pjrt_bridge_cpu.aten.processor import has_wide_vectors
from pjrt_bridge_cpu.loops import flags_for

VARIABLE = "PJRT_BRIDGE_CPU_BUILD"
"""Names the build that is the plugin `cpu`."""

NAME = "cpu"
"""Name of the plugin and of the platform."""

SUITES = ("conformance", "operators", "models", "faults")
"""What a build has to pass to be preferred: `pjrt-bridge conformance`, `python -m tests.opinfo`,
`python -m tests.models` and `python -m tests.faults`."""

FALLBACK = "xla-cpu-pjrt"
"""The build that the package depends on, and against which the others are measured."""

_DEVICES: Mapping[str, OptionType] = {"cpu_device_count": range(1, 4097)}
# It makes no client without devices, and allocates for as many as are asked for before it looks
# whether it can.

_NO_FAST_MIN_MAX: Mapping[str, Override] = {"xla_cpu_enable_fast_min_max": False}
# XLA's fast minimum and maximum drop a NaN that is on the right-hand side, which StableHLO keeps.

_NO_XNNPACK: Mapping[str, Override] = {"xla_cpu_use_xnnpack": False}
# The compiler hands large matrix products to XNNPACK, which packs the right-hand side once and
# keeps it for as long as that argument has the same address: a weight that was updated in place, or
# another array that took its memory, is multiplied with its old values. Eigen takes over without
# XNNPACK, at the same speed.

_NO_YNNPACK: Mapping[str, Override] = {"xla_cpu_experimental_ynn_fusion_type": ""}
# YNNPACK's reductions drop NaN from maximum and minimum.

_WIDE: Mapping[str, Override] = {"xla_cpu_prefer_vector_width": 512}
# Loops over float32 take half the time of those with the compiler's 256 bits.

_CALL_FORMS: Mapping[str, CallForm | None] = {
    "Eigh": CallForm(1, 2),
    "LayoutConstraint": CallForm(1, 1),
    "ProductOfElementaryHouseholderReflectors": CallForm(2, 1),
    "Qr": CallForm(1, 2),
    "SPMDFullToShardShape": CallForm(1, 1),
    "SPMDShardToFullShape": CallForm(1, 1),
    "ShardBarrierFrom": CallForm(1, 1),
    "ShardBarrierTo": CallForm(1, 1),
    "Sharding": CallForm(1, 1),
    "xla.sdy.FuncResultSharding": CallForm(1, 1),
    "xla.sdy.PropagationBarrier": CallForm(1, 1),
    "xla.sdy.ShardingGroup": CallForm(1, 0),
    "mhlo.topk": CallForm(1, 2),
    # Only passes of the compiler make these. Those of oneDNN have operands and settings that
    # nothing checks, and a program with one ends the process when it is serialized.
    "SliceToDynamic": None,
    "TopK": None,
    "__onednn$convolution": None,
    "__onednn$layernorm": None,
    "__onednn$matmul": None,
    "__onednn$matmul_reorder": None,
    "__onednn$softmax": None,
}
# The compiler looks at operands and results of these without having counted them.


@dataclass(frozen=True)
class Build:
    """One build of XLA's CPU plugin.

    Attributes:
        name: the wheel that brings it, and its name in `PJRT_BRIDGE_CPU_BUILD`.
        file: its library in the wheel.
        version: of the wheel that was examined.
        api: minor version of its PJRT API.
        stablehlo: newest StableHLO that it reads.
        option_types: create options that it reads. Builds before API 0.115 accept unknown names in
            silence.
        compiler_flags: without which results are wrong.
        fatal_constants: element types of constants on which it ends the process.
        known_wrong: what else it does wrong, for people.
        passed: suites (`SUITES`) that the examined version passed in full.
        time: seconds that programs take, relative to `xla-cpu-pjrt`: the geometric mean that
            `python -m benchmarks.cpu_builds` prints, with PyTorch's kernels; None: not measured.
    """

    name: str
    file: str
    version: str
    api: int
    stablehlo: str
    passed: frozenset[str] = frozenset()
    time: float | None = None
    option_types: Mapping[str, OptionType] = field(default_factory=lambda: _DEVICES, hash=False)
    compiler_flags: Mapping[str, Override] = field(
        default_factory=lambda: _NO_FAST_MIN_MAX, hash=False
    )
    fatal_constants: tuple[str, ...] = ()
    known_wrong: tuple[str, ...] = ()

    def library(self) -> Path:
        """Path of the library.

        Raises:
            PluginNotFound: the wheel is not installed.
        """
        return wheel_library(self.name, self.file)

    @property
    def unproven(self) -> tuple[str, ...]:
        """Suites that it did not pass in full."""
        return tuple(name for name in SUITES if name not in self.passed)

    @property
    def rank(self) -> tuple[bool, float, int]:
        """The least of these is preferred: proven, then fast, then with the newest API."""
        return bool(self.unproven), float("inf") if self.time is None else self.time, -self.api

    @property
    def standing(self) -> str:
        """The state of the build by the rule, for messages."""
        proven = "passes all suites"
        if self.unproven:
            proven = f"not run in full: {', '.join(self.unproven)}"
        speed = "not measured" if self.time is None else f"{self.time:.2f}x the time"
        return proven if self.time == 1 else f"{proven}; {speed} of {FALLBACK}"

    def plugin(self, name: str, why: str) -> PluginSpec:
        """The plugin under a name, with one device unless a client asks for more.

        Args:
            name: of the plugin.
            why: it is the plugin `cpu`, or what makes it that.

        Raises:
            PluginNotFound: the wheel is not installed.
        """
        own = name == NAME
        about = f"XLA on the host's processor, {self.name} ({self.standing}"
        if self.known_wrong:
            about += f"; known wrong: {', '.join(self.known_wrong)}"
        about += f"); {why}"
        return PluginSpec(
            name=name,
            library=self.library(),
            options={"cpu_device_count": 1},
            option_types=self.option_types,
            # Otherwise each client logs its options to standard error.
            environment={"TF_CPP_MIN_LOG_LEVEL": "1"},
            priority=0 if own else OTHERS_PRIORITY,
            description=about,
        )

    def platform(self) -> PlatformSpec:
        """The specification of its platform."""
        return _spec(self.compiler_flags, self.fatal_constants)


OTHERS_PRIORITY = -200
"""Priority of builds that are not the plugin `cpu`: below all that packages state."""

BUILDS: Mapping[str, Build] = {
    build.name: build
    for build in (
        Build(
            name="xla-cpu-pjrt",
            file="xla_cpu_pjrt.so",
            version="0.0.1",
            api=81,
            stablehlo="1.13.3",
            passed=frozenset(SUITES),
            time=1.0,
            compiler_flags={**_NO_XNNPACK, **_NO_FAST_MIN_MAX},
        ),
        Build(
            name="fastatomstruct-xla-cpu",
            file="libpjrt_cpu.so",
            version="2026.6.23",
            api=106,
            stablehlo="1.16.1",
            passed=frozenset({"conformance", "faults"}),
            time=1.10,
        ),
        Build(
            name="lammps-jax-pjrt-cpu",
            file="pjrt_c_api_cpu_plugin.so",
            version="0.11.2",
            api=115,
            stablehlo="1.20.0",
            passed=frozenset({"conformance", "faults"}),
            time=1.04,
            option_types={**_DEVICES, "asynchronous": bool, "process_id": range(1 << 20)},
            compiler_flags={**_NO_FAST_MIN_MAX, **_NO_YNNPACK},
            fatal_constants=("float6_e2m3fn", "float6_e3m2fn"),
            known_wrong=("no conversions of 6-bit floats",),
        ),
    )
}
"""The known builds, the oldest API first."""


def platform() -> PlatformSpec:
    """What makes XLA's CPU plugins give wrong results or end the process, by PJRT API version."""
    flags = {
        name: value for build in BUILDS.values() for name, value in build.compiler_flags.items()
    }
    fatal = {name: None for build in BUILDS.values() for name in build.fatal_constants}
    versions = {range(build.api, build.api + 1): build.platform() for build in BUILDS.values()}
    return _spec(flags, tuple(fatal), versions)


def _spec(
    flags: Mapping[str, Override],
    fatal: tuple[str, ...],
    versions: Mapping[range, PlatformSpec] | None = None,
) -> PlatformSpec:
    return PlatformSpec(
        NAME,
        compiler_flags=flags,
        tuning_flags=_WIDE if has_wide_vectors() else {},
        ffi_name="HOST",
        option_types=_DEVICES,
        fatal_constants=fatal,
        call_forms=_CALL_FORMS,
        versions=versions or {},
        program_flags=flags_for,
        exact_products=True,
    )


def plugins() -> list[PluginSpec]:
    """The plugin `cpu`, and each other installed build under the name of its wheel.

    Raises:
        PluginNotFound: no build is installed, or not the one that `PJRT_BRIDGE_CPU_BUILD` names.
        VariableError: that names no known build.
    """
    own = chosen()
    others = (build for build in BUILDS.values() if build is not own and _is_installed(build))
    if environment.value(VARIABLE):
        why = f"{VARIABLE} names it"
    elif own.unproven:
        why = "no installed build passes all suites"
    else:
        why = "the fastest installed build that passes all suites"
    return [
        own.plugin(NAME, why),
        *(
            build.plugin(build.name, f"{VARIABLE}={build.name} makes it {NAME!r}")
            for build in others
        ),
    ]


def chosen() -> Build:
    """The build that is the plugin `cpu`: the one that is named, else the best installed one.

    The best is the fastest of those that passed all suites; where none did, the fastest.

    Raises:
        VariableError: `PJRT_BRIDGE_CPU_BUILD` names no known build.
    """
    named = environment.value(VARIABLE)
    if named:
        if named not in BUILDS:
            raise VariableError(f"{VARIABLE}: found {named!r}, expected one of {', '.join(BUILDS)}")
        return BUILDS[named]
    installed = [build for build in BUILDS.values() if _is_installed(build)]
    return min(installed, key=lambda build: build.rank, default=BUILDS[FALLBACK])


def _is_installed(build: Build) -> bool:
    try:
        build.library()
    except PluginNotFound:
        return False
    return True
