"""Compiled programs on disk: what is the same is loaded, what differs is compiled."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from pjrt_bridge.errors import BridgeWarning, OptionError
from pjrt_bridge.runtime import Client, CompileOptions, Executable, Plugin
from pjrt_bridge.runtime.compile import compile_cache
from pjrt_bridge.runtime.compile.cache import Cache
from pjrt_bridge.stablehlo import Program

MATMUL = """
module @square {
  func.func @main(%a: tensor<64x64xf32>) -> tensor<64x64xf32> {
    %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
      : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    return %0 : tensor<64x64xf32>
  }
}
"""
DONATING = """
func.func @main(%a: tensor<4096xf32> {tf.aliasing_output = 0 : i32}) -> tensor<4096xf32> {
  %0 = stablehlo.add %a, %a : tensor<4096xf32>
  return %0 : tensor<4096xf32>
}
"""


@pytest.fixture
def cache(
    client: Client, pair: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cache]:
    """The cache in a folder of its own, which stores everything."""
    # To find out whether they are known clients compile a program of their own.
    assert client.safe_flags == pair.safe_flags
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", str(tmp_path))
    monkeypatch.setattr(compile_cache, "WORTH_STORING", 0)
    found = compile_cache.compile_cache()
    assert found is not None
    assert found.folder.is_relative_to(tmp_path)
    yield found
    compile_cache._cache.cache_clear()


def run(executable: Executable) -> np.ndarray:
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) / 4096
    return executable(x)[0].to_numpy()


def test_the_second_time_is_loaded_and_gives_the_same(client: Client, cache: Cache) -> None:
    first = client.compile(MATMUL)
    second = client.compile(MATMUL)
    assert (first.cached, second.cached) == (False, True)
    np.testing.assert_array_equal(run(first), run(second))
    assert second.name == first.name == "square"
    assert second.signature == first.signature
    assert second.cost() == first.cost()
    assert second.memory_stats() == first.memory_stats()
    assert len(cache.entries()) == 1


def test_donation_survives(client: Client, cache: Cache) -> None:
    for cached in (False, True):
        executable = client.compile(DONATING)
        assert executable.cached is cached
        given = client.put(np.ones(4096, np.float32), copy=True)
        (result,) = executable.execute([given])
        assert result.to_numpy()[0] == 2
        assert given.state.name == "DONATED"


def test_what_compilation_depends_on_makes_another_entry(
    client: Client, pair: Client, cache: Cache
) -> None:
    narrow = CompileOptions(env={"xla_cpu_prefer_vector_width": 128})
    made = [
        client.compile(MATMUL),
        client.compile(MATMUL, options=narrow),
        client.compile(MATMUL.replace("[1] x [0]", "[0] x [0]")),
        pair.compile(MATMUL),
    ]
    assert [executable.cached for executable in made] == [False] * 4
    assert len(cache.entries()) == 4
    assert client.compile(MATMUL, options=narrow).cached


def test_clients_with_other_options_have_entries_of_their_own(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key() -> str | None:
        return compile_cache.key_of(client, b"code", b"options")

    first = key()
    assert first is not None
    assert key() == first
    # Which options there are besides the number of devices depends on the plugin's package.
    monkeypatch.setattr(client, "options", {**client.options, "another": 1})
    assert key() not in (None, first)


def test_another_processor_is_another_entry(
    client: Client, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.compile(MATMUL)
    monkeypatch.setattr(compile_cache, "processor", lambda: "a processor of another kind")
    assert not client.compile(MATMUL).cached


def test_an_environment_of_other_flags_is_another_entry(
    client: Client, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.compile(MATMUL)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert not client.compile(MATMUL).cached
    monkeypatch.delenv("XLA_FLAGS")
    assert client.compile(MATMUL).cached


@pytest.mark.parametrize("damage", ["truncated", "altered", "foreign", "empty"])
def test_a_damaged_entry_is_compiled_again_and_replaced(
    client: Client, cache: Cache, damage: str
) -> None:
    client.compile(MATMUL)
    (entry,) = cache.entries()
    path = cache.folder / f"{entry.key}.entry"
    good = path.read_bytes()
    bad = {
        "truncated": good[: len(good) // 2],
        "altered": good[:-20] + bytes(20),
        "foreign": b"something else",
        "empty": b"",
    }
    path.write_bytes(bad[damage])
    told = pytest.warns(BridgeWarning, match="it is damaged")
    with told if damage in ("foreign", "empty") else nullcontext():
        again = client.compile(MATMUL)
    assert not again.cached
    assert run(again).shape == (64, 64)
    assert client.compile(MATMUL).cached


@pytest.mark.parametrize("how", ["copied", "linked", "pipe", "sparse"])
def test_what_is_in_the_place_of_an_entry_is_not_executed(
    client: Client, cache: Cache, how: str
) -> None:
    """A program with the same signature would give another result without a word."""
    client.compile(MATMUL)
    (right,) = (cache.folder / f"{entry.key}.entry" for entry in cache.entries())
    client.compile(MATMUL.replace("[1] x [0]", "[0] x [0]"))
    (other,) = {cache.folder / f"{entry.key}.entry" for entry in cache.entries()} - {right}
    if how == "copied":
        right.write_bytes(other.read_bytes())
    else:
        right.unlink()
    if how == "linked":
        right.symlink_to(other)
    elif how == "pipe":
        os.mkfifo(right, 0o600)
    elif how == "sparse":
        right.touch(0o600)
        os.truncate(right, 6_000_000_000)
    with pytest.warns(BridgeWarning, match="is not used: it"):
        again = client.compile(MATMUL)
    assert not again.cached
    x = np.arange(4096, dtype=np.float32).reshape(64, 64) % 7
    np.testing.assert_array_equal(again(x)[0].to_numpy(), x @ x)
    assert client.compile(MATMUL).cached


def test_programs_that_call_functions_of_this_process_are_not_stored(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
    func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.custom_call @mine(%a) : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }
    """
    assert key(client, Program.parse(text)) is None
    assert key(client, Program.parse(MATMUL)) is not None
    monkeypatch.setattr(compile_cache, "_lasting", {"others"})
    compile_cache.keep_calls_of("mine")
    assert key(client, Program.parse(text)) is not None


def key(client: Client, program: Program) -> str | None:
    code = program.serialize_for(client.plugin.stablehlo_version)
    return compile_cache.key_of(client, code, b"", program.custom_calls)


def test_a_plugin_without_a_library_has_no_entries(plugin: Plugin) -> None:
    unknown = Plugin.from_address(plugin.api.address, name="at an address")
    with unknown.client({"cpu_device_count": 1}) as client:
        assert compile_cache.key_of(client, b"code", b"") is None


def test_quick_compilations_are_not_stored(
    client: Client, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_cache, "WORTH_STORING", 3600)
    client.compile(MATMUL)
    assert cache.entries() == []


@pytest.mark.parametrize("value", ["off", "OFF", "0", "false"])
def test_it_can_be_turned_off(client: Client, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", value)
    assert compile_cache.compile_cache() is None
    assert not client.compile(MATMUL).cached


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", str(tmp_path))
    for text, limit in [("", 2_000_000_000), ("4096", 4096), ("3k", 3000), ("1G", 1_000_000_000)]:
        monkeypatch.setenv("PJRT_BRIDGE_CACHE_LIMIT", text)
        found = compile_cache.compile_cache()
        assert found is not None
        assert found.limit == limit
    monkeypatch.setenv("PJRT_BRIDGE_CACHE_LIMIT", "much")
    with pytest.raises(OptionError, match="PJRT_BRIDGE_CACHE_LIMIT: found 'much'"):
        compile_cache.compile_cache()


def test_another_process_loads_what_this_one_compiled(client: Client, cache: Cache) -> None:
    client.compile(MATMUL)
    program = f"""
import sys
from pjrt_bridge.runtime.compile import compile_cache
from tests.plugins import cpu_plugin
import numpy as np
client = cpu_plugin().client({{"cpu_device_count": 1}})
executable = client.compile({MATMUL!r})
print(executable.cached, executable(np.eye(64, dtype=np.float32))[0].to_numpy().sum())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["True", "64.0"], done.stderr
