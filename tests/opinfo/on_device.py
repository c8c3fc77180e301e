"""`python -m tests.opinfo.on_device`: torch's operators on torch's device `pjrt`.

Torch's own harness makes a test for each operator of its database on the device: samples are made
there, and results are compared with the host's. Prints what became of them. Names restrict the
run to operators whose name contains one of them; `--part 1/4` takes the first of four parts.
"""

from __future__ import annotations

import argparse
import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree

from pjrt_bridge.torch_interop.device import use
from pjrt_bridge.torch_interop.resident.storages.transfer import COUNTS
from tests.plugins import of_device

SAMPLES = 3
"""Of an operator, at most."""


def operator_tests() -> list[unittest.TestCase]:
    """One test for each operator, as torch's harness makes them for the device."""
    # The harness looks for devices when it is imported.
    use(of_device())
    from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_utils import TestCase

    class Operators(TestCase):
        fetched = 0

        @ops(op_db, allowed_dtypes=(torch.float32,))
        def test_it(self, device: str, dtype: torch.dtype, op: Any) -> None:
            for sample, _ in zip(op.sample_inputs(device, dtype), range(SAMPLES), strict=False):
                self.fetched += _judge(op, sample)

    made: dict[str, Any] = {Operators.__name__: Operators}
    instantiate_device_type_tests(Operators, made, only_for="privateuse1")
    (case,) = made.values()
    return list(unittest.defaultTestLoader.loadTestsFromTestCase(case))  # type: ignore[arg-type]


def _judge(op: Any, sample: Any) -> int:
    """Compare with the host, random results by shape and type; the bytes that came to the host."""
    at_home = sample.transform(_home)
    at_home.args = tuple(map(_home, at_home.args))
    at_home.kwargs = {name: _home(value) for name, value in at_home.kwargs.items()}
    expected = _run(op, at_home.transform(_copied))
    # Torch's entries for random operators set the seed themselves.
    others = []
    for seed in range(1, 5):
        with mock.patch.object(torch, "manual_seed", new=partial(_seeded, seed)):
            others.append(_run(op, at_home.transform(_copied)))
    before = COUNTS.to_host
    found = _run(op, sample)
    fetched = COUNTS.to_host - before
    is_random = any(not _equal(expected, other) for other in others) or "empty" in op.name
    # Of what is determined but for signs, say, the sample has a function.
    found, expected = (sample.output_process_fn_grad(item) for item in (found, expected))
    for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other or other != other
            continue
        assert one.device.type == "pjrt", one.device
        assert one.layout == other.layout
        one, other = _dense(one), _dense(other)
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if not is_random:
            torch.testing.assert_close(one.cpu(), other, atol=1e-4, rtol=1e-4, equal_nan=True)
    return fetched


def _seeded(seed: int, _: int) -> torch.Generator:
    return torch.default_generator.manual_seed(seed)


def _run(op: Any, sample: Any) -> Any:
    torch.manual_seed(0)
    return op(sample.input, *sample.args, **sample.kwargs)


def _home(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            return value.detach().cpu()
        return _with_storage(value.detach(), torch.Tensor.cpu)
    if isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("pjrt")):
        return torch.device("cpu")
    return value


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return _with_storage(value, torch.clone)
    return value.clone() if isinstance(value, torch.Tensor) else value


def _with_storage(value: torch.Tensor, copy: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of a tensor, and of what it does not see of its storage."""
    count = value.untyped_storage().nbytes() // value.dtype.itemsize
    flat = copy(value.as_strided((count,), (1,), 0))
    return flat.as_strided(value.shape, value.stride(), value.storage_offset())


def _dense(value: torch.Tensor) -> torch.Tensor:
    return value if value.layout == torch.strided else value.to_dense()


def _equal(one: Any, other: Any) -> bool:
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    return all(
        torch.equal(torch.nan_to_num(_dense(a)), torch.nan_to_num(_dense(b)))
        if isinstance(a, torch.Tensor)
        else a == b
        for a, b in pairs
    )


class Outcomes(unittest.TestResult):
    """What became of each test.

    Attributes:
        kinds: "device", "host" (bytes came there), "wrong" and "skipped".
        texts: of what is wrong.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[str, str] = {}
        self.texts: dict[str, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        """It is right; what was brought to the host tells where it ran."""
        self.kinds[_name(test)] = "host" if getattr(test, "fetched", 0) else "device"

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        """Torch leaves it out."""
        self.kinds[_name(test)] = "skipped"

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        """It is wrong."""
        self.kinds[_name(test)] = "wrong"
        self.texts[_name(test)] = f"{err[0].__name__}: {str(err[1]).strip()[:300]!r}"

    addError = addFailure  # noqa: N815


def _name(test: unittest.TestCase) -> str:
    return test.id().rpartition(".")[2].removeprefix("test_it_").partition("_pjrt")[0]


def run(names: list[str], part: int = 0, parts: int = 1) -> Outcomes:
    """Run the tests of some operators."""
    chosen = [
        test
        for at, test in enumerate(sorted(operator_tests(), key=lambda test: test.id()))
        if at % parts == part and (not names or any(name in test.id() for name in names))
    ]
    outcomes = Outcomes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for test in chosen:
            test.run(outcomes)
            kind = outcomes.kinds.get(_name(test))
            print(f"{kind}: {_name(test)} {outcomes.texts.get(_name(test), '')}", flush=True)
    return outcomes


def main() -> None:
    """Run, print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--part", default="1/1")
    asked = parser.parse_args()
    at, parts = map(int, asked.part.split("/"))
    outcomes = run(asked.names, at - 1, parts)
    counts = Counter(outcomes.kinds.values())
    ran = sum(counts.values()) - counts["skipped"]
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    if ran:
        print(f"right without the host: {counts['device'] / ran:.1%}")
        print(f"right: {1 - counts['wrong'] / ran:.1%}")
    sys.exit(1 if counts["wrong"] else 0)


if __name__ == "__main__":
    main()
