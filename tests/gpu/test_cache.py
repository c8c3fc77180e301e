"""Programs that one process has compiled for a GPU are loaded by the next one."""

from __future__ import annotations

import json
from pathlib import Path

from pjrt_bridge.runtime import Client
from tests.plugins import run_python

SOURCE = """
import os
os.environ["PJRT_BRIDGE_CACHE"] = sys.argv[1]
from pjrt_bridge import registry
from pjrt_bridge.runtime.compile import compile_cache
compile_cache.WORTH_STORING = 0
client = registry.client("cuda")
client.safe_flags
compiled = []
answers = {}
square = np.arange(512 * 512, dtype=np.float32).reshape(512, 512) % 3
for name, source, arguments in (
    ("matmul", programs.MATMUL, [square]),
    ("slow", programs.SLOW, [np.ones((512, 512), np.float32)]),
    ("add", programs.ADD, [np.ones(64, np.float32)] * 2),
    ("donor", programs.DONOR_ADD, [np.ones(64, np.float32)] * 2),
):
    with client.compile(source) as executable:
        if not executable.cached:
            compiled.append(name)
        answers[name] = float(executable(*arguments)[0].to_numpy().sum())
print(json.dumps([compiled, answers]))
"""


def test_the_second_process_compiles_nothing(gpu: Client, tmp_path: Path) -> None:
    prelude = "import json, sys\nimport numpy as np\nfrom tests import programs\n"
    first, second = (
        json.loads(run_python(SOURCE, str(tmp_path), prelude=prelude, timeout=200))
        for _ in range(2)
    )
    assert first[0] == ["matmul", "slow", "add", "donor"]
    assert second == [[], first[1]]
