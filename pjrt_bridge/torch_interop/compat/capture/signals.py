"""Transforms of signals that torch traces for the sizes of their tensors alone, made of others."""

from __future__ import annotations

import torch

_aten = torch.ops.aten


def istft(
    input: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> torch.Tensor:
    """`torch.istft` (`SpectralOps.cpp`).

    Raises:
        RuntimeError: an argument is not one that PyTorch takes; it runs the call then, and raises.
    """
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    if not input.is_complex() or input.dim() not in (2, 3) or input.numel() == 0:
        raise RuntimeError("istft expects complex frames in two or three dimensions")
    frames, size = input.shape[-1], input.shape[-2]
    whole = n_fft + hop * (frames - 1)
    half = onesided if onesided is not None else size != n_fft
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else whole - start
    if (
        size != (n_fft // 2 + 1 if half else n_fft)
        or not 0 < hop <= width <= n_fft
        or (window is not None and (window.dim() != 1 or window.shape[0] != width))
        or (half and return_complex)
        or (window is not None and window.is_complex() and not return_complex)
        or end <= start
    ):
        raise RuntimeError("istft does not take these sizes")
    real = input.real.dtype
    place = input.new_ones(width, dtype=real) if window is None else window
    left = (n_fft - width) // 2
    place = torch.constant_pad_nd(place, [left, n_fft - width - left], 0)
    rows = (input if input.dim() == 3 else input.unsqueeze(0)).transpose(1, 2)
    norm = "ortho" if normalized else "backward"
    if return_complex:
        rows = torch.fft.ifft(rows, norm=norm)
    else:
        rows = torch.fft.irfft(rows[..., : n_fft // 2 + 1], n_fft, norm=norm)
    made = _added(rows * place, whole, n_fft, hop)[:, start:end]
    weight = _added(place.pow(2).expand(1, frames, n_fft), whole, n_fft, hop)[:, start:end]
    _aten._assert_async.msg(
        weight.abs().min() >= 1e-11, "istft: window overlap add min: windows add up to 0"
    )
    made = made / weight
    if end > whole:
        made = torch.constant_pad_nd(made, [0, end - whole], 0)
    return made if input.dim() == 3 else made.squeeze(0)


def _added(windows: torch.Tensor, whole: int, size: int, step: int) -> torch.Tensor:
    """The sums of windows that overlap, along a second dimension of so many elements."""
    made: torch.Tensor = _aten.unfold_backward(windows, [windows.shape[0], whole], 1, size, step)
    return made
