"""Executables that run another program from one call to the next."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from pjrt_bridge.errors import Closed, SignatureMismatch
from pjrt_bridge.runtime import Client
from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER
from tests import programs
from tests.conftest import Census
from tests.runtime.dispatch.launching import Launcher
from tests.runtime.ownership.pending import Pending

ONES = torch.ones(64)
MULTIPLY = programs.elementwise("tensor<64xf32>", op="multiply")


def test_the_next_call_runs_it_on_every_way(no_leaks: Census, client: Client) -> None:
    with client.compile(programs.ADD) as executable:
        launcher = Launcher(executable)
        threes = np.full(64, 3, np.float32)
        executable.take_over(client.compile(MULTIPLY))
        (result,) = executable(threes, threes)
        assert np.asarray(result).tolist() == [9.0] * 64
        three = torch.full((64,), 3.0)
        for found in (launcher(three, three), launcher.call(three, three)):
            assert found[0].tolist() == [9.0] * 64
        assert Launcher(executable).call(three, three)[0].tolist() == [9.0] * 64


def test_what_is_under_way_goes_on(no_leaks: Census, client: Client) -> None:
    value = Pending(client, np.full(64, 5, np.float32))
    with client.compile(programs.ADD) as executable:
        launcher = Launcher(executable, [value.buffer])
        launch = launcher.start(ONES)
        executable.take_over(client.compile(MULTIPLY))
        value.arrive()
        launch.finish()
        assert launch.tensors()[0].tolist() == [6.0] * 64
        assert launcher(ONES)[0].tolist() == [5.0] * 64


def test_it_writes_into_its_argument_as_the_one_before(no_leaks: Census, client: Client) -> None:
    aliased = programs.elementwise(
        "tensor<64xf32>", op="multiply", attributes="{tf.aliasing_output = 0 : i32}"
    )
    with client.compile(programs.ALIASED_ADD) as executable:
        form = ValueSpec.row_major(executable.outputs[0])
        plan = executable.plan(
            [plans.BoundParameter(0, form, written=True), plans.BoundParameter(1, form)],
            [form],
            ADAPTER.exchange(),  # type: ignore[arg-type]
            targets=[0],
        )
        value, kept = torch.full((64,), 4.0), plans.PinnedBuffers([None, None], [0, 0])
        three = torch.full((64,), 3.0)
        assert plan.call((value, three), kept.parts) == []
        executable.take_over(client.compile(aliased))
        assert plan.call((value, three), kept.parts) == []
        assert value.tolist() == [21.0] * 64


def test_both_end_with_it(no_leaks: Census, client: Client) -> None:
    executable = client.compile(programs.ADD)
    launcher, other = Launcher(executable), client.compile(MULTIPLY)
    executable.take_over(other)
    executable.close()
    for one in (executable, other):
        with pytest.raises(Closed, match="was closed"):
            one(ONES.numpy(), ONES.numpy())
    with pytest.raises(Closed, match="was closed"):
        launcher(ONES, ONES)
    # One that comes too late ends at once.
    late = client.compile(MULTIPLY)
    executable.take_over(late)
    with pytest.raises(Closed, match="was closed"):
        executable(ONES.numpy(), ONES.numpy())


@pytest.mark.parametrize("other", [programs.ALIASED_ADD, programs.SINK])
def test_it_takes_and_gives_the_same(client: Client, other: str) -> None:
    with (
        client.compile(programs.ADD) as executable,
        client.compile(other) as found,
        pytest.raises(SignatureMismatch, match=r"cannot become .*: found signature .*, expected"),
    ):
        executable.take_over(found)


def test_threads_call_it_meanwhile(no_leaks: Census, client: Client) -> None:
    two = torch.full((64,), 2.0)
    three = torch.full((64,), 3.0)
    with client.compile(programs.ADD) as executable:
        launcher = Launcher(executable)
        found: set[float] = set()
        over = threading.Event()

        def call() -> None:
            while not over.is_set():
                found.add(launcher.call(two, three)[0].sum().item())
                found.add(launcher(two, three)[0].sum().item())
                (result,) = executable(two.numpy(), three.numpy())
                found.add(float(np.asarray(result).sum()))

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for turn in range(6):
            executable.take_over(client.compile(programs.ADD if turn % 2 else MULTIPLY))
        over.set()
        for thread in threads:
            thread.join(60)
    assert found <= {5.0 * 64, 6.0 * 64}
