"""The border by itself: forms, results, kept buffers, and plugins with memory of their own."""

import gc
import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pjrt_bridge import dtypes
from pjrt_bridge.errors import Closed
from pjrt_bridge.mixed.execution import CallRecord
from pjrt_bridge.mixed.pinned import PinnedInputs
from pjrt_bridge.registry import client as select_client
from pjrt_bridge.registry import load
from pjrt_bridge.runtime import Client, Plugin
from pjrt_bridge.runtime.buffers import putting
from pjrt_bridge.runtime.dispatch.plans import BoundParameter
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop import backend
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER
from pjrt_bridge.torch_interop.tensors import argument_spec, array_over, result_spec
from tests.torch_interop.helpers import TRAINING, assert_compiled, assert_same, compiled, twins

pytestmark = pytest.mark.usefixtures("fresh")

FLOAT32 = dtypes.of("float32")


@pytest.mark.parametrize(
    ("tensor", "order", "dense"),
    [
        (torch.empty(2, 3), None, (2, 3)),
        (torch.empty(2, 3).t(), (1, 0), (2, 3)),
        (torch.empty(2, 3, 4).permute(2, 0, 1), (1, 2, 0), (2, 3, 4)),
        (torch.empty(2, 1, 3).permute(2, 1, 0), (1, 2, 0), (1, 2, 3)),
        (torch.empty(2, 4)[:, ::2], None, (2, 2)),
        (torch.empty(2, 1).expand(2, 3), None, (2, 3)),
        (torch.empty(()), None, ()),
        (torch.empty(0, 3).t(), None, (3, 0)),
    ],
    ids=["dense", "transposed", "permuted", "one", "gaps", "expanded", "number", "empty"],
)
def test_arguments(
    tensor: torch.Tensor, order: tuple[int, ...] | None, dense: tuple[int, ...]
) -> None:
    spec = argument_spec(tensor)
    assert spec.type == spec.once == TensorType(tuple(tensor.shape), FLOAT32)
    assert spec.order == order
    assert spec.memory == TensorType(dense, FLOAT32)
    assert tuple(dense[dim] for dim in spec.inverse or range(len(dense))) == tuple(tensor.shape)


@pytest.mark.parametrize(
    ("tensor", "strides", "computed", "order"),
    [
        (torch.empty(2, 3), (3, 1), (2, 3), None),
        (torch.empty(2, 3).t(), (1, 3), (3, 2), (1, 0)),
        (torch.empty(2, 1).expand(2, 3), (1, 0), (2, 1), None),
        (torch.empty(3, 1, 2).expand(3, 5, 2).transpose(0, 2), (1, 0, 2), (2, 1, 3), (2, 0, 1)),
        (torch.empty(2, 6)[:, ::2], (3, 1), (2, 3), None),
        (torch.empty(2, 6)[:, ::2, None].expand(2, 3, 4), (3, 1, 0), (2, 3, 1), None),
    ],
    ids=["dense", "transposed", "expanded", "expanded, transposed", "gaps", "gaps, expanded"],
)
def test_results(
    tensor: torch.Tensor,
    strides: tuple[int, ...],
    computed: tuple[int, ...],
    order: tuple[int, ...] | None,
) -> None:
    spec = result_spec(tensor)
    assert spec.type.shape == tuple(tensor.shape)
    assert spec.strides == strides
    assert spec.once == TensorType(computed, FLOAT32)
    assert spec.order == order


def pinned(tensor: torch.Tensor) -> PinnedInputs:
    parameters = [BoundParameter(0, argument_spec(tensor))]
    return PinnedInputs(ADAPTER, select_client("cpu"), parameters, [], {0})


def test_a_kept_buffer_is_the_tensor_and_stays() -> None:
    weight = torch.randn(4, 4).t()
    kept = pinned(weight)
    (first,) = kept.buffers([weight], CallRecord(1))
    weight.mul_(2)
    (second,) = kept.buffers([weight], CallRecord(1))
    assert first is second is not None
    assert first.address == weight.data_ptr()


def test_a_kept_buffer_holds_memory_that_its_tensor_gave_up() -> None:
    weight = torch.ones(4096)
    kept = pinned(weight)
    (buffer,) = kept.buffers([weight], CallRecord(1))
    weight.data = torch.zeros(4096)
    scratch = [torch.full((4096,), float(value)) for value in range(20)]
    assert buffer is not None
    assert buffer.to_numpy().sum() == 4096
    assert len(scratch) == 20


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: setattr(weight, "data", torch.full((8,), 7.0)),
        lambda weight: weight.set_(torch.full((8,), 7.0)),
    ],
    ids=["data", "set_"],
)
def test_a_kept_buffer_is_renewed_when_the_memory_is_another(
    change: Callable[[torch.Tensor], None],
) -> None:
    weight = torch.ones(8)
    kept = pinned(weight)
    kept.buffers([weight], CallRecord(1))
    change(weight)
    (buffer,) = kept.buffers([weight], CallRecord(1))
    assert buffer is not None
    assert buffer.to_numpy().tolist() == [7.0] * 8


@pytest.mark.parametrize(
    "weight", [torch.ones(9)[1:], torch.ones(8, 2)[:, 0]], ids=["unaligned", "gaps"]
)
def test_what_cannot_be_shared_goes_in_with_each_call(weight: torch.Tensor) -> None:
    assert list(pinned(weight).buffers([weight], CallRecord(1))) == [None]


def test_what_moves_in_quick_succession_goes_in_with_each_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    weights = [torch.ones(8) for _ in range(2)]
    kept = pinned(weights[0])
    found = [kept.buffers([weights[call % 2]], CallRecord(1))[0] for call in range(20)]
    assert found[0] is not None
    assert found[-1] is None
    # Where it moves now and then it is pinned again.
    for call in range(20):
        now[0] += 2
        kept.renew([weights[call % 2]], CallRecord(1))
        (buffer,) = kept.buffers([weights[call % 2]], CallRecord(1))
        assert buffer is not None
        assert buffer.address == weights[call % 2].data_ptr()


def test_extra_inputs_are_pinned_until_one_moves() -> None:
    weight, more = torch.ones(8), torch.ones(8)
    parameters = [BoundParameter(at, argument_spec(weight)) for at in range(2)]
    kept = PinnedInputs(ADAPTER, select_client("cpu"), parameters, [], {0})
    kept.renew([weight, more], CallRecord(1))
    kept.add({0, 1}, [weight, more])
    assert kept.added_bytes == more.nbytes
    assert None not in kept.buffers([weight, more], CallRecord(1))
    kept.moved([weight, torch.ones(8)], CallRecord(1))
    first, second = kept.buffers([weight, more], CallRecord(1))
    assert first is not None
    assert second is None


# -- a plugin that does not use host memory in place -----------------------------------------------


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> Client:
    """The client of a plugin whose memory is not the host's, as far as the bridge can tell."""
    monkeypatch.setattr(
        "pjrt_bridge.runtime.objects.client.shares_host_memory", lambda client: False
    )
    plugin = load("cpu")
    assert isinstance(plugin, Plugin)
    client = Client(plugin, {"cpu_device_count": 1})
    assert not client.shares_host_memory
    monkeypatch.setattr(backend, "select_client", lambda name: client)
    return client


def test_training_where_memory_is_not_shared(copying: Client) -> None:
    eager, device = twins(
        nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 4))
    )
    rivals = [(m, torch.optim.SGD(m.parameters(), lr=0.1)) for m in (eager, device)]
    for _ in range(3):
        x = torch.randn(5, 4).t().contiguous().t()
        for model, optimizer in rivals:
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    assert_same(list(device.parameters()), list(eager.parameters()), rtol=1e-3, atol=1e-3)
    assert_same(list(device.buffers()), list(eager.buffers()))
    assert_compiled(*TRAINING)


@pytest.mark.parametrize("inference", [False, True])
def test_parameters_are_copied_again_when_they_change(
    inference: bool, copying: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts: list[int] = []
    put = putting.put_host
    monkeypatch.setattr(
        putting,
        "put_host",
        lambda client, host, *to, **how: puts.append(host.address) or put(client, host, *to, **how),
    )
    with torch.inference_mode(inference):
        model, x = nn.Linear(4, 4), torch.randn(2, 4)
        device = compiled(model)
        counts = []
        for change in (False, False, True):
            with torch.no_grad():
                if change:
                    model.weight.add_(1)
                puts.clear()
                assert_same(device(x), model(x).detach())
            counts.append(len(puts))
    # The input in every call; parameters when they are new, or count no versions.
    assert counts == ([3, 3, 3] if inference else [3, 1, 2])


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex64], ids=str)
def test_results_where_memory_is_not_shared(dtype: torch.dtype, copying: Client) -> None:
    x = torch.tensor([[0, 1, 2], [3, 0, 5]]).to(dtype)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.t().clone(), x[:, :1].clone().expand(2, 4), x[:0].clone(), torch.cat([x, x])

    found, expected = compiled(function)(x), function(x)
    assert_same(found, expected, rtol=0, atol=0)
    assert [one.stride() for one in found] == [one.stride() for one in expected]
    found[0].fill_(1)
    assert_compiled("inference")


@pytest.mark.parametrize("dynamic", [None, True])
def test_nothing_was_written_into_results(dynamic: bool | None) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, y.t(), x.t() * 2, x.sum(0).expand(3, 4)

    on_device = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for size in (5, 7, 9, 1, 0):
        assert [y._version for y in on_device(torch.ones(size, 4))] == [0, 0, 0, 0]


def test_results_outlive_their_client(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(load("cpu"), {"cpu_device_count": 1})
    monkeypatch.setattr(backend, "select_client", lambda name: client)
    device, x = compiled(torch.exp), torch.randn(256)
    found = device(x)
    client.close()
    with pytest.raises(Closed):
        device(x)
    del device
    torch.compiler.reset()
    gc.collect()
    assert_same(found, torch.exp(x))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0, 3),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.ones(3, 2).t(),
        torch.ones(3, dtype=torch.float8_e4m3fn),
        torch.tensor([1 + 2j]).conj(),
        torch.nn.Parameter(torch.ones(2)),
        torch.tensor([True, False]),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}",
)
def test_an_array_over_a_tensor_leaves_its_memory_resizable(tensor: torch.Tensor) -> None:
    """`Tensor.numpy` forbids it: dropout on the host, and export, did so to tensors of users."""
    array = array_over(tensor)
    assert array.shape == tuple(tensor.shape)
    assert array.astype(complex).tolist() == tensor.detach().to(torch.complex128).tolist()
    assert tensor.untyped_storage().resizable()


def test_dropout_on_the_host_leaves_what_it_is_given_resizable() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        number = torch.tensor(0.5)
        return number, torch.dropout(number, 0.5, True), torch.dropout(x, 0.5, True)

    x = torch.ones(4)
    on_the_host = torch.compile(function, backend="pjrt", options={"min_segment": 9})
    assert [one.untyped_storage().resizable() for one in (x, *on_the_host(x))] == [True] * 4
