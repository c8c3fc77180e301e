"""The operators of ATen that programs call, in the words in which PyTorch states them.

Arguments reach an operator as words without types, so the list is exact: where PyTorch states an
operator otherwise, nothing is called by that name (`library`), and `native` compares every call
with the operator's parameters.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from typing import Any

REQUIRED = object()
"""The default of a parameter that has none."""

_CODES = {
    "Tensor": "t",
    "int": "i",
    "SymInt": "i",
    "bool": "b",
    "float": "f",
    "int[]": "l",
    "int[1]": "l",
    "SymInt[]": "l",
    "bool[2]": "m",
    "bool[3]": "m",
}
_WRITTEN = "o"
_UNUSED = "u"


@dataclass(frozen=True)
class SchemaParameter:
    """A parameter of an operator.

    Attributes:
        name: in calls by keyword.
        kind: its type without what it may be besides, such as `Tensor`, `int[]` or `float`.
        written: whether it is a tensor that the operator writes into.
        optional: whether it may be None.
        default: what it is where a call does not say; or `REQUIRED`.
    """

    name: str
    kind: str
    written: bool
    optional: bool
    default: Any

    @property
    def code(self) -> str:
        """A letter for `native/run.c`: what an argument has to be; a capital where it may be None.

        A type that no call needs is `u`: such an argument is None.
        """
        code = _WRITTEN if self.written else _CODES.get(self.kind, _UNUSED)
        return code.upper() if self.optional else code


@dataclass(frozen=True)
class Operator:
    """An operator of ATen.

    Attributes:
        schema: as PyTorch states it.
        lengths: what an operator that does not look itself takes for granted, by parameter,
            between commas: a letter for each dimension, where the same letter is the same length
            and none is 0; after `~` it may also be 1 or absent, as in broadcasting.
    """

    schema: str
    lengths: str = ""

    @property
    def name(self) -> str:
        """Such as `aten::mm`."""
        return self._head.partition(".")[0]

    @property
    def overload(self) -> str:
        """Such as `out`; empty for the one without a name."""
        return self._head.partition(".")[2]

    @property
    def _head(self) -> str:
        return self.schema.partition("(")[0]

    @cached_property
    def parameters(self) -> tuple[SchemaParameter, ...]:
        """All of them, in their order."""
        inside = self.schema.partition("(")[2].rpartition(") -> ")[0]
        return tuple(_parameter(text) for text in inside.split(", ") if text != "*")

    @property
    def returns(self) -> int:
        """How many tensors it returns."""
        stated = self.schema.rpartition(") -> ")[2]
        return stated.count(", ") + 1 if stated.startswith("(") else 1

    @property
    def signature(self) -> tuple[str, str, str, str, int]:
        """All that `native` knows.

        Name, overload, codes of the parameters and their lengths, how many tensors it returns.
        """
        codes = "".join(parameter.code for parameter in self.parameters)
        return self.name, self.overload, codes, self.lengths, self.returns

    def __str__(self) -> str:
        return f"{self.name}.{self.overload or 'default'}"


def _parameter(text: str) -> SchemaParameter:
    words, equals, default = text.partition("=")
    stated, _, name = words.rpartition(" ")
    # What aliases what stands in parentheses, and what is written has an exclamation mark there.
    kind, _, alias = stated.removesuffix("?").partition("(")
    value = ast.literal_eval(default) if equals else REQUIRED
    return SchemaParameter(name, kind, "!" in alias, stated.endswith("?"), value)


MM = Operator("aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)")
BMM = Operator("aten::bmm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)")
LINEAR = Operator(
    "aten::linear.out(Tensor input, Tensor weight, Tensor? bias=None, *, Tensor(a!) out)"
    " -> Tensor(a!)"
)
CONVOLUTION = Operator(
    "aten::convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, "
    "SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, "
    "SymInt groups) -> Tensor"
)
ONEDNN_CONVOLUTION = Operator(
    "aten::mkldnn_convolution(Tensor self, Tensor weight, Tensor? bias, SymInt[] padding, "
    "SymInt[] stride, SymInt[] dilation, SymInt groups) -> Tensor"
)
CONVOLUTION_BACKWARD = Operator(
    "aten::convolution_backward(Tensor grad_output, Tensor input, Tensor weight, "
    "SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding, SymInt[] dilation, "
    "bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask)"
    " -> (Tensor, Tensor, Tensor)"
)
ATTENTION = Operator(
    "aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, "
    "float dropout_p=0., bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None)"
    " -> (Tensor output, Tensor logsumexp)",
    "bhld,bhsd,bhsd,,,~bhls,",
)
ATTENTION_BACKWARD = Operator(
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, "
    "Tensor key, Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, "
    "Tensor? attn_mask=None, float? scale=None)"
    " -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
    "bhld,bhld,bhsd,bhsd,bhld,bhl,,,~bhls,",
)
SOFTMAX = Operator(
    "aten::_softmax.out(Tensor self, int dim, bool half_to_float, *, Tensor(a!) out) -> Tensor(a!)"
)
LOG_SOFTMAX = Operator(
    "aten::_log_softmax.out(Tensor self, int dim, bool half_to_float, *, Tensor(a!) out)"
    " -> Tensor(a!)"
)
CUMSUM = Operator(
    "aten::cumsum.out(Tensor self, int dim, *, ScalarType? dtype=None, Tensor(a!) out)"
    " -> Tensor(a!)"
)
CUMPROD = Operator(
    "aten::cumprod.out(Tensor self, int dim, *, ScalarType? dtype=None, Tensor(a!) out)"
    " -> Tensor(a!)"
)
LOGCUMSUMEXP = Operator(
    "aten::logcumsumexp.out(Tensor self, int dim, *, Tensor(a!) out) -> Tensor(a!)"
)
TOPK = Operator(
    "aten::topk.values(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True, *, "
    "Tensor(a!) values, Tensor(b!) indices) -> (Tensor(a!) values, Tensor(b!) indices)"
)
FFT = Operator(
    "aten::_fft_c2c(Tensor self, SymInt[] dim, int normalization, bool forward) -> Tensor"
)
RFFT = Operator(
    "aten::_fft_r2c(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor"
)
IRFFT = Operator(
    "aten::_fft_c2r(Tensor self, int[] dim, int normalization, SymInt last_dim_size) -> Tensor"
)
EIG = Operator("aten::linalg_eig(Tensor self) -> (Tensor eigenvalues, Tensor eigenvectors)")
MATRIX_EXP = Operator("aten::linalg_matrix_exp(Tensor self) -> Tensor")
GRID_SAMPLER_2D = Operator(
    "aten::grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, "
    "bool align_corners) -> Tensor"
)
GRID_SAMPLER_3D = Operator(
    "aten::grid_sampler_3d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, "
    "bool align_corners) -> Tensor"
)
GRID_SAMPLER_2D_BACKWARD = Operator(
    "aten::grid_sampler_2d_backward(Tensor grad_output, Tensor input, Tensor grid, "
    "int interpolation_mode, int padding_mode, bool align_corners, bool[2] output_mask)"
    " -> (Tensor, Tensor)"
)
GRID_SAMPLER_3D_BACKWARD = Operator(
    "aten::grid_sampler_3d_backward(Tensor grad_output, Tensor input, Tensor grid, "
    "int interpolation_mode, int padding_mode, bool align_corners, bool[2] output_mask)"
    " -> (Tensor, Tensor)"
)

OPERATORS: tuple[Operator, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Operator)
)
"""All of them."""
