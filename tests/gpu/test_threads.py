"""Several threads of the host that use a GPU at once, and many executions under way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pjrt_bridge.runtime import Client, Executable
from tests import programs
from tests.conftest import Census

THREADS = 8
STEPS = 200


def test_threads_that_execute_one_program(gpu: Client, no_leaks: Census) -> None:
    def work(number: int) -> bool:
        state = gpu.put(np.full(64, number, np.float32))
        with gpu.put(np.full(64, 1, np.float32)) as one:
            for _ in range(STEPS):
                (state,) = add.execute([state, one])
            return bool((state.to_numpy() == number + STEPS).all())

    with gpu.compile(programs.ADD) as add, ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(work, range(4 * THREADS)))


def test_threads_that_compile_put_and_read(gpu: Client, no_leaks: Census) -> None:
    def work(size: int) -> bool:
        array = np.arange(size, dtype=np.float32)
        with gpu.compile(programs.elementwise(f"tensor<{size}xf32>")) as executable:
            return all(
                np.array_equal(executable(array * n, array)[0].to_numpy(), array * (n + 1))
                for n in range(20)
            )

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(work, range(1000, 1000 + 3 * THREADS)))


def test_thousands_under_way(gpu: Client, no_leaks: Census) -> None:
    def chain(add: Executable) -> None:
        results = []
        with gpu.put(np.ones(64, np.float32)) as one:
            state = one
            for _ in range(3000):
                (state,) = add.execute([state, one])
                results.append(state)
            # The last is ready after all others.
            assert (state.to_numpy() == 3001).all()
            for number in (0, 1, 1500, 2998):
                assert (results[number].to_numpy() == number + 2).all()

    with gpu.compile(programs.ADD) as add:
        chain(add)
