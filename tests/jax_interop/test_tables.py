"""The table that JAX gets, called by the bridge itself."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.errors import ErrorCode, PjrtError, RegistrationError
from pjrt_bridge.jax_interop.tables import table_for_jax
from pjrt_bridge.runtime import Client, CompileOptions, Plugin, native
from tests import programs
from tests.faults.replaced import Replaced
from tests.plugins import cpu_plugin, run_python

X = np.ones(64, np.float32)
FLAG = b"xla_cpu_use_xnnpack"


class Compiling:
    """A real table that keeps the options of every compilation, and may refuse some.

    Attributes:
        seen: the options.
    """

    def __init__(self, *, refuses: bytes | None = None) -> None:
        self.seen: list[bytes] = []
        self._refuses = refuses
        self.table = Replaced(cpu_plugin().api.address, {"Client_Compile": self._compile})

    def _compile(self, table: Replaced, args: Any) -> int | None:
        options = ctypes.string_at(args.compile_options, args.compile_options_size)
        self.seen.append(options)
        if self._refuses is not None and self._refuses in options:
            raise Status(ErrorCode.INVALID_ARGUMENT, f"no such flag in {len(options)} bytes")
        return table.real("Client_Compile", args)

    def client(self) -> Client:
        """Of a copy for JAX; the flags are not the bridge's own."""
        api = self.table.plugin("counted").api
        copy = Plugin.from_address(table_for_jax(api, guarded=False), name="copy")
        client = Client(copy, {"cpu_device_count": 1})
        client.__dict__["_accepted_flags"] = {}
        return client


def test_compiling_adds_the_flags_in_front() -> None:
    counted = Compiling()
    options = CompileOptions(env={"xla_cpu_prefer_vector_width": 256})
    with counted.client() as client, client.compile(programs.ADD, options=options) as add:
        np.testing.assert_array_equal(add(X, X)[0], X * 2)
    assert [seen.count(FLAG) for seen in counted.seen] == [1]
    assert counted.seen[0].endswith(options.serialize())


def test_a_plugin_that_does_not_know_the_flags_does_without() -> None:
    counted = Compiling(refuses=FLAG)
    with counted.client() as client, client.compile(programs.ADD) as add:
        np.testing.assert_array_equal(add(X, X)[0], X * 2)
    assert [FLAG in seen for seen in counted.seen] == [True, False]
    assert counted.seen[1] == CompileOptions().serialize()


def test_errors_are_those_of_the_plugin() -> None:
    with Compiling(refuses=b"").client() as client:
        with pytest.raises(PjrtError, match="no such flag") as raised:
            client.compile(programs.ADD)
        # Of the call without the flags, which asked for nothing that the caller did not.
        assert f"in {len(CompileOptions().serialize())} bytes" in str(raised.value)


def test_other_platforms_get_no_flags() -> None:
    from pjrt_bridge import registry
    from pjrt_bridge_reference import pjrt_bridge_plugins

    plugin = registry.load(pjrt_bridge_plugins())
    copy = Plugin.from_address(table_for_jax(plugin.api, guarded=True), name="copied")
    with Client(copy) as client, client.compile(programs.ADD) as add:
        np.testing.assert_array_equal(add(X, X)[0], X * 2)


def test_guards_need_the_compiled_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "module", None)
    with pytest.raises(RegistrationError, match=r"'cpu'.*compiled module, which is missing"):
        table_for_jax(cpu_plugin().api, guarded=True)
    table_for_jax(cpu_plugin().api, guarded=False)


def test_an_interrupt_while_compiling_comes_afterwards() -> None:
    run_python(
        """
        import signal, time
        from pjrt_bridge.jax_interop.tables import table_for_jax

        def interrupt(number, frame):
            raise KeyboardInterrupt

        copy = Plugin.from_address(table_for_jax(cpu_plugin().api, guarded=False), name="copy")
        client = Client(copy, {"cpu_device_count": 1})
        client.__dict__["_known_flags"] = {}
        signal.signal(signal.SIGALRM, interrupt)
        # Shells have it ignored in what they run in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        body = "".join(
            f"%{i + 1} = stablehlo.sine %{i} : tensor<64xf32>" + chr(10) for i in range(200)
        )
        text = '''func.func @main(%a: tensor<64xf32>) -> tensor<64xf32> {
          %0 = stablehlo.cosine %a : tensor<64xf32>
        ''' + body + "return %200 : tensor<64xf32> }"
        from pjrt_bridge.stablehlo import Program
        program = Program.from_text(text)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        interrupted = False
        try:
            executable = client.compile(program)
            time.sleep(5)
        except KeyboardInterrupt:
            interrupted = True
        assert interrupted
        # The plugin is as it was.
        with client.compile(programs.ADD) as add:
            assert np.asarray(add(np.ones(64, np.float32), np.ones(64, np.float32))[0])[0] == 2
        """
    )
