"""CompileOptions: impossible values, and the bytes that plugins get."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt_bridge.errors import OptionError
from pjrt_bridge.runtime import CompileOptions

Fields = list[tuple[int, Any]]


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> Fields:
    """The fields of a protobuf message: number, and int or bytes."""
    found: Fields = []
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
            found.append((key >> 3, value))
            continue
        size, at = (8, at) if key & 7 == 1 else varint(data, at)
        found.append((key >> 3, data[at : at + size]))
        at += size
    return found


def build_options(options: CompileOptions) -> dict[int, Any]:
    """ExecutableBuildOptionsProto: the third field."""
    return dict(fields(dict(fields(options.serialize()))[3]))


def test_the_least_that_is_sent_names_one_replica_and_one_partition() -> None:
    found = build_options(CompileOptions())
    assert found == {1: (1 << 64) - 1, 4: 1, 5: 1}


def test_every_field() -> None:
    options = CompileOptions(
        num_replicas=2,
        num_partitions=3,
        use_shardy_partitioner=True,
        device_assignment=[[0, 1, 2], [300, 4, 5]],
    )
    found = build_options(options)
    assert (found[4], found[5], found[6], found[19]) == (2, 3, 1, 1)
    assignment = fields(found[9])
    assert assignment[:2] == [(1, 2), (2, 3)]
    columns = [dict(fields(column))[1] for _, column in assignment[2:]]
    assert columns == [b"\x00\xac\x02", b"\x01\x04", b"\x02\x05"]
    assert options.num_devices == 6


def test_spmd_follows_the_partitions_unless_it_is_said() -> None:
    assert 6 not in build_options(CompileOptions(num_replicas=2))
    assert build_options(CompileOptions(num_partitions=2))[6] == 1
    assert 6 not in build_options(CompileOptions(num_partitions=2, use_spmd_partitioning=False))
    assert build_options(CompileOptions(use_spmd_partitioning=True))[6] == 1


def test_portable() -> None:
    assert dict(fields(CompileOptions(portable=True).serialize()))[4] == 1


def test_flags() -> None:
    values = {"s": "text", "t": True, "f": False, "i": -1, "d": 0.5}
    found = fields(CompileOptions(env=values).serialize())
    sent = {}
    for number, entry in found:
        if number == 7:
            parts = dict(fields(entry))
            sent[parts[1].decode()] = fields(parts[2])
    assert sent == {
        "s": [(1, b"text")],
        "t": [(2, 1)],
        "f": [(2, 0)],
        "i": [(3, (1 << 64) - 1)],
        "d": [(4, b"\0\0\0\0\0\0\xe0?")],
    }


@given(replicas=st.integers(1, 1 << 20), partitions=st.integers(1, 1 << 20))
def test_numbers_of_every_size(replicas: int, partitions: int) -> None:
    found = build_options(CompileOptions(num_replicas=replicas, num_partitions=partitions))
    assert (found[4], found[5]) == (replicas, partitions)


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None, (1 << 20) + 1, 1 << 70])
@pytest.mark.parametrize("name", ["num_replicas", "num_partitions"])
def test_impossible_numbers(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=rf"CompileOptions\.{name}: found .*expected an int"):
        CompileOptions(**{name: value})


@pytest.mark.parametrize("value", [1, 0, "true", 1.0, []])
@pytest.mark.parametrize("name", ["use_spmd_partitioning", "use_shardy_partitioner", "portable"])
def test_impossible_switches(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=rf"CompileOptions\.{name}: found .*expected a bool"):
        CompileOptions(**{name: value})


@pytest.mark.parametrize("name", ["use_shardy_partitioner", "portable"])
def test_switches_without_a_default(name: str) -> None:
    with pytest.raises(OptionError, match="found None"):
        CompileOptions(**{name: None})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rows",
    [[], [[]], [[0], [1]], [[0, 1]], 0, "0", [0], [["0"]], [[1.0]], [[None]], [[-1]], [[1 << 31]]],
)
def test_impossible_assignments(rows: Any) -> None:
    with pytest.raises(OptionError, match=r"CompileOptions\.device_assignment: found"):
        CompileOptions(device_assignment=rows)


def test_a_device_cannot_be_assigned_twice() -> None:
    with pytest.raises(OptionError, match="different device ids"):
        CompileOptions(num_replicas=2, device_assignment=[[1], [1]])


@pytest.mark.parametrize(
    "more", [{"num_replicas": 2}, {"num_partitions": 2}, {"device_assignment": [[0]]}]
)
def test_what_portable_excludes(more: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"CompileOptions\.portable needs"):
        CompileOptions(portable=True, **more)


@pytest.mark.parametrize(
    "env",
    [
        {"flag": None},
        {"flag": [1]},
        {"flag": b"1"},
        {"flag": 1j},
        {"flag": 1 << 63},
        {"flag": -(1 << 63) - 1},
        {"flag": "\ud800"},
        {"\ud800": 1},
        {1: 1},
        [("flag", 1)],
        "flag=1",
        None,
    ],
)
def test_impossible_flags(env: Any) -> None:
    with pytest.raises(OptionError, match=r"CompileOptions\.env"):
        CompileOptions(env=env)
