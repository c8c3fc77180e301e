"""Programs from a seed and an index."""

from __future__ import annotations

import random
from functools import cache
from importlib import import_module

from tests.differential.draft import Draft, Unfit
from tests.differential.grammar import arguments, containers, results
from tests.differential.grammar.registry import PRODUCTIONS, apply
from tests.differential.ir import Program
from tests.differential.using import USES, WEIGHTED

_FAMILIES = {
    "views": 10.0,
    "mutation": 9.0,
    "elementwise": 6.0,
    "reductions": 2.5,
    "indexing": 2.5,
    "joining": 2.0,
    "sorting": 1.0,
    "matrices": 1.5,
    "creation": 1.5,
    "control": 1.5,
    "scalars": 2.0,
    "containers": 4.0,
    "regions": 2.0,
    "formats": 1.0,
    "random": 0.6,
    "layers": 3.0,
    "losses": 1.0,
    "functions": 3.0,
    "arrays": 3.0,
}


@cache
def load() -> None:
    """Register all productions."""
    for name in (
        "views",
        "elementwise",
        "mutation",
        "reductions",
        "indexing",
        "joining",
        "control",
        "scalars",
        "containers",
        "regions",
        "formats",
        "layers",
        "sequences",
        "losses",
        "functions",
        "arrays",
    ):
        import_module(f"tests.differential.grammar.{name}")


def features() -> list[str]:
    """The names of all productions, and of what arguments and the uses of results may be."""
    load()
    return [
        *(f"{family}.{name}" for family, found in PRODUCTIONS.items() for name in found),
        *(f"arguments.{name}" for name in (*arguments.WAYS, *containers.KINDS)),
        *(f"afterwards.{name}" for name in (*USES, WEIGHTED)),
    ]


def generate(seed: int, index: int) -> Program:
    """The program of a seed and an index."""
    load()
    rng = random.Random(f"program {seed} {index}")
    training = rng.random() < 0.3
    columns, rows, marks = arguments.table(rng)
    draft = Draft(rng, columns, rows)
    draft.features |= marks
    arguments.make(draft, arguments.types(rng, training), training)
    containers.take_out(draft)
    families, productions = _chosen(rng)
    if "numbers.alone" in draft.features:
        # Else most such programs do not read the number.
        families["scalars"] = max(families["scalars"], 20.0)
    wanted = rng.choices([2, 3, 4, 6, 8, 10, 12, 16], [1, 2, 3, 4, 5, 5, 4, 2])[0]
    wanted += len(draft.body)
    for _ in range(wanted * 12):
        if len(draft.body) >= wanted:
            break
        (family,) = rng.choices(list(families), list(families.values()))
        names = productions[family]
        (name,) = rng.choices(list(names), list(names.values()))
        try:
            apply(draft, family, name)
        except Unfit:
            continue
    if rng.random() < 0.06:
        _fail(draft)
    backward = ""
    if "arguments.requires_grad" in draft.features:
        backward = rng.choice(["backward", "part", "grad", "twice"])
        draft.features.add(f"backward.{backward}")
    afterwards: tuple[str, ...] = ()
    # Gradients that are computed after all calls need results that nobody wrote into.
    if rng.random() < 0.15 and not draft.drawn and backward != "twice":
        afterwards = tuple(rng.sample(sorted(USES), rng.choice([1, 1, 2])))
        if rng.random() < 0.4:
            afterwards = (WEIGHTED, *afterwards[1:])
        draft.features |= {f"afterwards.{name}" for name in afterwards}
    result = results.make(draft)
    return draft.program(result, backward, afterwards, (seed, index))


def _chosen(rng: random.Random) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Weights for this program: some families and productions are left out, so others meet."""
    families = {
        name: weight * rng.choice([0, 0.5, 1, 1, 1, 3]) for name, weight in _FAMILIES.items()
    }
    if not any(families.values()):
        families = dict(_FAMILIES)
    if rng.random() < 0.35:
        # So that the small families have programs of their own, too.
        families[rng.choice(list(families))] = 20.0
    productions = {}
    for family in families:
        found = {
            name: weight * rng.choice([0, 1, 1, 4])
            for name, (_, weight) in PRODUCTIONS[family].items()
        }
        if not any(found.values()):
            found = {name: weight for name, (_, weight) in PRODUCTIONS[family].items()}
        productions[family] = found
    return families, productions


def _fail(draft: Draft) -> None:
    for _ in range(20):
        name = draft.rng.choice(list(PRODUCTIONS["errors"]))
        try:
            if apply(draft, "errors", name):
                return
        except Unfit:
            continue
