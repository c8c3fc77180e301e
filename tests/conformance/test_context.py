"""What checks work on: clients, pairs, a second process."""

from __future__ import annotations

import os
from typing import Any

import pytest

from pjrt_bridge.errors import FailedPrecondition, Internal, OptionError, PjrtError
from pjrt_bridge.runtime import Plugin
from pjrt_bridge_conformance import AbsentDevice, Context, Fail, Unsupported
from pjrt_bridge_conformance.context import Subject
from tests.plugins import cpu_library


def context(**options: Any) -> Context:
    return Context(Subject("cpu", options))


def double(context: Context, number: int, text: str) -> list[Any]:
    return [2 * number, text, len(context.client.devices)]


def die(context: Context) -> None:
    os.abort()


def fail(context: Context) -> None:
    raise ValueError("nothing works")


def lack(context: Context) -> None:
    raise Unsupported("not here")


def test_a_second_process() -> None:
    made = context(cpu_device_count=3)
    client = made.client
    assert made.elsewhere(double, 21, "ü") == [42, "ü", 3]
    assert client.closed
    assert made.client is not client
    with pytest.raises(Fail, match="a new process ended with status -6"):
        made.elsewhere(die)
    with pytest.raises(Fail, match="status 1: ValueError: nothing works"):
        made.elsewhere(fail)
    with pytest.raises(Unsupported, match="not here"):
        made.elsewhere(lack)


def test_clients() -> None:
    made = context()
    assert made.client is made.client
    assert len(made.client.devices) == 1
    with made.fresh() as fresh, made.second() as second:
        assert len({fresh, second, made.client}) == 3
    assert not made.client.closed


def test_a_pair_is_asked_for_where_there_is_one_device() -> None:
    made = context()
    assert len(made.pair.devices) == 2
    assert made.pair is made.pair
    assert made.pair is not made.client


def test_a_pair_is_the_client_where_that_has_two() -> None:
    made = context(cpu_device_count=2)
    assert made.pair is made.client


def test_no_pair_where_no_option_is_known() -> None:
    made = Context(Subject("mine", {"cpu_device_count": 1}))
    plugin = Plugin.from_address(context().plugin.api.address, name="mine")
    vars(made).update(plugin=plugin, info=context().info)
    with pytest.raises(AbsentDevice, match="the client has one device, two are needed"):
        _ = made.pair


def test_a_plugin_by_its_library() -> None:
    made = Context(Subject(f"mine:{cpu_library()}"))
    assert made.about()["library"] == str(cpu_library())
    assert "devices" not in made.about()
    assert len(made.pair.devices) > 1
    assert made.about()["platform_name"] == "cpu"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (PjrtError.from_code(9, "no GPU", plugin="p", function="Client_Create"), AbsentDevice),
        (PjrtError.from_code(13, "broken", plugin="p", function="Client_Create"), Internal),
        (OptionError("plugin 'p' made a client without devices from {}"), AbsentDevice),
        (OptionError("another"), OptionError),
    ],
)
def test_a_client_that_cannot_be_made_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception]
) -> None:
    calls = []

    def make(*arguments: Any) -> None:
        calls.append(arguments)
        raise error

    monkeypatch.setattr("pjrt_bridge_conformance.context.Client", make)
    made = context()
    for _ in range(3):
        with pytest.raises(raised):
            _ = made.client
    assert len(calls) == (3 if raised is OptionError else 1)


def test_no_second_client() -> None:
    made = context()
    _ = made.client
    refusal = FailedPrecondition("one at a time", code=9, plugin="p", function="Client_Create")

    def refuse() -> None:
        raise refusal

    vars(made)["fresh"] = refuse
    with pytest.raises(Unsupported, match=r"no second client in a process: .*one at a time"):
        made.second()
