"""Planted faults apply to the code as it is, and a run tells found ones from others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planted.__main__ import line, main
from tests.planted.fault import ROOT, Fault, load, mirror
from tests.planted.running import failing_anyway, run_tests, try_one
from tests.planted.tree import Tree

FAULTS = {fault.name: fault for fault in load()}
CHEAP = "signed-numbers-are-cut"

needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no working tree of Git")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(tmp_path_factory.mktemp("planted") / "tree")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_each_fault_can_still_be_planted(fault: Fault) -> None:
    assert fault.objection() is None
    # A fault that is a mistake in Python would be found by any import.
    if fault.path.endswith(".py"):
        compile(fault.planted((ROOT / fault.path).read_text()), fault.path, "exec")


def test_there_are_faults_of_every_kind() -> None:
    assert len(FAULTS) >= 40
    groups = {fault.group for fault in FAULTS.values()}
    assert groups == {
        "commands",
        "exported",
        "gradients",
        "graphs",
        "lowerings",
        "registry",
        "runtime",
        "tensorflow",
    }
    assert any(fault.path.endswith(".c") for fault in FAULTS.values())


def test_no_test_was_chosen_by_its_name() -> None:
    assert not [test for fault in FAULTS.values() for test in fault.tests if "::" in test]


def test_the_mirror_a_module_are_its_mirror() -> None:
    assert mirror("pjrt_bridge/mixed/partition.py") == ["tests/mixed/test_partition.py"]
    assert mirror("pjrt_bridge/runtime/ownership/pins.py") == ["tests/runtime/ownership"]
    assert mirror("plugins/cpu/pjrt_bridge_cpu/builds.py") == []


def test_what_cannot_be_planted_is_told() -> None:
    fault = FAULTS[CHEAP]
    for changed, reason in (
        (replace(fault, before="no such text"), "found the text 0 times, expected it once"),
        (replace(fault, before="field"), "times, expected it once"),
        (replace(fault, path="pjrt_bridge/nowhere.py"), "is not there"),
        (replace(fault, after=fault.before), "it changes nothing"),
        (replace(fault, tests=("tests/nowhere",)), "there are no tests tests/nowhere"),
    ):
        assert reason in str(changed.objection())


@needs_git
def test_a_fault_is_found_and_taken_away_again(tree: Tree) -> None:
    fault = FAULTS[CHEAP]
    before = (tree.folder / fault.path).read_text()
    hit = try_one(tree, fault)
    assert hit.found, line(hit)
    assert hit.test.startswith("tests/test_wire.py::")
    assert (tree.folder / fault.path).read_text() == before == (ROOT / fault.path).read_text()


@needs_git
def test_what_is_wrong_with_a_run_is_told_from_a_fault_that_is_found(tree: Tree) -> None:
    """Of a fault that no test sees, a module that cannot be imported, and a changed text."""
    fault = FAULTS[CHEAP]
    unseen = try_one(tree, replace(fault, before="the encoding guide of", after="the guide of"))
    assert not unseen.found
    assert "NOT FOUND" in line(unseen)
    broken = try_one(tree, replace(fault, before="import struct\n", after="import nowhere\n"))
    assert not broken.found
    assert "pytest ended with status" in broken.objection
    assert broken.objection in line(broken)
    gone = try_one(tree, replace(fault, before="no such text"))
    assert not gone.found
    assert "expected it once" in gone.objection


@needs_git
def test_tests_that_fail_anyway_are_told(tree: Tree) -> None:
    folder = tree.folder / "tests" / "failing"
    folder.mkdir()
    text = """
import pytest

@pytest.mark.parametrize("x", ["a", "b - c::d", "e"])
def test_it(x):
    assert x == "a"
"""
    (folder / "test_it.py").write_text(text)
    good, bad, also_bad = (
        f"tests/failing/test_it.py::test_it[{x}]" for x in ("a", "b - c::d", "e")
    )
    ended = run_tests(tree, ["tests/failing/test_it.py"], "-x")
    assert (ended.status, ended.failed) == (1, (bad,))
    assert failing_anyway(tree, {good, bad, also_bad}) == {bad, also_bad}
    gone = "tests/failing/test_it.py::test_other"
    assert failing_anyway(tree, {good, gone}) == {gone}
    assert failing_anyway(tree, set()) == set()


def test_the_list_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "registry", "--only", CHEAP]) == 0
    shown = capsys.readouterr().out
    assert f"{sum(f.group == 'registry' for f in FAULTS.values()) + 1} faults" in shown
    assert "pjrt_bridge/wire.py: tests/test_wire.py" in shown
