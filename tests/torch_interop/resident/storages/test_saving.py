"""Files, pickles and copies of models on the device."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def model() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    net[2].weight = nn.Parameter(net[2].weight.detach().t().contiguous().t())
    return net


@pytest.mark.parametrize("location", ["pjrt", "pjrt:1", "cpu", None])
def test_what_is_saved_on_the_device_is_loaded_anywhere(
    location: str | None, tmp_path: Path
) -> None:
    net = model().to("pjrt")
    torch.save(net.state_dict(), tmp_path / "state.pt")
    found = torch.load(tmp_path / "state.pt", map_location=location)
    for name, value in net.state_dict().items():
        assert found[name].device == (
            torch.device("pjrt:0") if location in ("pjrt", None) else torch.device(location)
        )
        assert found[name].stride() == value.stride()
        assert torch.equal(found[name].cpu(), value.cpu())
    other = model()
    other.load_state_dict(found)
    assert torch.equal(other[0].weight, net[0].weight.cpu())


def test_what_is_saved_on_the_host_is_loaded_on_the_device() -> None:
    file = io.BytesIO()
    net = model()
    torch.save(net.state_dict(), file)
    file.seek(0)
    found = torch.load(file, map_location="pjrt")
    here = model().to("pjrt")
    here.load_state_dict(found)
    assert torch.equal(here[2].weight.cpu(), net[2].weight)
    here.load_state_dict(net.state_dict())
    assert here[2].weight.device.type == "pjrt"


def test_tensors_that_share_a_storage_do_so_when_they_are_loaded() -> None:
    base = torch.arange(6.0).to("pjrt")
    file = io.BytesIO()
    torch.save([base, base[2:4]], file)
    file.seek(0)
    whole, part = torch.load(file)
    part.zero_()
    assert whole.tolist() == [0, 1, 0, 0, 4, 5]


def test_pickles_and_deep_copies() -> None:
    net = model().to("pjrt")
    for made in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        assert made[0].weight.device.type == "pjrt"
        assert isinstance(made[0].weight, nn.Parameter)
        with torch.no_grad():
            made[0].weight.zero_()
        assert bool(net[0].weight.any())
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(5, 3).to("pjrt")).sum().backward()
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    other = torch.optim.Adam(copy.deepcopy(net).parameters())
    other.load_state_dict(state)
    assert other.state_dict()["state"][0]["exp_avg"].device.type == "pjrt"


def test_safetensors(tmp_path: Path) -> None:
    files = pytest.importorskip("safetensors.torch")
    net = nn.Linear(3, 4).to("pjrt")
    files.save_file({name: value.cpu() for name, value in net.state_dict().items()}, tmp_path / "x")
    found = files.load_file(tmp_path / "x")
    net.load_state_dict(found)
    assert torch.equal(net.weight.cpu(), found["weight"])


def test_batches_of_a_data_loader() -> None:
    data = TensorDataset(torch.arange(6.0).view(6, 1))
    found = [one.to("pjrt", non_blocking=True) for (one,) in DataLoader(data, batch_size=2)]
    assert [one.flatten().tolist() for one in found] == [[0, 1], [2, 3], [4, 5]]


def test_storages_are_made_of_a_size_or_of_bytes() -> None:
    assert torch.UntypedStorage(device="pjrt").nbytes() == 0
    assert torch.UntypedStorage(3, device="pjrt").nbytes() == 3
    assert torch.UntypedStorage(size=3, device="pjrt").nbytes() == 3
    made = torch.UntypedStorage([1, 2, 3], device="pjrt")
    assert (made.device.type, made.tolist()) == ("pjrt", [1, 2, 3])
    with pytest.raises(RuntimeError, match="from a sequence"):
        torch.UntypedStorage("a", device="pjrt")
