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
        processor.has_wide_vectors,
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


@pytest.mark.parametrize(
    ("flags", "wide"),
    [
        (AVX512, False),
        # Cooper Lake is of the first kind, with instructions for bfloat16.
        (f"{AVX512} avx512_bf16", False),
        (f"{AVX512} avx512_vbmi2", True),
        (f"{AVX512} avx512_vbmi2 avx512_bf16", True),
        ("", False),
    ],
)
def test_which_processors_are_as_fast_with_wide_vectors(
    flags: str, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: f"flags : {flags}\n")
    assert processor.has_wide_vectors() == wide


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
