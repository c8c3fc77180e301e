"""Plugins as backends of JAX, in processes of their own: JAX makes its backends once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins import cpu_library, run_python

PRELUDE = """
import gc
import logging
import os
import sys
import warnings

import numpy as np

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
# JAX says of each platform that is not its own that it is experimental.
logging.getLogger("jax").setLevel(logging.ERROR)

from pjrt_bridge import jax_interop, registry
from pjrt_bridge.errors import *
from pjrt_bridge.registry import PluginSpec
from tests.faults.replaced import through_python

def says(kind, text, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")
"""


def run(source: str, *arguments: str, timeout: float = 60) -> str:
    return run_python(source, *arguments, prelude=PRELUDE, timeout=timeout)


def test_decompositions_that_jax_has_for_its_own_platforms() -> None:
    run(
        """
        names = jax_interop.register(["cpu"])
        import jax
        import jax.numpy as jnp
        x = np.float32([[2, 1, 0], [1, 3, 1], [0, 1, 4]])
        with jax.default_device(jax.devices(names["cpu"])[0]):
            values = jnp.linalg.eigvalsh(x)
            singular = jnp.linalg.svd(x[:2], compute_uv=False)
        np.testing.assert_allclose(values, np.linalg.eigvalsh(x), rtol=1e-5)
        np.testing.assert_allclose(singular, np.linalg.svd(x[:2], compute_uv=False), rtol=1e-5)
        """,
        timeout=240,
    )


def test_names_options_and_several_devices() -> None:
    run(
        """
        names = jax_interop.register(options={"cpu": {"cpu_device_count": 2}})
        assert names["cpu"] == "cpu_pjrt" and names["reference"] == "reference", names
        import jax
        assert len(jax.devices("cpu_pjrt")) == 2
        assert len(jax.devices("reference")) == 1
        # Nobody asked for another default.
        assert jax.devices() == jax.devices("cpu")

        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        mesh = Mesh(np.array(jax.devices("cpu_pjrt")), "x")
        values = np.arange(8, dtype=np.float32)
        array = jax.device_put(values, NamedSharding(mesh, PartitionSpec("x")))
        assert [shard.data.shape for shard in array.addressable_shards] == [(4,), (4,)]
        assert float(jax.jit(lambda a: (a * a).sum())(array)) == float((values * values).sum())

        # JAX has its backends by now.
        assert jax_interop.register() == names
        says(RegistrationError, "options come too late",
             jax_interop.register, ["cpu"], options={"cpu": {"cpu_device_count": 1}})
        late = through_python(registry.load("cpu").api.address)
        says(RegistrationError, "before the first use of a device",
             jax_interop.register, [PluginSpec("late", address=late.address)])
        """
    )


def test_plugins_without_a_device_are_left_out() -> None:
    run(
        """
        from dataclasses import replace
        found = registry.plugins()
        # What the package of an accelerator says on a machine without one.
        idle = [
            replace(info, spec=replace(info.spec, no_device="none is plugged in", priority=200))
            if info.name == "reference" else info
            for info in found
        ]
        registry.plugins = lambda **options: idle
        names = jax_interop.register()
        assert "cpu" in names and "reference" not in names, names
        import jax
        assert jax.devices("cpu_pjrt")
        """
    )


def test_priority_makes_the_default() -> None:
    run(
        f"""
        spec = PluginSpec("first", library={str(cpu_library())!r}, priority=10)
        assert jax_interop.register([spec]) == {{"first": "first"}}
        import jax
        assert jax.devices()[0] in jax.devices("first")
        assert len(jax.devices()) == 4
        """
    )


COMPUTE = """
import jax
import jax.numpy as jnp

x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)

def loss(w):
    return jnp.sum(jnp.tanh(w @ w.T)) + jnp.exp(w).mean()

expected = jax.value_and_grad(loss)(x)
keys = jax.random.normal(jax.random.key(3), (4,))
device = jax.devices(NAME)[0]
with jax.default_device(device):
    there = jax.device_put(x, device)
    found = jax.jit(jax.value_and_grad(loss))(there)
    assert found[1].devices() == {device}
    for mine, theirs in zip(found, expected):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.random.normal(jax.random.key(3), (4,)), keys, atol=1e-6)
    assert jnp.arange(10)[::2].tolist() == [0, 2, 4, 6, 8]
    scanned, _ = jax.lax.scan(lambda c, a: (c + a, None), jnp.zeros(3), there)
    np.testing.assert_allclose(scanned, x.sum(0), atol=1e-6)
assert np.array_equal(jax.device_put(there, jax.devices("cpu")[0]), x)

# Functions of C drop their arguments while their exception is on its way.
for value in range(3):
    try:
        [].remove(jax.device_put(x, device))
    except ValueError as error:
        assert "not in list" in str(error) and error.__context__ is None
    try:
        [].remove(jax.jit(lambda a: a * value).lower(there).compile())
    except ValueError as error:
        assert "not in list" in str(error) and error.__context__ is None
gc.collect()
says(ValueError, "Incompatible shapes", lambda: jax.jit(jnp.add)(there, jax.device_put(x[0, :2])))
"""


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_numpy_on_it(name: str) -> None:
    run(f"NAME = jax_interop.register([{name!r}])[{name!r}]\n" + COMPUTE)


def test_numpy_on_a_table_whose_functions_are_all_pythons() -> None:
    run(
        """
        wrapped = through_python(registry.load("cpu").api.address)
        spec = PluginSpec("wrapped", address=wrapped.address, options={"cpu_device_count": 1})
        NAME = jax_interop.register([spec])["wrapped"]
        """
        + COMPUTE.replace("\n", "\n        ")
        + """
        assert wrapped.calls["Client_Compile"] > 3
        assert wrapped.calls["Buffer_Destroy"] > 6
        """
    )


def test_weights_that_are_updated_in_place_are_multiplied_with_their_new_values() -> None:
    """Without the bridge's flags the plugin multiplies with what lay there when it was compiled."""
    run(
        """
        jax_interop.register(["cpu"])
        import jax
        device = jax.devices("cpu_pjrt")[0]
        rng = np.random.default_rng(0)
        put = lambda *shape: jax.device_put(rng.normal(size=shape).astype(np.float32), device)
        x, w = put(256, 768), put(768, 2304)
        product = jax.jit(lambda x, w: x @ w)
        update = jax.jit(lambda w: w * -1.5, donate_argnums=0)
        places = set()
        for _ in range(3):
            places.add(w.unsafe_buffer_pointer())
            np.testing.assert_allclose(product(x, w), np.asarray(x) @ np.asarray(w), atol=0.01)
            w = update(w)
        assert len(places) == 1
        # Its own flags count more, and one that it does not know is an error as it always was.
        own = product.lower(x, w).compile({"xla_cpu_use_xnnpack": True})
        assert own(x, w).shape == (256, 2304)
        says(Exception, "no_such_flag", product.lower(x, w).compile, {"no_such_flag": True})
        """
    )


def test_one_plugin_without_devices_leaves_jax_alone() -> None:
    run(
        """
        def refuse(table, args):
            raise Status(ErrorCode.NOT_FOUND, "no device is plugged in")

        from pjrt_bridge.abi.implementation_objects import Status
        from tests.faults.replaced import Replaced
        table = Replaced(registry.load("cpu").api.address, {"Client_Create": refuse})
        jax_interop.register([PluginSpec("unplugged", address=table.address)])
        import jax
        assert jax.devices()[0].platform == "cpu"
        says(RuntimeError, "no device is plugged in", jax.devices, "unplugged")
        """
    )


def test_wrong_names_and_options(tmp_path: Path) -> None:
    bad = tmp_path / "libbad.so"
    bad.write_text("no library")
    run(
        f"""
        register = jax_interop.register
        says(PluginNotFound, "'nope' was not found", register, ["nope"])
        says(PluginLoadError, "cannot be loaded", register, [{str(bad)!r}])
        says(OptionError, "expected a list of names", register, "cpu")
        says(OptionError, "'gpu', expected one of cpu", register, ["cpu"], options={{"gpu": {{}}}})
        says(OptionError, "expected int", register, ["cpu"],
             options={{"cpu": {{"cpu_device_count": "2"}}}})
        says(OptionError, "no option 'devices'", register, ["cpu"],
             options={{"cpu": {{"devices": 2}}}})
        # What was refused can be said better.
        os.environ["PJRT_BRIDGE_PLUGIN"] = "bad:{bad}"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            names = register()
        assert "cpu" in names and "bad" not in names, names
        (warning,) = [w for w in caught if issubclass(w.category, BridgeWarning)]
        assert "plugin 'bad' is no backend of JAX" in str(warning.message), warning
        """
    )


def test_what_jax_found_by_itself_keeps_its_backend() -> None:
    run(
        f"""
        os.environ["PJRT_NAMES_AND_LIBRARY_PATHS"] = "mine:{cpu_library()}"
        assert jax_interop.register(["cpu"]) == {{"cpu": "mine"}}
        import jax
        assert len(jax.devices("mine")) == 4
        """
    )


def test_without_the_compiled_module() -> None:
    run(
        """
        os.environ["PJRT_BRIDGE_DISPATCH"] = "python"
        import importlib
        from pjrt_bridge.runtime import native
        importlib.reload(native)
        says(RegistrationError, "compiled module, which is missing", jax_interop.register,
             ["reference"])
        assert jax_interop.register(["cpu"]) == {"cpu": "cpu_pjrt"}
        """
    )


def test_without_jax() -> None:
    run(
        """
        sys.modules["jax"] = None
        says(RegistrationError, "pip install 'pjrt-bridge[jax]'", jax_interop.register)
        says(RegistrationError, "pip install", jax_interop.from_lowered, object())
        """
    )
