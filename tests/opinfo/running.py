"""Runs a case through the backend and finds what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pjrt_bridge.torch_interop import compat
from tests.opinfo import cases
from tests.opinfo.case import Case
from tests.opinfo.cases import Sample
from tests.opinfo.exact import is_as_near, widened
from tests.opinfo.ties import SPECTRAL, differ_in_ties, in_phase
from tests.sweeping.command import ROUNDED
from tests.sweeping.comparing import Numbers, Ran, differences
from tests.sweeping.placed import line_of, name_of, placement, take
from tests.sweeping.worker import Verdict

Backend = str | Callable[..., Any]


def run_case(case: Case, info: Any, count: int = cases.SAMPLES) -> Verdict:
    """Run a case with so many samples."""
    started = time.perf_counter()
    verdict = Verdict()
    try:
        samples = cases.samples(info, case, count)
    except Exception as error:
        verdict.outcomes.add(f"unsampled {type(error).__name__}")
        samples = []
    else:
        if not samples:
            verdict.outcomes.add("unsampled")
    if samples:
        _Run(case, info, verdict).together(samples)
    verdict.seconds = time.perf_counter() - started
    return verdict


def run_wide_case(case: Case, info: Any, count: int) -> Verdict:
    """Run a case with all its samples, or so many; by torch's own tolerances where that goes."""
    started = time.perf_counter()
    verdict = Verdict()
    try:
        samples = cases.wide_samples(info, case, count)
    except Exception as error:
        verdict.outcomes.add(f"unsampled {type(error).__name__}")
        samples = []
    else:
        verdict.outcomes.add(f"samples {len(samples)}" if samples else "unsampled")
    run = _Run(case, info, verdict, strict=True)
    numbered = list(enumerate(samples))
    for first in range(0, len(numbered), _TOGETHER):
        run.halved(numbered[first : first + _TOGETHER])
    verdict.seconds = time.perf_counter() - started
    return verdict


_TOGETHER = 16
"""Samples of a wide sweep that become one graph."""


class _Run:
    def __init__(self, case: Case, info: Any, verdict: Verdict, strict: bool = False) -> None:
        self._case = case
        self._backward = case.direction == "backward"
        self._function = cases.function(info, case)
        self._tolerance = partial(cases.tolerance, info)
        self._strict = partial(cases.strict_tolerance, info) if strict else None
        self._verdict = verdict

    def together(self, samples: list[Sample]) -> None:
        """All samples as one graph, which is fast; each alone where that does not simply work."""
        trouble = self._one_graph(samples)
        if trouble is None:
            return
        known = len(self._verdict.problems)
        uncertain = False
        for number, sample in enumerate(samples):
            uncertain |= self.alone(number, sample)
        alike = len(self._verdict.problems) == known
        if trouble and not uncertain and alike and not self._depends_on_seed(samples):
            self._verdict.problems.append(f"only as one graph: {trouble}")

    def halved(self, samples: list[tuple[int, Sample]]) -> None:
        """Samples, with their numbers, as one graph; each half alone where that does not work."""
        if len(samples) == 1:
            self.alone(*samples[0])
        elif self._one_graph([sample for _, sample in samples]) is not None:
            middle = len(samples) // 2
            self.halved(samples[:middle])
            self.halved(samples[middle:])

    def _one_graph(self, samples: list[Sample]) -> str | None:
        """None where all is well, else what is not; empty where nothing was compared."""
        if len(samples) == 1:
            return ""
        try:
            expected = self._eager(samples)
        except Exception:
            return ""
        try:
            found = self._compiled("pjrt", samples)
        except Exception as error:
            return f"{name_of(error)}: {line_of(error)}"
        trouble = [diff for run in found for diff in self._compare(run, expected)]
        if not trouble:
            flag = self._looseness(found, expected)
        elif self._is_rounded(samples, found, expected):
            flag = ROUNDED
        else:
            return trouble[0]
        self._verdict.outcomes.add(placement(take()) + flag)
        return None

    def _looseness(self, found: Sequence[Ran], expected: Ran) -> str:
        """The flag for values that agree, but not by torch's own tolerances."""
        if self._strict is None:
            return ""
        loose = any(differences(run, expected, self._strict, Numbers.ALL) for run in found)
        return " ~loose" if loose else ""

    def alone(self, number: int, sample: Sample) -> bool:
        """One sample; whether its values are not determined."""
        try:
            expected = self._eager([sample])
        except Exception as error:
            self._verdict.outcomes.add(f"eager {name_of(error)}")
            return True
        try:
            found = self._compiled("pjrt", [sample])
        except Exception as error:
            self._judge_failure(number, sample, expected, error)
            return True
        placed = placement(take())
        flag = self._judge(number, sample, expected, found)
        self._verdict.outcomes.add(placed + flag)
        return bool(flag)

    def _judge_failure(self, number: int, sample: Sample, expected: Ran, error: Exception) -> None:
        """An exception is torch's if torch's own backend ends in the same."""
        if not self._fails_alike("aot_eager", sample, error):
            self._problem(number, f"{name_of(error)}: {line_of(error)}")
            return
        flag = ""
        try:
            found = self._compiled("pjrt", [sample], fullgraph=False)
        except Exception as second:
            if not self._fails_alike("aot_eager", sample, second, fullgraph=False):
                self._problem(number, f"with graph breaks, {name_of(second)}: {line_of(second)}")
            flag = " !"
        else:
            flag = self._judge(number, sample, expected, found, fullgraph=False)
        self._verdict.outcomes.add(f"untraceable {name_of(error)}{flag}")

    def _fails_alike(
        self, backend: Backend, sample: Sample, error: Exception, fullgraph: bool = True
    ) -> bool:
        try:
            self._compiled(backend, [sample], fullgraph=fullgraph)
        except Exception as other:
            return name_of(other) == name_of(error)
        return False

    def _judge(
        self,
        number: int,
        sample: Sample,
        expected: Ran,
        found: Sequence[Ran],
        fullgraph: bool = True,
    ) -> str:
        """Compare with eager; a flag where eager itself gives no one answer."""
        trouble = [diff for run in found for diff in self._compare(run, expected)]
        if not trouble:
            return self._looseness(found, expected)
        if all(differ_in_ties(run, expected, sample) for run in found):
            return " ~ties"
        if self._case.entry in SPECTRAL and not any(
            diff for run in found for diff in self._compare(in_phase(run, expected), expected)
        ):
            return " ~phases"
        flag = self._undetermined(sample, expected)
        if flag:
            loose = [
                diff
                for run in found
                for diff in self._compare(
                    run, expected, Numbers.MEAN if "random" in flag else Numbers.NONE
                )
            ]
            for diff in loose[:1]:
                self._problem(number, diff)
            return flag
        if self._as_compiled_by("aot_eager", sample, found, fullgraph):
            return " ~traced"
        if all("]: strides " in diff for diff in trouble) and self._as_compiled_by(
            decomposed, sample, found, fullgraph
        ):
            return " ~strides"
        if self._is_rounded([sample], found, expected):
            return ROUNDED
        if self._strict is not None and self._is_right_where_finite(sample):
            return " ~infinite"
        self._problem(number, trouble[0])
        return ""

    def _is_rounded(self, samples: list[Sample], found: Sequence[Ran], expected: Ran) -> bool:
        """Whether all is as near to the results in double precision as eager's."""
        try:
            exact = self._eager([widened(sample) for sample in samples], like=expected.results)
        except Exception:
            return False
        return all(is_as_near(run, expected, exact, self._tolerance) for run in found)

    def _is_right_where_finite(self, sample: Sample) -> bool:
        """Whether only complex numbers that are infinite or NaN are computed in another way."""
        leaves, structure = pytree.tree_flatten((sample.args, sample.kwargs))
        finite = [_finite(leaf) for leaf in leaves]
        if all(one is other for one, other in zip(leaves, finite, strict=True)):
            return False
        args, kwargs = pytree.tree_unflatten(finite, structure)
        changed = Sample(args, kwargs, sample.differentiated)
        try:
            expected = self._eager([changed])
            found = self._compiled("pjrt", [changed])
        except Exception:
            return False
        return not any(self._compare(run, expected) for run in found)

    def _as_compiled_by(
        self, backend: Backend, sample: Sample, found: Sequence[Ran], fullgraph: bool
    ) -> bool:
        """Whether another backend gives the same, call by call."""
        try:
            theirs = self._compiled(backend, [sample], fullgraph=fullgraph)
        except Exception:
            return False
        return not any(self._compare(*pair) for pair in zip(found, theirs, strict=True))

    def _undetermined(self, sample: Sample, expected: Ran) -> str:
        """The flag for values that depend on the seed or on what uninitialised memory holds."""
        if self._compare(self._eager([sample], memory=0), expected):
            return " ~uninitialised"
        return " ~random" if self._compare(self._eager([sample], seed=1), expected) else ""

    def _depends_on_seed(self, samples: list[Sample]) -> bool:
        """Whether values differ with the seed; those of few small samples may agree by chance."""
        expected = self._eager(samples)
        others = (self._eager(samples, seed=seed) for seed in range(1, 5))
        return any(self._compare(other, expected) for other in others)

    def _eager(
        self, samples: list[Sample], seed: int = 0, memory: int = 1, like: list[Any] | None = None
    ) -> Ran:
        """The oracle. New memory holds ones, so a result that shows it is never right by chance.

        Args:
            samples: what is computed.
            seed: of random numbers.
            memory: what new memory holds.
            like: results of the same samples in other element types, whose tangents are taken.
        """
        plain = self._execute(self._function, samples, seed, like)
        try:
            filled = self._eager_on(memory, samples, seed, like)
        except NotImplementedError:
            # Higher-order operators run under no mode that torch does not know.
            return plain
        if not self._compare(plain, filled):
            return filled
        # Either it shows new memory, or is computed otherwise while operators are intercepted.
        shows = self._compare(self._eager_on(1 - memory, samples, seed, like), filled)
        return filled if shows else plain

    def _eager_on(
        self, memory: int, samples: list[Sample], seed: int, like: list[Any] | None
    ) -> Ran:
        with Filled(memory):
            return self._execute(self._function, samples, seed, like)

    def _compare(self, found: Ran, expected: Ran, numbers: Numbers = Numbers.ALL) -> list[str]:
        trouble = differences(found, expected, self._tolerance, numbers)
        if trouble and self._strict is not None:
            # Torch's own tolerance may be the larger one.
            trouble = differences(found, expected, self._strict, numbers)
        return trouble

    def _problem(self, number: int, text: str) -> None:
        self._verdict.problems.append(f"sample {number}: {text}")

    def _compiled(
        self, backend: Backend, samples: list[Sample], fullgraph: bool = True
    ) -> tuple[Ran, Ran]:
        """Two calls of the compiled function, the second with other memory."""
        torch._dynamo.reset()
        take()
        function = torch.compile(
            self._function, backend=backend, dynamic=False, fullgraph=fullgraph
        )
        return self._execute(function, samples), self._execute(function, samples)

    def _execute(
        self,
        function: Callable[..., Any],
        samples: list[Sample],
        seed: int = 0,
        like: list[Any] | None = None,
    ) -> Ran:
        own = [sample.fresh() for sample in samples]
        cases.seed(seed)
        results = function([(sample.args, sample.kwargs) for sample in own])
        gradients = _gradients(own, results, like or results) if self._backward else []
        return Ran(results, gradients, [(sample.args, sample.kwargs) for sample in own])


def decomposed(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that runs the graphs that lowerings are given, but runs them in PyTorch."""

    def run(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[[list[Any]], Any]:
        return compat.boxed(lambda arguments: graph.forward(*arguments))

    return compat.run_aot_autograd(graph, inputs, forward=run, backward=run, inference=run)


def _finite(leaf: Any) -> Any:
    """A complex tensor with ones in place of what is infinite or NaN; anything else as it is."""
    if not isinstance(leaf, torch.Tensor) or not leaf.is_complex():
        return leaf
    known = leaf.detach()
    if known.layout is not torch.strided or bool(known.isfinite().all()):
        return leaf
    changed = torch.where(known.isfinite(), known, torch.ones_like(known))
    return changed.requires_grad_(leaf.requires_grad)


class Filled(TorchDispatchMode):
    """Writes a number into all memory that an operator allocates without a value."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **kwargs or {})
        if "empty" in func.name() and result.layout is torch.strided and not result.is_quantized:
            result.fill_(self._number)
        return result


def _gradients(samples: list[Sample], results: list[Any], like: list[Any]) -> list[torch.Tensor]:
    """Gradients of the inputs of samples.

    Args:
        samples: with the inputs.
        results: of the samples.
        like: results in the element types in which tangents are drawn, since torch draws other
            numbers in each.
    """
    inputs = [leaf for sample in samples for leaf in sample.tensors() if leaf.requires_grad]
    outputs = _differentiable(samples, results)
    if not inputs or not outputs:
        return []
    generator = torch.Generator().manual_seed(1)
    tangents = [
        torch.randn(out.shape, dtype=one.dtype, generator=generator).to(out.dtype)
        if out.layout is torch.strided
        else torch.ones_like(out)
        for out, one in zip(outputs, _differentiable(samples, like), strict=True)
    ]
    found = torch.autograd.grad(outputs, inputs, tangents, allow_unused=True)
    return [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(inputs, found, strict=True)
    ]


def _differentiable(samples: list[Sample], results: list[Any]) -> list[torch.Tensor]:
    return [
        leaf
        for sample, result in zip(samples, results, strict=True)
        for leaf in pytree.tree_leaves(sample.differentiated(result))
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
