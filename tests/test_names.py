"""Words have one meaning: class names of the core, and the glossary."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.test_layers import CORE, ROOT

ONE_A_FRAMEWORK = {
    "Emitted",
    "HostSegment",
    "Part",
    "Placement",
    "Split",
}
"""The same of a graph of PyTorch and of a function of TensorFlow."""

OF_USERS_AND_WITHIN = {
    "Event": "`torch.cuda.Event`'s counterpart, and PJRT's event",
    "Mesh": "the grid of a program, and the one that users of torch make",
    "Stream": "`torch.Stream` of the device, and PJRT's extension",
}


def _definitions(source: str) -> Iterator[tuple[str, str]]:
    """Names of a module's classes and type aliases, without underscores, and what each is."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_"), ast.dump(node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if isinstance(node.value, ast.Call):
                continue
            name = node.targets[0].id.lstrip("_")
            if name[:1].isupper() and not name.isupper():
                yield name, ast.dump(node.value)


def test_class_names_have_one_meaning() -> None:
    found: defaultdict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for module, path in CORE.items():
        for name, meaning in _definitions(path.read_text()):
            found[name][meaning].append(module)
    several = {name: list(where.values()) for name, where in found.items() if len(where) > 1}
    for name in (*ONE_A_FRAMEWORK, *OF_USERS_AND_WITHIN):
        assert several.pop(name, None), f"{name} stands once and needs no exception"
    assert not several, "\n".join(f"{name}: {where}" for name, where in sorted(several.items()))


def test_the_glossary_has_each_word_once_and_names_what_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    glossary = text[text.index("## Glossary") : text.index("## How a torch program is compiled")]
    rows = [line.strip("|").split("|") for line in glossary.splitlines() if line.startswith("|")]
    words = Counter(word.strip() for row in rows for word in row[0].split(","))
    assert [word for word, count in words.items() if count > 1] == ["word", "---"]
    places = {place for row in rows for place in re.findall("`(.*?)`", row[2])}
    roots = (ROOT / "pjrt_bridge", ROOT)
    assert [place for place in places if not any((root / place).exists() for root in roots)] == []
