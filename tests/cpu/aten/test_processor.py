"""Which instructions a processor has, and whether PyTorch's BLAS makes use of them."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from pjrt_bridge_cpu.aten import processor

AVX512 = "fpu sse2 avx avx2 fma f16c avx512f avx512bw"


@pytest.fixture(autouse=True)
def _nothing_read() -> Iterator[None]:
    cached = (
        processor._stated,
        processor.instructions,
        processor.maker,
        processor.blas_lacks_its_instructions,
    )
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.parametrize(
    ("stated", "lacks"),
    [
        (f"vendor_id\t: AuthenticAMD\nflags\t\t: {AVX512}\n", True),
        (f"vendor_id\t: GenuineIntel\nflags\t\t: {AVX512}\n", False),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx avx2 fma\n", False),
        ("Features\t: fp asimd sve bf16\n", False),
        ("", False),
    ],
)
def test_whose_instructions_the_blas_takes(
    stated: str, lacks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: stated)
    assert processor.blas_lacks_its_instructions() == lacks


def test_only_vector_instructions_count(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = f"flags : {AVX512}\n\nflags : fpu\n"
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: stated)
    assert processor.instructions().split() == [
        platform.machine(),
        *("avx", "avx2", "avx512bw", "avx512f", "f16c", "fma"),
    ]


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, encoding: str) -> str:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert processor.instructions() == platform.machine()
    assert not processor.blas_lacks_its_instructions()
