"""PyTorch's own CPU kernels, called from within programs of XLA's CPU plugin.

XLA's compiler for CPUs has no kernels for bfloat16, packs transposed weights element by element,
turns each convolution to channels-last and back, and goes through softmax one number at a time.
PyTorch has oneDNN, a BLAS and kernels of its own for all of that, and is in the same process. So a
program calls them where they are faster: one custom call, which runs an operator of ATen on the
program's buffers, on several threads, without a copy and without Python. The numbers are eager's,
and such a program is kept in the compile cache like any other.

- `native` is the custom call, in C: views of buffers, the operator by name, parts for threads.
- `operators` is the exact list of operators, in the words in which PyTorch states them.
- `calls` writes a call of one into a program.
- `library` finds PyTorch's library, compares those words, and registers the custom call.
- `rules`, `convolution`, `attention`, `products` and `rows` decide which uses are calls; others go
  the portable way. `as_eager` has those whose results depend on how PyTorch computes, and
  `subpixels` writes transposed convolutions as plain ones.
- `probe` tries each use in a process of its own. One that ends that process or gives other numbers
  than the operator itself is not used.
- `timing` measures what a call gains over XLA's own code, and `gains` tells that for any size.
- `findings` says what is known here: `outcomes` and `gains` ship what was found for known builds,
  and what is not known is tried and measured in the background, once for each build of the plugin
  and of PyTorch.

`PJRT_BRIDGE_ATEN=off` rules it all out; with `always` calls are made wherever they are right,
whatever they gain.
"""

from pjrt_bridge import environment

VARIABLE = "PJRT_BRIDGE_ATEN"
"""The variable that rules PyTorch's kernels out when it is `off`."""

_ALWAYS = "always"


def is_off() -> bool:
    """Whether the user has ruled PyTorch's kernels out."""
    return not is_always() and environment.is_off(VARIABLE)


def is_always() -> bool:
    """Whether calls are made without regard to what was measured."""
    return environment.value(VARIABLE).lower() == _ALWAYS
