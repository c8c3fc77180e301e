"""The sides in PyTorch: the bridge on both devices, eager and Inductor."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.gpu.models import Made, make
from benchmarks.gpu.side import Floats, Side, peaks
from benchmarks.gpu.works import OURS, Work

_MODES: dict[str, dict[str, Any]] = {
    "inductor": {},
    "inductor graphs": {"mode": "reduce-overhead"},
    "inductor tuned": {"mode": "max-autotune-no-cudagraphs"},
}
_ADD = """func.func @main(%a: tensor<64xf32>, %b: tensor<64xf32>) -> tensor<64xf32> {
  %0 = stablehlo.add %a, %b : tensor<64xf32>
  return %0 : tensor<64xf32>
}"""


def forget() -> None:
    """Give back what the work before has compiled and what it held of the device."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def set_form(form: str) -> None:
    """Set how exact products of float32 are."""
    exact = form == "f32"
    torch.set_float32_matmul_precision("highest" if exact else "high")
    torch.backends.cudnn.allow_tf32 = not exact


def prepare(work: Work, side: str, device: str) -> Side:
    """Make a work ready; nothing is compiled before the first call.

    Args:
        work: to be done.
        side: which of PyTorch's.
        device: of the sides that are not on `torch.device("pjrt")`, "cuda" or "cpu".
    """
    if side == "runtime":
        return _runtime(work)
    if side == "pjrt":
        from pjrt_bridge.torch_interop.device import use

        use()
    set_form(work.form)
    where = "pjrt" if side == "pjrt" else device
    torch.manual_seed(0)
    made = make(work, where)
    module = made.module.to(torch.bfloat16) if work.form == "bf16" else made.module
    module = module.to(where)
    inputs = [_as_form(x, work.form).to(where) for x in made.inputs]
    torch.set_grad_enabled(work.task == "training")
    compiled = _compiled(module, side)
    wait, memory = _waiting(where), _memory(where)
    if work.task == "training":
        step = _step(made, compiled, inputs, side)
        return Side(step, wait, _floats, _nothing, memory)
    if work.task == "decoding":
        graphs = side == "inductor graphs"
        decoding = _Decoding(compiled, inputs[0], inputs[1], graphs=graphs)
        return Side(decoding, wait, _floats, decoding.again, memory)
    return Side(lambda: compiled(*inputs), wait, lambda found: _floats(found[:1]), _nothing, memory)


def _as_form(x: torch.Tensor, form: str) -> torch.Tensor:
    return x.to(torch.bfloat16) if form == "bf16" and x.is_floating_point() else x


def _compiled(function: Any, side: str) -> Any:
    if side == "eager":
        return function
    if side in OURS:
        # Torch finds the backend by its name only where the package is installed.
        from pjrt_bridge.torch_interop.backend import pjrt

        return torch.compile(function, backend=pjrt, options={"fallback": "error"})
    return torch.compile(function, **_MODES[side])


def _step(
    made: Made, loss_of: Callable[..., Any], inputs: list[torch.Tensor], side: str
) -> Callable[[], torch.Tensor]:
    assert made.optimizer is not None, "training has an optimizer"
    optimizer = made.optimizer(made.module.parameters())
    update = _compiled(optimizer.step, side)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = loss_of(*inputs)
        loss.backward()
        update()
        return loss.detach()

    return step


class _Decoding:
    """Calls that each take the token before."""

    def __init__(
        self, step: Any, tokens: torch.Tensor, position: torch.Tensor, *, graphs: bool
    ) -> None:
        self._step = step
        self._first = tokens
        self._tokens = tokens
        self._position = position
        self._graphs = graphs

    def __call__(self) -> torch.Tensor:
        if self._graphs:
            torch.compiler.cudagraph_mark_step_begin()
        tokens, position, logits = self._step(self._tokens, self._position)
        if self._graphs:
            # The next run of the graph writes over its results.
            tokens, position = tokens.clone(), position.clone()
        self._tokens, self._position = tokens, position
        found: torch.Tensor = logits
        return found

    def again(self) -> None:
        """Go on with the first token."""
        self._tokens = self._first


def _runtime(work: Work) -> Side:
    from pjrt_bridge.torch_interop.device import use

    assert (work.model, work.batch) == ("add", 64), "the program adds 64 numbers"
    client = use()
    a, b = (client.put(x.numpy()) for x in make(work).inputs)
    executable = client.compile(_ADD)
    return Side(
        lambda: executable.execute([a, b])[0],
        lambda found: found.block_until_ready(),
        lambda found: found.to_numpy()[:1],
        _nothing,
        lambda: _stats(client.devices[0].memory_stats),
    )


def _nothing() -> None:
    """Nothing is to be done."""


def _floats(tensor: torch.Tensor) -> Floats:
    found: Floats = tensor.detach().cpu().float().numpy()
    return found


def _waiting(where: str) -> Callable[[Any], object]:
    if where == "cpu":
        return lambda result: None
    return lambda result: getattr(torch, where).synchronize()


def _memory(where: str) -> Callable[[], dict[str, int]]:
    if where == "cuda":
        return lambda: {
            "used": torch.cuda.max_memory_allocated(),
            "taken": torch.cuda.max_memory_reserved(),
        }
    return dict if where == "cpu" else lambda: _stats(torch.pjrt.memory_stats)  # type: ignore[attr-defined]


def _stats(told: Callable[[], Mapping[str, int]]) -> dict[str, int]:
    from pjrt_bridge.errors import Unimplemented

    try:
        return peaks(told())
    except Unimplemented:
        return {}
