"""Attacks by wrong arguments: every public function, with values of every kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import pjrt_bridge
from pjrt_bridge import compile_for, exported, registry
from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.exported import ExportedModel
from pjrt_bridge.runtime import CompileOptions
from pjrt_bridge.stablehlo import Program
from tests import programs
from tests.attacks.programs import client
from tests.attacks.registry import subject
from tests.attacks.samples import ONES, add, buffer, model, shown

ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 70, 1.5, float("nan"), "", "x", "\ud800", "a\0b", b"", b"\xff",
    [], [[]], [None], [-1], (1, 2, 3), {}, {"x": 1}, {1: None}, set(), range(3), object(), int,
    print, np.zeros(0), np.float32(1), np.array("x"), np.array([None]),
    np.zeros((2, 3), "datetime64[s]"), np.zeros(2, [("a", "i4")]), np.ones(64, ">f4"),
    np.ones((64, 2), np.float32)[:, 0], Path("nowhere"), Ellipsis,
)  # fmt: skip


TARGETS: dict[str, Callable[[Any], object]] = {
    "client": lambda v: pjrt_bridge.client(v),
    "client options": lambda v: pjrt_bridge.client("cpu", cpu_device_count=v),
    "topology": lambda v: pjrt_bridge.topology(v, "reference"),
    "topology plugin": lambda v: pjrt_bridge.topology("reference:2", v),
    "compile_for": lambda v: compile_for(v, "reference", topology="reference:2"),
    "compile_for plugin": lambda v: pjrt_bridge.compile_for(
        programs.ADD, v, topology="reference:2"
    ),
    "compile_for topology": lambda v: pjrt_bridge.compile_for(
        programs.ADD, "reference", topology=v
    ),
    "registry.load": lambda v: registry.load(v),
    "registry.select": lambda v: registry.select(v),
    "Plugin.client": lambda v: client().plugin.client(v),
    "compile": lambda v: client().compile(v),
    "compile options": lambda v: client().compile(programs.ADD, options=v),
    "put": lambda v: client().put(v),
    "put device": lambda v: client().put(ONES, v),
    "put memory": lambda v: client().put(ONES, memory=v),
    "put layout": lambda v: client().put(ONES, layout=v),
    "put copy": lambda v: client().put(ONES, copy=v),
    "device": lambda v: client().device(v),
    "extension": lambda v: client().extension(v),
    "deserialize": lambda v: client().deserialize(v),
    "call": lambda v: add()(v, v),
    "call second": lambda v: add()(ONES, v),
    "execute": lambda v: add().execute(v),
    "execute list": lambda v: add().execute([buffer(), v]),
    "execute donate": lambda v: add().execute([buffer(), buffer()], donate=v),
    "execute device": lambda v: add().execute([buffer(), buffer()], device=v),
    "submit": lambda v: add().submit(v),
    "execute_sharded": lambda v: add().execute_sharded(v),
    "execute_sharded list": lambda v: add().execute_sharded([v]),
    "copy_to": lambda v: buffer().copy_to(v),
    "from_text": lambda v: Program.from_text(v),
    "from_bytecode": lambda v: Program.from_bytecode(v),
    "from_portable_artifact": lambda v: Program.from_portable_artifact(v),
    "parse": lambda v: Program.parse(v),
    "from_file": lambda v: Program.from_file(v),
    "portable_artifact": lambda v: Program.parse(programs.ADD).portable_artifact(v),
    "serialize_for": lambda v: Program.parse(programs.ADD).serialize_for(v),
    "with_layouts": lambda v: Program.parse(programs.ADD).with_layouts(v),
    "with_layouts order": lambda v: Program.parse(programs.ADD).with_layouts({0: v}),
    "num_replicas": lambda v: CompileOptions(num_replicas=v),
    "device_assignment": lambda v: CompileOptions(device_assignment=v),
    "env": lambda v: CompileOptions(env=v),
    "env value": lambda v: CompileOptions(env={"x": v}),
    "portable": lambda v: CompileOptions(portable=v),
    "load": lambda v: ExportedModel.load(v),
    "with_weights": lambda v: model().with_weights(v),
    "with_weights value": lambda v: model().with_weights({"layer.weight": v}),
    "of_program": lambda v: exported.of_program(v, exporter="test"),
    "model call": lambda v: _loaded(lambda loaded: loaded(v)),
    "model call name": lambda v: _loaded(lambda loaded: loaded(x=v)),
    "compile_for model": lambda v: model().compile_for(v),
}


def _loaded(use: Callable[[Any], object]) -> None:
    with model().load_on(client()) as loaded:
        use(loaded)


@cache
def _pairs() -> list[tuple[str, int]]:
    return list(itertools.product(TARGETS, range(len(ODD))))


@subject(len(TARGETS) * len(ODD))
def wrong_arguments(number: int) -> None:
    name, odd = _pairs()[number]
    value = ODD[odd]
    try:
        TARGETS[name](value)
    except PjrtBridgeError:
        raise
    except Exception as error:
        raise AssertionError(
            f"{name} of {shown(value)}: {type(error).__name__}: {error}"
        ) from error
