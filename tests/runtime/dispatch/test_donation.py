"""Donation: memory that an execution takes over, as a state that is checked."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import read_int64s
from pjrt_bridge.errors import BufferUnavailable, InvalidArgument, SignatureMismatch
from pjrt_bridge.runtime import (
    Buffer,
    BufferState,
    Client,
    CompileOptions,
    Executable,
    Plugin,
)
from tests import programs
from tests.conftest import Census
from tests.faults.replaced import Replaced
from tests.runtime.arrays import aligned

ONES = np.ones(64, np.float32)
FORMS = {"aliased": programs.ALIASED_ADD, "donor": programs.DONOR_ADD}


@pytest.fixture(params=FORMS)
def add(client: Client, request: pytest.FixtureRequest) -> Iterator[Executable]:
    """Consumes its first argument."""
    with client.compile(FORMS[request.param]) as made:
        yield made


@pytest.fixture
def owned(client: Client) -> Iterator[Buffer]:
    """In memory that belongs to the plugin."""
    with client.put(ONES, copy=True) as made:
        yield made


def test_the_memory_is_reused(client: Client, add: Executable, owned: Buffer) -> None:
    address = owned.address
    (result,) = add.execute([owned, client.put(ONES)])
    assert result.address == address
    assert (result.to_numpy() == 2).all()


def test_a_donated_buffer_names_its_consumer(
    client: Client, add: Executable, owned: Buffer
) -> None:
    other = client.put(ONES)
    add.execute([owned, other])
    assert owned.state is BufferState.DONATED
    assert "donated" in repr(owned)
    uses: list[Any] = [
        owned.to_numpy,
        owned.__dlpack__,
        owned.ready_event,
        lambda: np.asarray(owned),
        lambda: owned.copy_to(client.devices[0]),
        lambda: owned.address,
        lambda: add.execute([owned, other]),
        lambda: add.execute([other, owned]),
    ]
    for use in uses:
        match = r"buffer f32\[64\] on device 0 was donated to executable 'add'; keep a copy"
        with pytest.raises(BufferUnavailable, match=match):
            use()
    owned.delete()
    assert owned.state is BufferState.DONATED


def test_keeping(client: Client, add: Executable, owned: Buffer) -> None:
    other = client.put(ONES)
    (result,) = add.execute([owned, other], donate=())
    assert owned.state is BufferState.LIVE
    assert result.address != owned.address
    assert (owned.to_numpy() == 1).all()
    add.execute([owned, other], donate=[0])
    assert owned.state is BufferState.DONATED


@pytest.mark.parametrize("donate", [[1], [0, 1], [2], [-1], ["a"], [None]])
def test_what_the_program_does_not_donate(
    client: Client, add: Executable, owned: Buffer, donate: Any
) -> None:
    with pytest.raises(SignatureMismatch, match=r"donates the arguments \[0\]; .* cannot be"):
        add.execute([owned, client.put(ONES)], donate=donate)
    assert owned.state is BufferState.LIVE


def test_a_program_that_donates_nothing(client: Client, owned: Buffer) -> None:
    plain = client.compile(programs.ADD)
    plain.execute([owned, owned])
    plain.execute([owned, owned], donate=())
    assert owned.state is BufferState.LIVE
    with pytest.raises(SignatureMismatch, match=r"donates the arguments \[\]; \[0\] cannot be"):
        plain.execute([owned, owned], donate=[0])


def test_a_buffer_cannot_be_donated_and_read(add: Executable, owned: Buffer) -> None:
    with pytest.raises(
        SignatureMismatch, match=r"argument 0 .*donated buffer that is passed twice"
    ):
        add.execute([owned, owned])
    assert (add.execute([owned, owned], donate=())[0].to_numpy() == 2).all()


@pytest.mark.parametrize("view", [np.asarray, torch.from_dlpack, np.from_dlpack])
def test_views_prevent_donation(
    no_leaks: Census, client: Client, add: Executable, owned: Buffer, view: Any
) -> None:
    other = client.put(ONES)
    seen = view(owned)
    (result,) = add.execute([owned, other])
    assert owned.state is BufferState.LIVE
    assert result.address != owned.address
    assert bool((seen == 1).all())
    del seen
    add.execute([owned, other])
    assert owned.state is BufferState.DONATED


def test_the_plugin_is_told_what_is_not_to_be_donated(plugin: Plugin) -> None:
    """Some refuse an execution that donates a buffer of which there are views."""
    told: list[list[int]] = []

    def execute(table: Replaced, args: Any) -> int | None:
        options = STRUCTS["PJRT_ExecuteOptions"].ctype.from_address(args.options)
        count = options.num_non_donatable_input_indices
        told.append(list(read_int64s(options.non_donatable_input_indices, count)))
        return table.real("LoadedExecutable_Execute", args)

    table = Replaced(plugin.api.address, {"LoadedExecutable_Execute": execute})
    with (
        Client(table.plugin("told"), {"cpu_device_count": 1}) as client,
        client.compile(programs.DONOR_ADD) as add,
        client.put(ONES) as other,
    ):
        state = client.put(ONES, copy=True)
        view = np.asarray(state)
        add.execute([state, other])
        del view
        add.execute([state, other])
    assert told == [[0], []]


def test_a_view_of_a_donated_result(client: Client, add: Executable, owned: Buffer) -> None:
    (result,) = add.execute([owned, client.put(ONES)])
    seen = np.asarray(result)
    result.delete()
    assert (seen == 2).all()


def test_memory_of_the_caller_is_never_overwritten(client: Client, add: Executable) -> None:
    mine = aligned(ONES)
    shared = client.put(mine)
    (result,) = add.execute([shared, client.put(ONES)])
    assert (result.to_numpy() == 2).all()
    assert (mine == 1).all()
    assert shared.state is BufferState.DONATED


def test_a_loop_in_place(no_leaks: Census, client: Client, add: Executable, owned: Buffer) -> None:
    state, one = owned, client.put(ONES)
    address = state.address
    for _ in range(100):
        (state,) = add.execute([state, one])
    assert state.address == address
    assert (state.to_numpy() == 101).all()


def test_one_of_many_threads_gets_it(no_leaks: Census, client: Client, add: Executable) -> None:
    one = client.put(ONES)

    def race(buffer: Buffer) -> bool:
        try:
            (result,) = add.execute([buffer, one])
        except (BufferUnavailable, InvalidArgument):
            return False
        assert (result.to_numpy() == 2).all()
        return True

    with ThreadPoolExecutor(4) as pool:
        for _ in range(50):
            wanted = client.put(ONES, copy=True)
            assert sum(pool.map(race, [wanted] * 4)) == 1
            assert wanted.state is BufferState.DONATED


def test_donation_over_devices(pair: Client) -> None:
    add = pair.compile(programs.ALIASED_ADD, options=CompileOptions(num_replicas=2))
    rows = [[pair.put(ONES, d, copy=True), pair.put(ONES, d)] for d in pair.devices]
    addresses = [row[0].address for row in rows]
    results = add.execute_sharded(rows)
    assert [row[0].state for row in rows] == [BufferState.DONATED] * 2
    assert [row[1].state for row in rows] == [BufferState.LIVE] * 2
    assert [result.address for (result,) in results] == addresses
