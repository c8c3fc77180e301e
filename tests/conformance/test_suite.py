"""The suite as a whole: names, selection, what it covers, and that its checks can fail."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

from pjrt_bridge.errors import OptionError
from pjrt_bridge.stablehlo import Program, bindings, modules
from pjrt_bridge_conformance import Check, Group, Needs, Status, suite
from pjrt_bridge_conformance.outcomes import Unsupported
from pjrt_bridge_conformance.suite import CLIENT, LOAD, selected
from pjrt_bridge_conformance.worker import judge
from tests.conformance import recording

CHECKS = suite()
GROUPS = {
    "abi",
    "extensions",
    "lifecycle",
    "devices",
    "data",
    "numerics",
    "async",
    "donation",
    "layouts",
    "collectives",
    "errors",
    "executables",
    "serialization",
}
NOT_COVERED = {
    # They exchange data with the host through callbacks or queues of the framework.
    "infeed",
    "outfeed",
    "send",
    "recv",
    # A plugin meets them inside other frameworks' compilers only.
    "async_start",
    "async_done",
    # The bindings do not read quantized types.
    "uniform_quantize",
    "uniform_dequantize",
    # Deprecated, and without a meaning in the specification.
    "cross-replica-sum",
    "unary_einsum",
    # What it computes is the plugin's; errors.unknown_custom_call has one.
    "custom_call",
}


def test_size_and_groups() -> None:
    assert len(CHECKS) > 1000
    assert {check.group for check in CHECKS.values()} == GROUPS
    assert CHECKS[LOAD].needs is Needs.NOTHING
    assert CHECKS[CLIENT].needs is Needs.LIBRARY


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_every_check_has_a_name_and_a_sentence(group: str) -> None:
    for check in CHECKS.values():
        if check.group == group:
            assert re.fullmatch(r"[a-z]+(\.[A-Za-z0-9_,-]+)+", check.name), check.name
            assert check.name.startswith(f"{group}.")
            assert re.fullmatch(r"[A-Z].*\.", check.sentence), check.name


def test_groups_come_in_one_piece_and_gates_first() -> None:
    assert list(CHECKS)[:2] == [LOAD, CLIENT]
    groups = [check.group for check in list(CHECKS.values())[2:]]
    assert groups == sorted(groups, key=list(dict.fromkeys(groups)).index)


def test_selection() -> None:
    def names(*patterns: str) -> list[str]:
        return [check.name for check in selected(CHECKS, patterns)]

    assert names() == list(CHECKS)
    assert names("data.put_get.int8") == [LOAD, CLIENT, "data.put_get.int8"]
    assert set(names("data")) - {LOAD, CLIENT} == {
        name for name in CHECKS if name.startswith("data.")
    }
    assert names("numerics.add") == names("numerics.add.*")
    assert names("abi.load") == [LOAD, CLIENT]
    with pytest.raises(OptionError, match=r"--only nonsense: no check has such a name"):
        names("data", "nonsense")


def test_further_modules() -> None:
    more = suite(["tests.conformance.misbehaving"])
    assert set(more) - set(CHECKS) == {name for name in more if name.startswith("misbehaving.")}
    for name in ("tests.conformance.nowhere", "nowhere"):
        with pytest.raises(OptionError, match=re.escape(f"there is no module {name!r}")):
            suite([name])
    with pytest.raises(OptionError, match="has no Group of checks"):
        suite(["tests.programs"])
    with pytest.raises(OptionError, match=r"there is a check misbehaving\.passes already"):
        suite(["tests.conformance.misbehaving"] * 2)


def test_two_checks_of_one_name() -> None:
    group = Group("mine")
    group.add("one", "It holds.", lambda context: None)
    with pytest.raises(ValueError, match=r"two checks with the name mine\.one"):
        group.add("one", "It holds.", lambda context: None)


def test_every_operation_of_the_dialect_is_run() -> None:
    found: set[str] = set()

    def seen(program: Program) -> None:
        module = bindings.parse(program.bytecode(), "a program")
        found.update(operation.name for operation in modules.operations(module))
        raise Unsupported("recorded")

    context = recording.context(seen)
    for check in CHECKS.values():
        if check.group in ("numerics", "collectives"):
            assert judge(check, context) == (Status.UNSUPPORTED, "recorded"), check.name
    assert dialect() - {name.removeprefix("stablehlo.") for name in found} == NOT_COVERED


def dialect() -> set[str]:
    """Names of the operations that the bindings know."""
    module: ModuleType = bindings.load().stablehlo
    named = [getattr(value, "OPERATION_NAME", None) for value in vars(module).values()]
    return {name.removeprefix("stablehlo.") for name in named if name}


# Their results have no elements that could be wrong.
EMPTY = {"numerics.empty", "numerics.set_dimension_size.0"}


def numerical() -> list[Check]:
    return [check for check in CHECKS.values() if check.group == "numerics"]


@pytest.mark.parametrize("part", range(4))
def test_no_numerical_check_passes_garbage(part: int) -> None:
    context = recording.context()
    wrong = [
        check.name
        for check in numerical()[part::4]
        if check.name not in EMPTY and judge(check, context)[0] is not Status.FAIL
    ]
    assert not wrong
