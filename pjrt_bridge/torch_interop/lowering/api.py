"""The published names with which a plugin's package brings lowerings and kernels.

A lowering is a function of a `Context` and the arguments of an ATen operator, tensors as
`pjrt_bridge.stablehlo.Value`; it emits StableHLO through `Context.b`, a
`pjrt_bridge.stablehlo.Builder`. The hook `pjrt_bridge_lowerings` returns lowerings by operator
name. `Kernels` emits products, convolutions, reductions and attention of all portable lowerings;
the hook `pjrt_bridge_kernels` returns an instance of a derived class, which also lists composites.

| name | what it is |
|---|---|
| `Context` | the node that is lowered: builder, types of the outputs, ATen's common rules |
| `Lowering` | the type of a lowering |
| `find_lowering` | the portable lowering of an operator, for cases that an own one does not cover |
| `NotLowerable` | raised where a use of an operator cannot be lowered, with the reason |
| `NoLowering` | raised where an operator has no lowering |
| `Kernels` | the portable kernels, to derive from |
| `Attention` | the numbers of attention, for `Kernels.attention` |
| `Body` | what writes the decomposition of a composite |
| `Composite` | name, attributes and version of a composite, for `Kernels.composite` |
| `Convolution` | the attributes of a convolution, for `Kernels.convolution` |
| `Reduction` | the operations of a reduction, for `Kernels.reduce` |
| `FourierKind` | the kinds of Fourier transforms, for `Kernels.fourier` |
| `Scalar` | a Python number among an operator's arguments |
| `convert` | a value in another element type |
| `normalize_dim` | a dimension argument, counted from the front |
| `schema_of` | how the installed PyTorch states an operator |

The other modules of this package may change with any version.
"""

from pjrt_bridge.stablehlo.builder.values import Body
from pjrt_bridge.stablehlo.composites import Composite
from pjrt_bridge.stablehlo.kernel_attributes import Attention, Convolution, Reduction
from pjrt_bridge.stablehlo.kernels import FourierKind, Kernels, convert
from pjrt_bridge.torch_interop.lowering.context import Context, Scalar, normalize_dim
from pjrt_bridge.torch_interop.lowering.registry import (
    Lowering,
    NoLowering,
    NotLowerable,
    find_lowering,
)
from pjrt_bridge.torch_interop.schemas import schema_of

__all__ = [
    "Attention",
    "Body",
    "Composite",
    "Context",
    "Convolution",
    "FourierKind",
    "Kernels",
    "Lowering",
    "NoLowering",
    "NotLowerable",
    "Reduction",
    "Scalar",
    "convert",
    "find_lowering",
    "normalize_dim",
    "schema_of",
]
