"""Ways to run a user's case: what is called, what is compared, what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pjrt_bridge.errors import OptionError
from pjrt_bridge.torch_interop.comparing.case import Case, case_of
from pjrt_bridge.torch_interop.comparing.ways import Way
from pjrt_bridge.torch_interop.comparing.worker import Worker, difference

MODULE = """
import torch
layer = torch.nn.Linear(4, 2)
def pair(): return layer, (torch.randn(3, 4),)
def named(): return layer, {"input": torch.randn(3, 4)}
def itself(): return torch.ones(2)
def wrong(): return layer, 3
def takes(x): return x * 2
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "cases.py"
    path.write_text(MODULE)
    return str(path)


@pytest.mark.parametrize("name", ["pair", "named", "itself"])
def test_cases(file: str, name: str) -> None:
    case = case_of(f"{file}:{name}", [])
    shape = case.function(*case.args, **(case.kwargs or {})).shape
    assert shape == ((2,) if name == "itself" else (3, 2))
    assert case.own_mode == (name == "itself")


def test_inputs_are_the_same_each_time(file: str) -> None:
    one, other = (case_of(f"{file}:takes", ["f32[3]"]).args[0] for _ in range(2))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("name", "said"), [("takes", "takes arguments"), ("wrong", "with a int"), ("layer", "--input")]
)
def test_what_is_no_case(file: str, name: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        case_of(f"{file}:{name}", [])


def test_gradients_are_computed_only_where_they_are_wanted() -> None:
    layer = torch.nn.Linear(2, 2)
    x = torch.ones(1, 2, requires_grad=True)
    assert not Way("eager", Case(layer, (x,)), {}).call().requires_grad
    _, weight, bias = Way("eager", Case(layer, (x,)), {}, train=True).call()
    assert torch.equal(weight, torch.ones(2, 2))
    assert torch.equal(bias, torch.ones(2))
    assert layer.weight.grad is None
    assert x.grad is None
    with pytest.raises(OptionError, match="leave out --train"):
        Way("eager", Case(torch.ones_like, (x,)), {}, train=True).call()


class Words:
    """Makes as many tokens as it is asked for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def generate(self, x: torch.Tensor, streamer: Any, max_new_tokens: int, **_: Any) -> Any:
        streamer.put(x)
        for _step in range(max_new_tokens):
            x = self.forward(x)
            streamer.put(x)
        streamer.end()
        return x

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x)


@pytest.mark.usefixtures("fresh")
def test_tokens() -> None:
    way = Way("pjrt", Case(Words(), (torch.zeros(2),)), {}, new_tokens=5)
    assert way.call().tolist() == [5, 5]
    found = way.time(2)
    assert 0 < found["first_token"] < found["seconds"]
    assert way.programs() >= 1
    assert way.account()["call"] > 0
    with pytest.raises(OptionError, match="expected a model with generate"):
        Way("eager", Case(torch.sin), {}, new_tokens=2)


def test_results_are_compared(file: str, tmp_path: Path) -> None:
    request = {"target": f"{file}:pair", "inputs": [], "options": {}, "train": False}
    worker, path = Worker(), str(tmp_path / "results")
    assert worker.answer({"do": "prepare", "way": "eager", "new_tokens": None, **request})
    assert worker.answer({"do": "save", "path": path}) == {}
    assert worker.answer({"do": "compare", "path": path}) == {"difference": 0.0}
    assert worker.answer({"do": "time", "repeats": 1})["seconds"] > 0
    failed = worker.answer({"do": "compare", "path": path + "x"})
    assert failed["failed"].startswith("FileNotFoundError: ")


def test_differences() -> None:
    nan, inf = float("nan"), float("inf")
    assert difference(torch.tensor([nan, inf, 2.0]), torch.tensor([nan, inf, 2.0])) == 0
    assert difference(torch.tensor([3.0, 2.0]), torch.tensor([4.0, 2.0])) == 0.25
    assert difference(torch.tensor([nan]), torch.tensor([1.0])) == inf
    assert difference(torch.tensor([True]), torch.tensor([False])) > 1
