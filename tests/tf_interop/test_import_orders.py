"""TensorFlow, PyTorch, JAX and the plugin in one process, whichever comes first; and without it."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

STEPS = {
    "torch": """
import torch
def use_torch():
    x = torch.eye(8) / 2
    return float((x @ x).exp().sum())
""",
    "backend": """
import torch
def use_backend():
    return float(torch.compile(lambda x: (x @ x).exp().sum(), backend="pjrt")(torch.eye(8) / 2))
""",
    "tensorflow": """
import tensorflow as tf
def use_tensorflow():
    from pjrt_bridge import tf_interop
    def run(x):
        return tf.reduce_sum(tf.exp(x @ x)), tf.strings.as_string(tf.shape(x))
    return float(tf_interop.function(run)(tf.eye(8) / 2)[0])
""",
    "plugin": """
import pjrt_bridge, numpy as np
client = pjrt_bridge.client("cpu")
def use_plugin():
    b = pjrt_bridge.stablehlo.Program.from_text('''
        func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
          %y = stablehlo.dot %x, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
          %z = stablehlo.exponential %y : tensor<8x8xf32>
          return %z : tensor<8x8xf32>
        }''')
    (found,) = client.compile(b)(np.eye(8, dtype=np.float32) / 2)
    return float(np.asarray(found).sum())
""",
    "jax": """
import jax, jax.numpy as jnp
def use_jax():
    return float(jax.jit(lambda x: jnp.exp(x @ x).sum())(jnp.eye(8) / 2))
""",
}
"""Imports a framework, or makes a client, and defines a computation for it."""

QUIET = """
import warnings
from pjrt_bridge.errors import HostFallbackWarning
warnings.simplefilter("ignore", HostFallbackWarning)
"""

USE = """
for use in ({uses}):
    found = use()
    assert abs(found - 66.27220) < 1e-3, (use, found)
"""

# Others come up elsewhere: PyTorch first in these tests, TensorFlow first in docs/tensorflow.md.
ALWAYS = ("plugin", "tensorflow", "torch")
SHORT = [
    pytest.param(order, marks=[] if order == ALWAYS else pytest.mark.slow)
    for order in itertools.permutations(ALWAYS)
]
LONG = list(itertools.permutations(["backend", "tensorflow", "jax", "plugin"]))


def program(order: Sequence[str]) -> str:
    """Import in one order, compute in the other, and once more in the first."""
    uses = [f"use_{name}" for name in order]
    calls = ", ".join([*reversed(uses), *uses])
    return "".join(STEPS[name] for name in order) + QUIET + USE.format(uses=calls)


def start(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=200,
    )


def check(done: subprocess.CompletedProcess[str]) -> None:
    """The process ended well, and wrote nothing to standard error but what TensorFlow does."""
    lines = done.stderr.splitlines()
    others = [line for line in lines if not re.search("before absl::Init|oneDNN custom op", line)]
    assert (done.returncode, "".join(others)) == (0, ""), done.stderr


@pytest.mark.parametrize("order", SHORT, ids=lambda order: "-".join(order))
def test_any_order_of_imports_works(order: Sequence[str]) -> None:
    check(start(program(order)))


@pytest.mark.slow
@pytest.mark.parametrize("order", LONG, ids="-".join)
def test_any_order_of_imports_works_with_jax_and_compiled_models(order: Sequence[str]) -> None:
    check(start(program(order)))


def test_the_bridge_imports_no_tensorflow() -> None:
    done = start(
        "import sys, pjrt_bridge, pjrt_bridge.report.report, pjrt_bridge.cli.main; "
        "pjrt_bridge.client('cpu'); "
        "print([name for name in sys.modules if name.startswith(('tensorflow', 'keras'))])"
    )
    assert done.stdout == "[]\n", done.stderr


def test_a_missing_tensorflow_is_said() -> None:
    done = start(
        "import sys; sys.modules['tensorflow'] = None\n"
        "try:\n"
        "    from pjrt_bridge import tf_interop\n"
        "    tf_interop.function(lambda x: x)\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    assert "pip install 'pjrt-bridge[tf]'" in done.stdout, done.stdout + done.stderr
    check(done)
