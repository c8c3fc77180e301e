import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_a_worker_begins_where_neither_torch_nor_the_bridge_is_installed() -> None:
    """So that an interpreter with JAX and NumPy alone can run one."""
    program = """
import sys
import benchmarks.worker
loaded = {name.partition(".")[0] for name in sys.modules}
print(*sorted(loaded & {"torch", "jax", "jaxlib", "pjrt_bridge", "transformers", "rich", "typer",
    "tensorflow"}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
