"""What descriptions of example inputs say, whatever the framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pjrt_bridge import dtypes, example_inputs
from pjrt_bridge.errors import DataError
from pjrt_bridge.example_inputs import Numbers


def described(text: str, *also: str) -> Any:
    def look(numbers: Numbers) -> Numbers:
        dtypes.from_stablehlo(numbers.element)
        return numbers

    return example_inputs.read(text, look, np.asarray, *also)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("f32[8,64]", Numbers("f32", (8, 64), 2)),
        ("i64[4, 128]<1000", Numbers("i64", (4, 128), 1000)),
        (" bf16[] ", Numbers("bf16", (), 2)),
        ("i1[3,]", Numbers("i1", (3,), 2)),
    ],
)
def test_random_numbers(text: str, numbers: Numbers) -> None:
    assert described(text) == numbers


def test_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    assert described(str(tmp_path / "a.npy")).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f33[2]", "input 'f33[2]': StableHLO element type 'f33' has no PJRT element type"),
        (
            "f32[2",
            "input 'f32[2': no such file, and no description such as 'f32[8,64]' or "
            "'i64[4,128]<1000'",
        ),
        (
            "f32[1 2]",
            "input 'f32[1 2]': no such file, and no description such as 'f32[8,64]' or "
            "'i64[4,128]<1000'",
        ),
    ],
)
def test_what_is_no_description(text: str, message: str) -> None:
    with pytest.raises(DataError) as error:
        described(text)
    assert str(error.value) == message


def test_what_a_framework_takes_beside() -> None:
    with pytest.raises(DataError, match=r"'f32\[8,64\]', 'i64\[4,128\]<1000' or 'words'"):
        described("nothing", "words")


@pytest.mark.parametrize("content", [b"", b"no array"], ids=["empty", "text"])
def test_files_that_hold_no_array(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"input .*a\.npy: found a file that begins with b"):
        described(str(path))
