"""Training steps without PyTorch: the losses, gradients and weights of eager's steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pjrt_bridge.errors import NotExportable, OptionError
from pjrt_bridge.exported import ExportedModel
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import export
from tests.models import zoo
from tests.models.running import plain


class Net(nn.Module):
    """A loss, a state, a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.first.weight
        self.norm = nn.BatchNorm1d(8, affine=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.again(self.norm(self.first(x).tanh()))
        return {"loss": nn.functional.mse_loss(found, y), "found": found}


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


X, Y = torch.randn(16, 8), torch.randn(16, 8)


def close(found: Any, expected: torch.Tensor) -> bool:
    return bool(np.allclose(np.asarray(found), expected.detach().numpy(), rtol=1e-4, atol=1e-5))


def test_weights_whose_names_begin_with_a_digit(client: Client) -> None:
    layers = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    model = export(layers, (X[:, :4],), training=True, loss=lambda found: found.square().mean())
    layers(X[:, :4]).square().mean().backward()
    with model.load_on(client) as loaded:
        found = loaded(X[:, :4])["gradients"]
    assert close(found["0.weight"], layers[0].weight.grad)
    assert repr(model) == "ExportedModel(Sequential(input): 1 program(s), 2 weights of 60 bytes)"


def test_loss_gradients_and_state(client: Client, net: Net, tmp_path: Path) -> None:
    export(net, (X, Y), training=True).save(tmp_path)
    expected = net(X, Y)
    expected["loss"].backward()
    with ExportedModel.load(tmp_path).load_on(client) as loaded:
        found = loaded(X, y=Y)
        assert set(found) == {"loss", "outputs", "gradients"}
        assert close(found["loss"], expected["loss"])
        assert close(found["outputs"]["found"], expected["found"])
        assert set(found["gradients"]) == {"first.weight", "first.bias", "again.bias"}
        for name, gradient in found["gradients"].items():
            assert close(gradient, net.get_parameter(name).grad)
        assert close(loaded.weights()["norm.running_mean"], net.norm.running_mean)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.LSTM(8, 4, num_layers=2, bidirectional=True),
        lambda: nn.GRU(8, 8, batch_first=True, bias=False),
        lambda: nn.LSTM(8, 8, proj_size=4),  # of this kind PyTorch's nodes for each step
    ],
    ids=["lstm", "gru", "projected"],
)
def test_recurrent_layers(client: Client, layer: Callable[[], nn.RNNBase]) -> None:
    torch.manual_seed(0)
    net = layer()
    x = torch.randn(3, 5, 8)
    model = export(net, (x,), training=True, loss=lambda found: found[0].square().mean())
    net(x)[0].square().mean().backward()
    with model.load_on(client) as loaded:
        found = loaded(x)["gradients"]
    assert set(found) == {name for name, _ in net.named_parameters()}
    assert all(close(found[name], weight.grad) for name, weight in net.named_parameters())


OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "momentum": lambda weights: torch.optim.SGD(weights, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.01),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.01, amsgrad=True),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, 0.01, momentum=0.5, centered=True),
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "radam": torch.optim.RAdam,
    "rprop": torch.optim.Rprop,
}


def half(number: float) -> torch.Tensor:
    """A tensor for a number, which it has exactly."""
    return torch.tensor(number)


OPTIMIZERS |= {
    "sgd of a tensor": lambda weights: torch.optim.SGD(weights, lr=half(0.125), momentum=0.5),
    "adam of tensors": lambda weights: torch.optim.Adam(
        weights, lr=half(0.125), betas=(half(0.75), half(0.875))
    ),
    "rmsprop of a tensor": lambda weights: torch.optim.RMSprop(weights, lr=half(0.125)),
    "rprop of a tensor": lambda weights: torch.optim.Rprop(weights, lr=half(0.125)),
}

QUICK = ("momentum", "adamw", "rmsprop", "sgd of a tensor", "adam of tensors")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in OPTIMIZERS],
)
def test_steps_of_an_optimizer(client: Client, net: Net, tmp_path: Path, name: str) -> None:
    optimizer = OPTIMIZERS[name](net.parameters())
    before = copy.deepcopy(net.state_dict())
    export(net, (X, Y), training=True, optimizer=optimizer).save(tmp_path)
    # Nothing of that was seen by the model or its optimizer.
    assert not optimizer.state
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert all(weight.grad is None for weight in net.parameters())
    steps(client, net, optimizer, ExportedModel.load(tmp_path))


def steps(
    client: Client, net: nn.Module, optimizer: torch.optim.Optimizer, model: ExportedModel
) -> None:
    with model.load_on(client) as loaded:
        for _ in range(4):
            optimizer.zero_grad()
            expected = net(X, Y)["loss"]
            expected.backward()
            optimizer.step()
            assert close(loaded(X, Y)["loss"], expected)
        found = loaded.weights()
        assert {"first.weight", "again.bias"} < set(found)
        theirs = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        assert all(close(found[key], value) for key, value in theirs.items() if key in found)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {"lr": 0.125}),
        (torch.optim.SGD, {"lr": 0.125, "momentum": 0.5, "nesterov": True, "foreach": True}),
        (torch.optim.Adam, {"lr": 0.125, "betas": (0.75, 0.875)}),
        (torch.optim.Adam, {"betas": (0.75, 0.875), "amsgrad": True}),
        (torch.optim.AdamW, {"lr": 0.125, "capturable": True}),
        (torch.optim.Adadelta, {"lr": 0.125}),
        (torch.optim.Adamax, {"lr": 0.125}),
        (torch.optim.RAdam, {"lr": 0.125}),
    ],
)
@pytest.mark.parametrize("shape", [(), (1,)])
def test_options_that_are_tensors_are_their_numbers(
    net: Net,
    optimizer: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
    shape: tuple[int, ...],
) -> None:
    def tensor(option: Any) -> Any:
        if isinstance(option, tuple):
            return tuple(map(tensor, option))
        return torch.full(shape, option) if isinstance(option, float) else option

    def text(given: dict[str, Any]) -> str:
        groups = [{"params": net.parameters(), **given}]
        found = export(net, (X, Y), training=True, optimizer=optimizer(groups))
        return found.program.text

    tensors = {key: tensor(option) for key, option in options.items() if key != "momentum"}
    assert text({**options, **tensors}) == text(options)


class Scaled(torch.optim.Optimizer):
    """Holds tensors beside the state: one in its groups, one in its step."""

    def __init__(self, weights: Iterable[nn.Parameter]) -> None:
        super().__init__(weights, {"scale": torch.linspace(0.1, 0.8, 8)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                signs = torch.tensor([1.0] * 7 + [-1.0])
                weight.sub_(weight.grad * group["scale"] * signs)


class Counting(torch.optim.Optimizer):
    """Changes an option of its groups, in place or not."""

    def __init__(self, weights: Iterable[nn.Parameter], option: Any) -> None:
        super().__init__(weights, {"option": option})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["option"] += 0.5
            for weight in group["params"]:
                weight.sub_(group["option"] * weight.grad)
                self.state[weight]["sum"] = weight.sum()


def test_an_optimizer_that_holds_tensors(client: Client, net: Net, tmp_path: Path) -> None:
    optimizer = Scaled(net.parameters())
    export(net, (X, Y), training=True, optimizer=optimizer).save(tmp_path)
    steps(client, net, optimizer, ExportedModel.load(tmp_path))


def test_a_training_that_is_under_way(client: Client, net: Net, tmp_path: Path) -> None:
    # Its first step is unlike the others.
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, dampening=0.5)
    with pytest.raises(NotExportable, match="its first step differs from the others; take one"):
        export(net, (X, Y), training=True, optimizer=optimizer)
    net(X, Y)["loss"].backward()
    optimizer.step()
    model = export(net, (X, Y), training=True, optimizer=optimizer)
    assert model.weights["optimizer.momentum_buffer.first.bias"].kind == "optimizer"
    model.save(tmp_path)
    steps(client, net, optimizer, ExportedModel.load(tmp_path))


def test_trained_weights_go_on_elsewhere(client: Client, net: Net, tmp_path: Path) -> None:
    optimizer = torch.optim.Adam(net.parameters())
    model = export(net, (X, Y), training=True, optimizer=optimizer)
    with model.load_on(client) as loaded:
        for _ in range(3):
            loaded(X, Y)
        model.with_weights(loaded.weights()).save(tmp_path)
        expected = loaded(X, Y)["loss"].to_numpy()
    with ExportedModel.load(tmp_path).load_on(client) as loaded:
        assert loaded(X, Y)["loss"].to_numpy() == expected


class Sums(nn.Module):
    """Parameters whose gradients are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(2))
        self.two = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (x + self.one + self.two).square().sum()}


def test_parameters_with_one_gradient(client: Client) -> None:
    net, x = Sums(), torch.tensor([1.0, -3.0])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with export(net, (x,), training=True, optimizer=optimizer).load_on(client) as loaded:
        loaded(x)
        found = loaded.weights()
    net(x)["loss"].backward()
    optimizer.step()
    assert close(found["one"], net.one)
    assert close(found["two"], net.two)


@pytest.mark.parametrize(
    "name",
    ["gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bert", "t5", "convnet"))],
)
def test_gradients_of_models(client: Client, name: str) -> None:
    torch.manual_seed(0)
    model, inputs = zoo.build(name)
    expected = plain(model(**inputs))
    loss = None if "loss" in expected else lambda found: (found**2).mean()
    exported = export(model, kwargs=inputs, training=True, loss=loss)
    (expected["loss"] if loss is None else loss(model(**inputs))).backward()
    with exported.load_on(client) as loaded:
        found = loaded(**inputs)["gradients"]
    largest = max(float(w.grad.abs().max()) for w in model.parameters() if w.grad is not None)
    for key, gradient in found.items():
        theirs = model.get_parameter(key).grad
        if theirs is None:
            assert gradient is None
            continue
        scale = max(float(theirs.abs().max()), 1e-2 * largest)
        assert np.abs(np.asarray(gradient) - theirs.numpy()).max() <= 1e-4 * scale


class TestRefusals:
    def test_an_option_without_numbers(self, net: Net) -> None:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        optimizer.param_groups[0]["lr"] = torch.tensor(0.5, device="meta")
        with pytest.raises(NotExportable, match=r"optimizer SGD: lr: found a tensor on .* meta"):
            export(net, (X, Y), training=True, optimizer=optimizer)

    def test_an_optimizer_that_changes_an_option(self, net: Net) -> None:
        optimizer = Counting(net.parameters(), torch.zeros(8))
        with pytest.raises(NotExportable, match="its first step differs from the others"):
            export(net, (X, Y), training=True, optimizer=optimizer)
        assert not optimizer.param_groups[0]["option"].any(), "changed by the trial"
        net(X, Y)["loss"].backward()
        optimizer.step()
        with pytest.raises(NotExportable, match=r"cannot be traced: .* is mutated"):
            export(net, (X, Y), training=True, optimizer=optimizer)
        for option in (0.5, torch.tensor(0.5)):
            counting = Counting(net.parameters(), option)
            with pytest.raises(
                NotExportable, match=r"changes 'option' from 0\.5 to 1\.0, expected"
            ):
                export(net, (X, Y), training=True, optimizer=counting)

    def test_no_loss(self) -> None:
        with pytest.raises(NotExportable, match=r"the loss has the shape \[16, 8\], expected one"):
            export(nn.Linear(8, 8), (X,), training=True)

        class Text(nn.Module):
            def forward(self, x: torch.Tensor) -> dict[str, Any]:
                return {"loss": None, "x": x}

        with pytest.raises(NotExportable, match="found no loss in a dict"):
            export(Text(), (X,), training=True)

    def test_nothing_to_train(self) -> None:
        with pytest.raises(NotExportable, match="no parameter of the model needs a gradient"):
            export(nn.ReLU(), (X,), training=True, loss=torch.sum)

    @pytest.mark.parametrize("optimizer", [torch.optim.LBFGS, torch.optim.SparseAdam])
    def test_an_optimizer_that_takes_no_such_step(
        self, net: Net, optimizer: type[torch.optim.Optimizer]
    ) -> None:
        made = optimizer(net.parameters())  # type: ignore[call-arg]
        with pytest.raises(NotExportable, match=rf"optimizer {optimizer.__name__}: a trial step"):
            export(net, (X, Y), training=True, optimizer=made)

    def test_an_optimizer_of_something_else(self, net: Net) -> None:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(5))], lr=0.1)
        with pytest.raises(OptionError, match=r"a parameter of shape \[5\] is none of the model's"):
            export(net, (X, Y), training=True, optimizer=optimizer)
