"""Processes of one client of the reference plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.processes import run_processes

PROGRAMS = """
import json

IDENTITY = "func.func @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }"

def program(operation, result="3xf32", name="main"):
    return f'''
    module @{name} {{
      func.func @main(%x: tensor<3xf32>) -> tensor<{result}> {{
        {operation}
        return %0 : tensor<{result}>
      }}
    }}'''

def all_reduce(groups="[[0, 1]]", shape="1x2", name="main"):
    return program(f'''%0 = "stablehlo.all_reduce"(%x) ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
    }}) {{replica_groups = dense<{groups}> : tensor<{shape}xi64>}}
        : (tensor<3xf32>) -> tensor<3xf32>''', name=name)

def compiled(client, text, devices=(0, 1)):
    options = CompileOptions(
        num_replicas=len(devices), device_assignment=[[id] for id in devices])
    return client.compile(text, options=options)

def run(client, executable, value):
    '''What the devices of this process get, from the number `value + id` on device `id`.'''
    rows = [[client.put(np.full(3, value + each.id, np.float32), each)]
            for each in executable.devices]
    return [row[0].to_numpy().tolist() for row in executable.execute_sharded(rows)]
"""


def run_ranks(source: str, count: int, folder: Path, **arguments: Any) -> list[Any]:
    return run_processes(PROGRAMS + source, count, folder, **arguments)
