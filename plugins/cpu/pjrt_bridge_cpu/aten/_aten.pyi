"""PyTorch's CPU kernels as custom calls; see `_aten.c`."""

from os import PathLike

HANDLER: int
"""Address of the XLA_FFI_Handler."""

def connect(path: str | PathLike[str]) -> None:
    """Find the functions of libtorch_cpu at a path, without which the handler refuses calls.

    Raises:
        OSError: there is no library.
        LookupError: a function is missing.
    """
