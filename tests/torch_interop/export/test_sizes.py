"""Dynamic dimensions of models and exported programs are kept, or refused by name."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from pjrt_bridge.errors import NotExportable, OptionError, SignatureMismatch
from pjrt_bridge.exported import ExportedModel
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import export
from tests.combinations import combinations


class Rows(nn.Module):
    """Results and values that depend on both sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        self.calls.add_(x.shape[0])
        rows = self.linear(x) * x.shape[0]
        return rows, rows.reshape(-1), (x @ x.T).sum(0), {"y": y.sum(0) + y.shape[0]}, x.shape[0]


class Halves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0] // 2, 2, -1).sum(1)


N, M, H = Dim("n", min=2, max=64), Dim("m", min=3), Dim("h", min=2, max=32)
X, Y = torch.randn(6, 4), torch.randn(12, 4)


@dataclass(frozen=True)
class Case:
    """A model with dynamic dimensions.

    Attributes:
        shapes: its dynamic shapes.
        rows: the sizes of each argument's first dimension.
        sizes: what they are called, of an ExportedProgram.
        named: what they are called where the names of dimensions are known.
        limits: of the sizes, under the first names.
        outside: sizes that do not go, under the first names.
    """

    model: Callable[[], nn.Module]
    arguments: tuple[torch.Tensor, ...]
    shapes: Any
    rows: Sequence[tuple[int, ...]]
    sizes: Callable[..., dict[str, int]]
    named: Callable[..., dict[str, int]]
    limits: dict[str, tuple[int | None, int | None]]
    outside: Sequence[dict[str, int]]


CASES = {
    "of two dimensions": Case(
        Rows,
        (X, Y),
        {"x": {0: N}, "y": {0: M}},
        [(6, 12), (2, 3), (64, 5)],
        lambda x, y: {"x.0": x, "y.0": y},
        lambda x, y: {"n": x, "m": y},
        {"x.0": (2, 64), "y.0": (3, None)},
        [{"x.0": 65, "y.0": 3}, {"x.0": 6, "y.0": 2}],
    ),
    "of one for two arguments": Case(
        Rows,
        (X, X + 1),
        {"x": {0: N}, "y": {0: N}},
        [(6, 6), (5, 5)],
        lambda x, y: {"x.0": x},
        lambda x, y: {"n": x},
        {"x.0": (2, 64)},
        [{"x.0": 1}],
    ),
    "of a multiple": Case(
        Rows,
        (X, Y),
        {"x": {0: N}, "y": {0: 2 * N}},
        [(6, 12), (5, 10)],
        lambda x, y: {"x.0": x},
        lambda x, y: {"n": x},
        {"x.0": (2, 64)},
        [{"x.0": 65}],
    ),
    "of a multiple of nothing": Case(
        Halves,
        (X,),
        {"x": {0: 2 * H}},
        [(6,), (64,), (4,)],
        lambda x: {"x.0": x},
        lambda x: {"h": x // 2},
        {"x.0": (4, 64)},
        [{"x.0": 7}, {"x.0": 66}, {"x.0": 2}],
    ),
    "of dimensions that torch finds": Case(
        Rows,
        (X, Y),
        ({0: Dim.AUTO}, {0: Dim.AUTO}),
        [(6, 12), (9, 2)],
        lambda x, y: {"x.0": x, "y.0": y},
        lambda x, y: {"x.0": x, "y.0": y},
        {"x.0": (2, None), "y.0": (2, None)},
        [{"x.0": 1, "y.0": 2}],
    ),
    "of dimensions without a name": Case(
        Rows,
        (X, Y),
        ({0: Dim.DYNAMIC(min=3, max=9)}, {0: Dim.DYNAMIC}),
        [(6, 12), (9, 2)],
        lambda x, y: {"x.0": x, "y.0": y},
        lambda x, y: {"x.0": x, "y.0": y},
        {"x.0": (3, 9), "y.0": (2, None)},
        [{"x.0": 10, "y.0": 2}],
    ),
}


def stored(program: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def without_example(program: ExportedProgram) -> ExportedProgram:
    found = stored(program)
    found.example_inputs = None
    return found


FORMS: dict[str, Callable[[ExportedProgram], ExportedProgram]] = {
    "as it is": lambda program: program,
    "decomposed": lambda program: program.run_decompositions(),
    "stored": stored,
    "without an example": without_example,
}

FORMED = combinations({name: name for name in CASES}, {form: form for form in FORMS}, strength=1)
"""Every case in every form; `make test` has each case in one form, and each form of some case."""

# Torch's own, of contexts of its containers.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


def equal(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        array = np.asarray(found)
        assert array.shape == tuple(expected.shape)
        np.testing.assert_allclose(array, expected.detach(), rtol=1e-4, atol=1e-4)
    elif isinstance(expected, dict):
        for key, value in expected.items():
            equal(found[key], value)
    elif isinstance(expected, (tuple, list)):
        for one, other in zip(found, expected, strict=True):
            equal(one, other)
    else:
        assert found == expected


def runs(case: Case, net: nn.Module, model: ExportedModel, client: Client, folder: Path) -> None:
    """The model, and what was saved of it, do at all sizes what the module does."""
    model.save(folder)
    for one in (model, ExportedModel.load(folder)):
        with one.load_on(client) as loaded:
            for rows in case.rows:
                given = [torch.randn(size, 4) for size in rows]
                equal(loaded(*given), net(*given))
            with pytest.raises(SignatureMismatch, match=r"no program for the sizes of x: \[1, 4\]"):
                loaded(*(torch.randn(1, 4) for _ in case.arguments))


def exported(case: Case, net: nn.Module) -> ExportedProgram:
    return torch.export.export(net, case.arguments, dynamic_shapes=case.shapes)


@pytest.mark.parametrize(("name", "form"), FORMED)
def test_an_exported_program(client: Client, tmp_path: Path, name: str, form: str) -> None:
    case = CASES[name]
    net = case.model()
    program = FORMS[form](exported(case, net))
    model = export(program, sizes=[case.sizes(*rows) for rows in case.rows])
    assert model.symbols == case.limits
    runs(case, net, model, client, tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_a_module(client: Client, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    net = case.model()
    sizes = [case.named(*rows) for rows in case.rows]
    model = export(net, case.arguments, dynamic_shapes=case.shapes, sizes=sizes)
    assert list(model.symbols) == list(sizes[0])
    runs(case, net, model, client, tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_sizes_that_do_not_go(name: str) -> None:
    case = CASES[name]
    program = exported(case, case.model())
    for sizes in case.outside:
        with pytest.raises(OptionError, match=r"sizes: found .\.0=\d+, expected \d+ (to|or more)"):
            export(program, sizes=[sizes])


@pytest.mark.parametrize(("name", "form"), FORMED)
def test_dynamic_dimensions_are_not_fixed_silently(name: str, form: str) -> None:
    case = CASES[name]
    net = case.model()
    program = FORMS[form](exported(case, net))
    with pytest.raises(OptionError, match=r"dynamic dimensions are .*; say for which") as found:
        export(program)
    assert all(repr(dimension) in str(found.value) for dimension in case.limits)
    # What the text proposes is taken.
    proposed = str(found.value).partition("sizes=")[2]
    assert len(export(program, sizes=eval(proposed)).specializations) == 1


def test_the_text_names_dimensions_and_limits() -> None:
    case = CASES["of two dimensions"]
    text = r"'n' \(2 to 64\), 'm' \(3 or more\).*sizes=\[\{'n': 6, 'm': 12\}\]"
    with pytest.raises(OptionError, match=text):
        export(Rows(), case.arguments, dynamic_shapes=case.shapes)
    text = r"'x\.0' \(4 to 64, a multiple of 2\)"
    with pytest.raises(OptionError, match=text):
        export(exported(CASES["of a multiple of nothing"], Halves()))


def test_dimensions_that_torch_fixes_are_fixed(client: Client) -> None:
    program = torch.export.export(Rows(), (X, Y), dynamic_shapes=({0: Dim.STATIC}, None))
    model = export(program)
    assert model.symbols == {}
    with (
        model.load_on(client) as loaded,
        pytest.raises(SignatureMismatch, match=r"'x': found shape \[5, 4\], expected \[6, 4\]"),
    ):
        loaded(torch.randn(5, 4), Y)


def test_a_number_that_differs_from_call_to_call_is_refused_by_name() -> None:
    class Times(nn.Module):
        def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
            return x * times

    for shapes in (({0: N}, Dim.DYNAMIC), (None, Dim.AUTO)):
        program = torch.export.export(Times(), (X, 3), dynamic_shapes=shapes)
        with pytest.raises(NotExportable, match="argument 'times': found a number that is another"):
            export(program)


def test_a_dimension_that_tells_no_symbol_is_refused_by_name() -> None:
    class Product(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.reshape(-1) + y

    program = torch.export.export(
        Product(), (X, torch.randn(24)), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO})
    )
    model = export(program, sizes=[{"x.0": 3, "x.1": 5}])
    (one,) = model.specializations
    assert [type.shape for type in one.types] == [(3, 5), (15,)]
    assert [leaf.shape for leaf in model.interface.inputs] == [("x.0", "x.1"), ("x.0*x.1",)]  # type: ignore[union-attr]


class Addressed(nn.Module):
    """Reads the memory of its argument, whatever the argument's own elements are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((3, 2), (0, 1), 0) + x[0, 0]


MEMORY = torch.arange(32.0)
PARTS = {
    "beside others": MEMORY.view(4, 8)[:, ::2],
    "in another order": MEMORY[:16].view(4, 4).t(),
    "behind others": MEMORY.view(8, 4)[1:5],
}


@pytest.mark.parametrize("dims", [{0: Dim("n", min=2)}, dict.fromkeys((0, 1), Dim.AUTO)])
@pytest.mark.parametrize("name", PARTS)
def test_memory_around_an_argument_is_refused_as_with_fixed_sizes(
    name: str, dims: dict[int, Any]
) -> None:
    sizes = {"n": 4} if len(dims) == 1 else {"x.0": 4, "x.1": 4}
    with pytest.raises(NotExportable, match="memory around an argument"):
        export(Addressed(), (PARTS[name],), dynamic_shapes={"x": dims}, sizes=[sizes])


def test_memory_of_a_whole_argument_is_addressed_at_every_size(client: Client) -> None:
    example, other = MEMORY[:16].view(4, 4), MEMORY[:24].view(6, 4)
    shapes = {"x": {0: Dim("n", min=2)}}
    model = export(
        Addressed(), (example,), dynamic_shapes=shapes, sizes=[{"n": 4}, {"n": 6}]
    ).load_on(client)
    for x in (example, other):
        equal(model(x), Addressed()(x))


class LastThird(nn.Module):
    """Torch takes the lengths of all parts for equal if they are equal in the example."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tensor_split(3)[-1]


class Branches(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 + y.sum() if x.shape[0] % 2 == y.shape[0] % 2 else x


@pytest.mark.parametrize("loaded", [False, True])
def test_sizes_that_make_the_model_do_something_else_are_refused(
    loaded: bool, client: Client
) -> None:
    cases: list[tuple[nn.Module, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
        (LastThird(), (3,), (3,), (4,)),
        (Branches(), (4, 6), (7, 3), (7, 4)),
    ]
    for model, example, taken, refused in cases:
        names = ("x", "y")[: len(example)]
        program = torch.export.export(
            model,
            tuple(torch.arange(float(size)) for size in example),
            dynamic_shapes={name: {0: Dim.DYNAMIC} for name in names},
        )
        if loaded:
            file = io.BytesIO()
            torch.export.save(program, file)
            program = torch.export.load(io.BytesIO(file.getvalue()))
        keys = [f"{name}.0" for name in names]
        exported = export(program, sizes=[dict(zip(keys, taken, strict=True))])
        given = [torch.arange(float(size)) for size in taken]
        with exported.load_on(client) as running:
            equal(running(*given), model(*given))
        with pytest.raises(OptionError, match=r"x\.0=\d.*expected sizes for which .*x\.0"):
            export(program, sizes=[dict(zip(keys, refused, strict=True))])
