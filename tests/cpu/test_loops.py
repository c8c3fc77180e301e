"""Which programs have loops that the compiler divides between threads, and their results."""

from __future__ import annotations

import numpy as np
import pytest

import pjrt_bridge
from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, Program, TensorType
from pjrt_bridge_cpu import loops

FLOAT32 = dtypes.of("float32")
DIVIDED = b"outer_dimension_partitions"


@pytest.fixture(params=[2, 16])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(loops, "cores", lambda: request.param)
    count: int = request.param
    return count


def chain(rows: int, times: int = 3, *, calls: bool = False) -> Program:
    """Loops over (rows, 1024) that reductions keep apart."""
    b = Builder([TensorType((rows, 1024), FLOAT32)])
    (x,) = b.parameters
    for _ in range(times):
        (total,) = b.reduce(
            [b.tanh(x)], [b.constant(0.0, FLOAT32)], (0,), lambda old, new: b.add(old[0], new[0])
        )
        x = b.add(x, b.broadcast_in_dim(total, x.shape, (1,)))
    if calls:
        (x,) = b.custom_call("pjrt_bridge.nothing.1", [x], [x.type])
    return b.finish([x])


def test_loops_over_small_arrays_are_whole(threads: int) -> None:
    assert loops.flags_for(chain(32)) == loops.WHOLE
    assert loops.flags_for(chain(32, calls=True)) == loops.WHOLE


def test_loops_over_large_arrays_are_divided(threads: int) -> None:
    assert loops.flags_for(chain(2048)) == {}
    assert loops.flags_for(chain(2048, calls=True)) == {}


def test_threads_stay_awake_in_programs_without_calls() -> None:
    if loops.cores() == 1:
        pytest.skip("one thread divides nothing")
    rows = int(0.7 * loops.LARGEST / (1 - 1 / loops.cores())) // 4096
    assert loops.flags_for(chain(rows, calls=True)) == loops.WHOLE
    assert loops.flags_for(chain(rows)) == {}


def test_the_mean_decides() -> None:
    b = Builder([TensorType((32, 1024), FLOAT32), TensorType((1024, 1024), FLOAT32)])
    small, large = b.parameters
    results = [b.tanh(large)]
    for _ in range(40):
        small = b.tanh(small)
    assert loops.flags_for(b.finish([small, *results])) == loops.WHOLE


@pytest.mark.parametrize("rows", [1, 8])
def test_what_is_never_divided_needs_no_flag(threads: int, rows: int) -> None:
    assert loops.flags_for(chain(rows)) == {}


def test_one_thread_needs_no_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "cores", lambda: 1)
    assert loops.flags_for(chain(32)) == {}


@pytest.mark.parametrize("rows", [32, 2048])
def test_the_compiler_does_so_and_results_agree(rows: int) -> None:
    client: Client = pjrt_bridge.client()
    program = chain(rows)
    x = np.random.default_rng(0).standard_normal((rows, 1024), np.float32) / 100
    expected = x
    for _ in range(3):
        expected = expected + np.tanh(expected).sum(0)
    with client.compile(program) as executable:
        (found,) = executable(x)
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-3, atol=1e-3)
        code, _ = executable.optimized()
    assert (DIVIDED in code) == (loops.cores() > 1 and rows == 2048)


def test_the_callers_passes_count() -> None:
    options = pjrt_bridge.CompileOptions(env={"xla_disable_hlo_passes": "dce"})
    with pjrt_bridge.client().compile(chain(256), options=options) as executable:
        code, _ = executable.optimized()
    assert (DIVIDED in code) == (loops.cores() > 1)
