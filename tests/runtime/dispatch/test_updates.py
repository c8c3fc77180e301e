"""Results that a call of the dispatcher writes into its arguments: where, when, and when not."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from pjrt_bridge.abi.api import Api
from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.runtime import Client
from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER
from tests import programs
from tests.conftest import Census
from tests.plugins import require_dispatcher
from tests.runtime.dispatch.launching import FailingFunction, too_small

require_dispatcher()

NOTHING_KEPT = plans.PinnedBuffers([None, None], [0, 0])


class Updating:
    """A plan whose calls write into their arguments.

    Args:
        client: compiles it.
        program: takes two values.
        targets: for each result the position of the value that it is written into.
        written: parameters whose memory the program takes over.

    Attributes:
        told: the tensors that the framework was told of, for each call.
    """

    def __init__(
        self,
        client: Client,
        program: str,
        targets: list[int | None],
        written: frozenset[int] = frozenset(),
    ) -> None:
        exchange = ADAPTER.exchange()
        assert exchange is not None
        self.executable = client.compile(program)
        self.told: list[tuple[Any, ...]] = []
        self.plan = self.executable.plan(
            [
                plans.BoundParameter(at, ValueSpec.row_major(parameter.type), at in written)
                for at, parameter in enumerate(self.executable.signature.parameters)
            ],
            list(map(ValueSpec.row_major, self.executable.outputs)),
            replace(exchange, wrote=self.told.append),
            targets=targets,
        )

    def __call__(self, *values: Any, kept: plans.PinnedBuffers = NOTHING_KEPT) -> Any:
        """What `Plan.call` gives."""
        return self.plan.call(values, kept.parts)


@pytest.fixture
def updating(client: Client) -> Iterator[Updating]:
    """Writes minus the first value into it, the second into a third that is not read; gives 7."""
    made = Updating(client, programs.TWO_RESULTS, [0, None, 2])
    yield made
    made.executable.close()


def after_data_pointers(monkeypatch: pytest.MonkeyPatch, function: Callable[[Any], None]) -> None:
    """Have a function see each answer of the plugin to where a buffer's elements are."""
    entry = plans._entry

    def replaced(api: Api, name: str) -> tuple[int, int]:
        if name != "Buffer_OpaqueDeviceMemoryDataPointer":
            return entry(api, name)
        found = FailingFunction(api, name, function, late=True)
        found.active = True
        return found.entry

    monkeypatch.setattr(plans, "_entry", replaced)


def values() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        torch.arange(4, dtype=torch.float32),
        torch.tensor([5, 6], dtype=torch.int32),
        torch.zeros(2, dtype=torch.int32),
    )


def seen(given: tuple[torch.Tensor, ...]) -> list[list[float]]:
    return [value.tolist() for value in given]


UNTOUCHED, UPDATED = (
    [[0, 1, 2, 3], [5, 6], [0, 0]],
    [[0, -1, -2, -3], [5, 6], [5, 6]],
)


def test_values_get_results_and_the_others_are_given(no_leaks: Census, updating: Updating) -> None:
    given = values()
    addresses = [value.data_ptr() for value in given]
    (found,) = updating(*given)
    assert found.item() == 7
    assert seen(given) == UPDATED
    assert [value.data_ptr() for value in given] == addresses
    ((first, third),) = updating.told
    assert first is given[0]
    assert third is given[2]


def test_launches_give_all_results_and_write_nothing(updating: Updating) -> None:
    given = values()
    launch = updating.plan.launch(list(given), NOTHING_KEPT.parts, None)
    launch.finish()
    assert seen(tuple(launch.tensors())) == [[0, -1, -2, -3], 7, [5, 6]]
    assert seen(given) == UNTOUCHED
    assert not updating.told


@pytest.mark.parametrize("shape", [(), (0, 3), (1, 1)])
def test_numbers_and_nothing(no_leaks: Census, client: Client, shape: tuple[int, ...]) -> None:
    text = "".join(f"{size}x" for size in shape)
    add = Updating(client, programs.elementwise(f"tensor<{text}f32>"), [0])
    x = torch.ones(shape)
    assert add(x, torch.ones(shape)) == []
    assert torch.equal(x, torch.full(shape, 2.0))
    add.executable.close()


def test_a_view_is_written_and_nothing_beside_it(client: Client) -> None:
    add = Updating(client, programs.ADD, [0])
    memory = torch.zeros(16 + 64 + 16)
    assert add(memory[16:80], torch.ones(64)) == []
    assert memory.tolist() == [0.0] * 16 + [1.0] * 64 + [0.0] * 16


def test_one_value_twice(client: Client) -> None:
    add = Updating(client, programs.ADD, [0])
    x = torch.ones(64)
    assert add(x, x) == []
    assert x.tolist() == [2.0] * 64


def test_a_value_that_is_kept_is_written_where_it_is(no_leaks: Census, client: Client) -> None:
    add = Updating(client, programs.ADD, [0])
    x, one = torch.zeros(64), torch.ones(64)
    kept = plans.PinnedBuffers([client.put(x), None], [x.data_ptr(), 0])
    for step in range(1, 4):
        assert add(x, one, kept=kept) == []
        assert x.tolist() == [float(step)] * 64
    before = x.detach()
    x.data = torch.zeros(64)
    # It is in other memory.
    assert add(x, one, kept=kept) is None
    assert before.tolist() == [3.0] * 64
    assert x.tolist() == [0.0] * 64
    assert len(add.told) == 3
    del kept
    add.executable.close()


@pytest.mark.parametrize("aligned", [True, False])
def test_memory_that_a_program_takes_over(
    no_leaks: Census, client: Client, monkeypatch: pytest.MonkeyPatch, aligned: bool
) -> None:
    """It is written there; what cannot be taken over is copied to its place."""
    places = list[int]()

    def noted(args: Any) -> None:
        places.append(args.device_memory_ptr)

    after_data_pointers(monkeypatch, noted)
    add = Updating(client, programs.ALIASED_ADD, [0], frozenset([0]))
    x = torch.zeros(65)[0 if aligned else 1 :][:64]
    for step in range(1, 4):
        assert add(x, torch.ones(64)) == []
        assert x.tolist() == [float(step)] * 64
    assert [place == x.data_ptr() for place in places] == [aligned] * 3
    assert len(add.told) == 3
    add.executable.close()


# -- what does not fit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "other"),
    [
        (0, torch.zeros(5)),
        (0, torch.zeros(4, dtype=torch.int32)),
        (0, torch.zeros(8)[::2]),
        (2, torch.zeros(3, dtype=torch.int32)),
        (2, torch.zeros(2)),
        (2, torch.zeros(4, dtype=torch.int32)[::2]),
        (2, torch._neg_view(torch.zeros(2, dtype=torch.int32))),
        (2, torch.zeros(2, dtype=torch.int32).to_sparse()),
        (2, None),
    ],
)
def test_values_that_cannot_be_written_as_they_are(
    no_leaks: Census, updating: Updating, position: int, other: Any
) -> None:
    given = values()
    changed = [*given]
    changed[position] = other
    assert updating(*changed) is None
    assert seen(given) == UNTOUCHED
    assert not updating.told


def test_a_value_that_is_missing(updating: Updating) -> None:
    given = values()
    with pytest.raises(IndexError):
        updating(*given[:2])
    assert seen(given) == UNTOUCHED


# -- failures --------------------------------------------------------------------------------------


def nowhere(args: Any) -> None:
    args.device_memory_ptr = None


@pytest.mark.parametrize(
    ("function", "spoil", "late"),
    [
        ("Client_BufferFromHostBuffer", too_small, False),
        ("LoadedExecutable_Execute", too_small, False),
        ("Event_Await", too_small, False),
        ("Buffer_OpaqueDeviceMemoryDataPointer", too_small, False),
        ("Buffer_OpaqueDeviceMemoryDataPointer", nowhere, True),
    ],
)
def test_where_the_plugin_fails_nothing_is_written(
    no_leaks: Census,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    spoil: Callable[[Any], None],
    late: bool,
) -> None:
    entry, faults = plans._entry, list[FailingFunction]()

    def faulty(api: Api, name: str) -> tuple[int, int]:
        if name != function:
            return entry(api, name)
        faults.append(FailingFunction(api, name, spoil, late=late))
        return faults[-1].entry

    monkeypatch.setattr(plans, "_entry", faulty)
    updating = Updating(client, programs.TWO_RESULTS, [0, None, 2])
    given = values()
    (fault,) = faults
    fault.active = True
    with pytest.raises(PjrtBridgeError):
        updating(*given)
    assert seen(given) == UNTOUCHED
    assert not updating.told
    fault.active = False
    (found,) = updating(*given)
    assert found.item() == 7
    assert seen(given) == UPDATED
    updating.executable.close()


def test_one_result_that_is_not_there_keeps_the_others_from_being_written(
    no_leaks: Census, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = [0]

    def third(args: Any) -> None:
        count[0] += 1
        if count[0] == 3:
            args.device_memory_ptr = None

    after_data_pointers(monkeypatch, third)
    updating = Updating(client, programs.TWO_RESULTS, [0, None, 2])
    given = values()
    with pytest.raises(PjrtBridgeError):
        updating(*given)
    assert seen(given) == UNTOUCHED
    updating.executable.close()


def test_what_the_framework_raises_reaches_the_caller(no_leaks: Census, client: Client) -> None:
    exchange = ADAPTER.exchange()
    assert exchange is not None

    def refuses(tensors: tuple[Any, ...]) -> None:
        raise LookupError("no count")

    with client.compile(programs.ADD) as executable:
        form = ValueSpec.row_major(executable.outputs[0])
        plan = executable.plan(
            [plans.BoundParameter(0, form), plans.BoundParameter(1, form)],
            [form],
            replace(exchange, wrote=refuses),
            targets=[0],
        )
        with pytest.raises(LookupError, match="no count"):
            plan.call((torch.ones(64), torch.ones(64)), NOTHING_KEPT.parts)


# -- threads ---------------------------------------------------------------------------------------


def test_threads_write_into_their_own(no_leaks: Census, client: Client) -> None:
    add = Updating(client, programs.ADD, [0])

    def work(thread: int) -> None:
        x, step = torch.zeros(64), torch.full((64,), float(thread + 1))
        for _ in range(200):
            assert add(x, step) == []
        assert x.tolist() == [200.0 * (thread + 1)] * 64

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    add.executable.close()


def test_memory_that_is_given_up_meanwhile_is_written_and_freed(
    no_leaks: Census, client: Client
) -> None:
    """Another thread gives the tensors other memory in the middle of calls."""
    updating = Updating(client, programs.TWO_RESULTS, [0, None, 2])
    given, ended = values(), [False]

    def moves() -> None:
        while not ended[0]:
            for value in given:
                value.set_(value.clone())  # type: ignore[call-overload]
            gc.collect(0)

    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(moves)
        try:
            for _ in range(300):
                (found,) = updating(*given)
                assert found.item() == 7
                assert given[1].tolist() == [5, 6]
        finally:
            ended[0] = True
        moving.result()
    assert given[0].abs().tolist() == [0, 1, 2, 3]
    updating.executable.close()
