from __future__ import annotations

from pathlib import Path

import pytest

from pjrt_bridge.errors import PluginLoadError, PluginNotFound
from pjrt_bridge.registry import load, plugins, wheel_library
from tests.registry.conftest import Site


def wheel(
    site: Site, group: str, module: str, *libraries: str, declared: bool = True
) -> list[Path]:
    """A vendor wheel whose module must never be imported."""
    folder = module.replace(".", "/")
    site.install(
        f"wheel-{module}",
        entry_points={group: {module.rpartition(".")[2]: module}} if declared else {},
        files={f"{folder}/__init__.py": "raise RuntimeError('a vendor module was imported')"}
        | {f"{folder}/{library}": "" for library in libraries},
    )
    return [site.folder / folder / library for library in libraries]


@pytest.mark.parametrize(
    ("group", "module", "library", "name"),
    [
        ("xla_plugins", "xla_plugins.xla_cpu_pjrt", "xla_cpu_pjrt.so", "cpu"),
        ("jax_plugins", "jax_plugins.xla_cuda12", "xla_cuda_plugin.so", "cuda12"),
        ("jax_plugins", "pjrt_plugin_tt", "lib/libtt.so", "tt"),
    ],
)
@pytest.mark.parametrize("record", [True, False])
def test_a_vendor_wheel_is_found_without_importing_it(
    site: Site, group: str, module: str, library: str, name: str, record: bool
) -> None:
    (path,) = wheel(site, group, module, library)
    if not record:
        next(site.folder.glob("*.dist-info/RECORD")).unlink()
    (info,) = plugins()
    assert (info.name, info.library, info.available) == (name, path, True)
    assert info.source == f"module {module} of wheel-{module} 1.0"
    assert info.priority < 0


def test_a_namespace_folder_counts_only_with_a_library(site: Site) -> None:
    (path,) = wheel(site, "jax_plugins", "jax_plugins.chip", "pjrt_chip.so", declared=False)
    wheel(site, "jax_plugins", "jax_plugins.nothing", declared=False)
    (info,) = plugins()
    assert (info.name, info.library, info.source) == ("chip", path, "module jax_plugins.chip")


LIBTPU = {"libtpu/__init__.py": "raise OSError", "libtpu/libtpu.so": ""}


def test_a_library_that_a_package_has_to_set_up_is_listed_and_not_loaded(site: Site) -> None:
    site.install("libtpu", files=LIBTPU)
    (info,) = plugins()
    assert (info.name, info.source) == ("tpu", "package libtpu")
    assert info.library == site.folder / "libtpu" / "libtpu.so"
    assert (info.available, info.spec) == (False, None)
    assert "pip install pjrt-bridge-tpu" in str(info)
    for asked in (None, "tpu", info):
        with pytest.raises(PluginNotFound, match="pip install pjrt-bridge-tpu"):
            load(asked)


def test_such_a_library_is_loaded_by_its_path(site: Site) -> None:
    """The user asked for it; here the file is none, which loading it finds."""
    site.install("libtpu", files=LIBTPU)
    with pytest.raises(PluginLoadError):
        load(f"tpu:{site.folder}/libtpu/libtpu.so")


def test_the_package_that_sets_it_up_replaces_it(site: Site) -> None:
    site.install("libtpu", files=LIBTPU)
    site.hook(
        "pjrt-bridge-tpu",
        "tpu_hook",
        """
        from pjrt_bridge.registry import wheel_library

        @hookimpl
        def pjrt_bridge_plugins():
            return PluginSpec("tpu", wheel_library("libtpu", "libtpu.so"), priority=200)
        """,
    )
    (info,) = plugins()
    assert (info.name, info.available, info.priority) == ("tpu", True, 200)


def test_extension_modules_are_no_plugins(site: Site) -> None:
    modules = ("_triton.cpython-311-x86_64-linux-gnu.so", "_ffi.abi3.so")
    _, _, path = wheel(site, "jax_plugins", "jax_plugins.chip", *modules, "libchip.so")
    (info,) = plugins()
    assert info.library == path


def test_helper_libraries_beside_the_plugin(site: Site) -> None:
    path, _ = wheel(site, "jax_plugins", "jax_plugins.chip", "chip_plugin.so", "libhelper.so")
    (info,) = plugins()
    assert info.library == path


@pytest.mark.parametrize(
    ("libraries", "reason"),
    [
        ([], "its folder holds no shared library"),
        (["pjrt_qnn.dll"], "its library pjrt_qnn.dll is for Windows, this is linux"),
        (["pjrt_plugin_metal_14.dylib"], "its library pjrt_plugin_metal_14.dylib is for macOS, "),
        (["a_pjrt.so", "b_pjrt.so"], "cannot tell which is the plugin: a_pjrt.so, b_pjrt.so; "),
    ],
)
def test_a_declared_wheel_without_one_library(
    site: Site, libraries: list[str], reason: str
) -> None:
    wheel(site, "jax_plugins", "jax_plugins.chip", *libraries)
    (info,) = plugins()
    assert (info.name, info.available) == ("chip", False)
    assert info.reason is not None
    assert info.reason.startswith(reason)


def test_a_hook_that_speaks_for_a_wheel_replaces_it(site: Site) -> None:
    (path,) = wheel(site, "jax_plugins", "jax_plugins.chip", "pjrt_chip.so")
    link = site.folder / "link.so"
    link.symlink_to(path)
    site.hook(
        "chip-bridge",
        "speaking_hook",
        f"@hookimpl\ndef pjrt_bridge_plugins():\n    return PluginSpec('c', {str(link)!r})",
    )
    (info,) = plugins()
    assert (info.name, info.library) == ("c", link)


def test_one_library_declared_in_both_groups_is_one_plugin(site: Site) -> None:
    (path,) = wheel(site, "jax_plugins", "jax_plugins.chip", "pjrt_chip.so")
    other = site.folder / "xla_plugins" / "chip"
    other.mkdir(parents=True)
    (other / "pjrt_chip.so").symlink_to(path)
    (info,) = plugins()
    assert info.available


def test_wheel_library_reads_the_distribution_alone(site: Site) -> None:
    site.install("chip-wheel", files={"chip/__init__.py": "raise OSError", "chip/lib/chip.so": ""})
    assert wheel_library("chip_wheel", "chip.so") == site.folder / "chip" / "lib" / "chip.so"


def test_wheel_library_says_what_to_install(site: Site) -> None:
    with pytest.raises(PluginNotFound, match="is not installed: pip install chip-wheel"):
        wheel_library("chip-wheel", "chip.so")
    site.install("chip-wheel", version="2.5")
    with pytest.raises(PluginNotFound, match=r"'chip-wheel' 2\.5 lists no file 'chip\.so'"):
        wheel_library("chip-wheel", "chip.so")
