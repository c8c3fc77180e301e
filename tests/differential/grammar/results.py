"""What a program returns."""

from __future__ import annotations

from tests.differential.draft import Draft
from tests.differential.ir import Name, Operand


def make(draft: Draft) -> Operand:
    """Some variables, nested."""
    rng = draft.rng
    read = {name for statement in draft.body for name in statement.reads()}
    inner = [statement.target for statement in draft.body if statement.target]
    unread = [name for name in inner if name not in read]
    parameters = [name for name in draft.visible if name in draft.parameters]
    chosen: list[Operand] = []
    for _ in range(rng.choices([0, 1, 2, 3, 4, 6], [1, 7, 7, 6, 5, 3])[0]):
        if unread and rng.random() < 0.6:
            chosen.append(Name(unread.pop()))
        elif inner and rng.random() < 0.8:
            chosen.append(Name(rng.choice(inner)))
        elif parameters:
            chosen.append(Name(rng.choice(parameters)))
            draft.features.add("results.argument")
    # What nobody reads is not computed.
    chosen += [Name(name) for name in unread if rng.random() < 0.7]
    if draft.failed and draft.body[-1].target:
        # What is not returned is not computed, and then raises nothing.
        chosen.append(Name(draft.body[-1].target))
    if chosen and rng.random() < 0.1:
        chosen.append(rng.choice(chosen))
        draft.features.add("results.duplicate")
    if chosen and rng.random() < 0.08:
        chosen.append(rng.choice([None, 3, "text", True]))
        draft.features.add("results.constant")
    if not chosen:
        draft.features.add("results.none")
        return None
    if len(chosen) == 1 and rng.random() < 0.7:
        return chosen[0]
    if rng.random() < 0.25:
        draft.features.add("results.nested")
        head, *rest = chosen
        return rng.choice([{"a": head, "b": rest}, [head, tuple(rest)], {"only": chosen}])
    return tuple(chosen) if rng.random() < 0.7 else chosen
