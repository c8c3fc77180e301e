"""`python -m tests.differential.attention`: random programs that write attention out.

Products around a softmax, with scales, masks, views and element types as models have them, are
joined to one operator of torch's where that is worth it: here wherever it can be. A program follows
from the seed and its index, and is judged as those of the grammar are, in this process; what fails
is shrunk and printed as a test.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from tests.configuration import isolated
from tests.differential.ir import Name, Operand, Program, Statement
from tests.differential.judging import Judge
from tests.differential.modes import Mode
from tests.differential.printing import as_test
from tests.differential.shrinking import shrink
from tests.torch_interop.passes.attention.everywhere import joined

MODES = (Mode(), Mode("dynamic", True), Mode("automatic", None))

_SIDES = ("b, h, {}, d", "b, {}, h, d", "b, {}, h * d")
"""Sizes of queries, keys and values, with a place for their length."""

_SPLIT = {
    "b, h, {}, d": ("{0}",),
    "b, {}, h, d": ("{0}.transpose(1, 2)",),
    "b, {}, h * d": (
        "{0}.view(b, -1, h, d).permute(0, 2, 1, 3)",
        "{0}.unflatten(-1, (h, d)).transpose(1, 2)",
    ),
}
"""What divides them into heads."""

_SCORES = (
    "{0} @ {1}.mT",
    "torch.matmul({0}, {1}.transpose(-1, -2))",
    'torch.einsum("...id,...jd->...ij", {0}, {1})',
    "torch.bmm({0}.reshape(b * h, -1, d), {1}.reshape(b * h, -1, d).mT)",
)

_SCALED = ("{0}", "{0} * 0.25", "{0} / 3.0**0.5", "-0.5 * {0}", "{0} * 0.25 / 3.0**0.5")

_MASKED = (
    "{0} + {1}",
    "{0} + {1}[..., :1]",
    '{0}.masked_fill({1} < -1, float("-inf"))',
    "{0}.masked_fill({1} < -0.5, -1e9)",
    "{0}.masked_fill({1} < -0.5, -5.0)",
    "{0}.masked_fill({1}[..., :1] < -0.5, -1e9)",
    "torch.where({1} > -0.8, {0}, torch.finfo(torch.float32).min)",
    'torch.where({1} > -0.9, {0}, torch.full_like({0}, float("-inf")))',
    '{0}.masked_fill(torch.ones(t, s, dtype=torch.bool).triu(1), float("-inf"))',
    "{0} + torch.where({1} > 0, 0.0, torch.finfo(torch.float32).min)",
)

_WEIGHTS = (
    "torch.softmax({0}, -1).to({1}.dtype)",
    "torch.nn.functional.softmax({0}, dim=-1).to({1}.dtype)",
    "torch.softmax({0}, -1, dtype=torch.float32).to({1}.dtype)",
    "torch.softmax({0}, -1, dtype=torch.float64).to({1}.dtype)",
)

_RESULTS = ("{0}", "{0} * 2", "{0}.transpose(1, 2).flatten(2)", "{0}.mT.contiguous()")


_SIZE = re.compile(r"\b[bhtsd]\b")
"""What a program calls batches, heads, queries, keys and the size of one."""


def generate(seed: int, index: int) -> Program:
    """The program of a seed and an index."""
    rng = random.Random(f"attention {seed} {index}")
    backward = rng.choice(["", "backward"])
    side = rng.choice(_SIDES)
    body, result = _attention(rng, rng.choice(_SPLIT[side]))
    return Program(
        columns=("b", "h", "t", "s", "d"),
        calls=_calls(rng),
        setup=_arguments(rng, side, trains=bool(backward)),
        parameters=("q", "k", "v", "m", "b", "h", "t", "s", "d"),
        body=body,
        result=result,
        backward=backward,
        where=(seed, index),
    )


def _line(text: str, operands: tuple[Operand, ...], target: str) -> Statement:
    """A line of which sizes are operands, too, so that shrinking knows of them."""
    sizes = sorted(set(_SIZE.findall(text)))
    for number, size in enumerate(sizes, len(operands)):
        text = re.sub(rf"\b{size}\b", f"{{{number}}}", text)
    return Statement(text, (*operands, *map(Name, sizes)), target)


def _calls(rng: random.Random) -> tuple[tuple[int, ...], ...]:
    """Rows of sizes, which differ in the batch and the lengths."""
    heads, size = rng.choice((1, 2, 4)), rng.choice((1, 4, 8))

    def row() -> tuple[int, ...]:
        return rng.choice((1, 2, 3)), heads, rng.choice((1, 5, 16)), rng.choice((1, 7, 16)), size

    return tuple(row() for _ in range(rng.choice((1, 1, 2, 3))))


def _arguments(rng: random.Random, side: str, *, trains: bool) -> tuple[Statement, ...]:
    """Queries, keys, values and a mask of numbers."""
    dtype = rng.choices([torch.float32, torch.bfloat16], [6, 1])[0]
    made = []
    for number, (name, length) in enumerate((("q", "t"), ("k", "s"), ("v", "s"))):
        text = f"(fine(({side.format(length)}), {{0}}, {number}) / 4)"
        text += ".requires_grad_()" if trains and rng.random() < 0.8 else ""
        made.append(_line(text, (dtype,), name))
    sizes = [rng.choice(("1", size)) for size in "bht"]
    mask = ", ".join((*sizes, "s")[rng.choice((0, 0, 1, 2)) :])
    made.append(_line(f"fine(({mask}), {{0}}, 3) / 2", (dtype,), "m"))
    return tuple(made)


def _attention(rng: random.Random, split: str) -> tuple[tuple[Statement, ...], Operand]:
    """The statements, and what they return."""
    body: list[Statement] = []

    def write(text: str, *operands: Name) -> Name:
        if text == "{0}":
            return operands[0]
        body.append(_line(text, operands, f"v{len(body)}"))
        return Name(body[-1].target)

    query, key, value = (write(split, Name(name)) for name in "qkv")
    if rng.random() < 0.2:
        query = write("{0} * 0.3", query)
    form = rng.choice(_SCORES)
    scores = write(rng.choice(_SCALED), write(form, query, key))
    if "bmm" in form:
        scores = write("{0}.view(b, h, t, s)", scores)
    for mask in rng.sample(_MASKED, rng.choice((0, 1, 1, 2))):
        scores = write(mask, scores, Name("m"))
    weights = write(rng.choice(_WEIGHTS), scores, value)
    found = write("{0} @ {1}", weights, value)
    result = write(rng.choice(_RESULTS), found)
    return tuple(body), result


def mode_of(program: Program) -> Mode:
    """How it is compiled."""
    return random.Random(f"mode {program.where}").choice(MODES)


@dataclass
class Found:
    """What a run did.

    Attributes:
        programs: how many ran.
        joined: in how many of them attention was joined.
        raised: in how many of them eager mode raised.
        failures: what differs, each with a test.
    """

    programs: int = 0
    joined: int = 0
    raised: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, seed: int, index: int, shrinking: float = 20.0) -> None:
        """Run a program; what fails is shrunk for so many seconds."""
        program = generate(seed, index)
        mode = mode_of(program)
        # Every other one by the kernel: what is as small is written out else.
        with joined(by_kernel=bool(index % 2)) as emitted:
            judge = Judge(program)
            wrong = judge.run(mode)
            self.programs += 1
            self.raised += judge.answer.raised
            self.joined += bool(emitted)
            if not wrong:
                return
            kind = wrong[0].kind

            def fails(candidate: Program, way: Mode) -> bool:
                return any(item.kind == kind for item in Judge(candidate).run(way))

            test = as_test(*shrink(program, mode, fails, shrinking))
        told = "\n".join(f"#   {item}" for item in wrong)
        self.failures.append(f"# program {index}, mode {mode.name}\n{told}\n{test}")


@isolated()
def main() -> int:
    """The process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential.attention")
    parser.add_argument("--seconds", type=float, default=60, help="how long to go on (60)")
    parser.add_argument("--seed", type=int, default=0, help="of the programs (0)")
    parser.add_argument("--first", type=int, default=0, help="index of the first program (0)")
    parser.add_argument("--only", type=int, default=None, help="the program of this index alone")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    indices: Iterator[int] | Sequence[int] = itertools.count(options.first)
    if options.only is not None:
        indices = [options.only]
        print(generate(options.seed, options.only).source())
    deadline = time.monotonic() + options.seconds
    found = Found()
    for index in indices:
        if time.monotonic() > deadline:
            break
        before = len(found.failures)
        found.add(options.seed, index)
        print("".join(found.failures[before:]), end="", flush=True)
    print(
        f"seed {options.seed}: {found.programs} programs, {found.joined} joined, "
        f"{found.raised} raised, {len(found.failures)} failures"
    )
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
