"""Matrix products, convolution, linear algebra, FFT, random bits and custom calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings
from pjrt_bridge.stablehlo.builder.emitter import Emitter
from pjrt_bridge.stablehlo.builder.sharding_rules import custom_call_rule
from pjrt_bridge.stablehlo.builder.structured import Padding, window_count
from pjrt_bridge.stablehlo.builder.values import Value, check_dims, check_length
from pjrt_bridge.stablehlo.precision import ORDER, Precision, stated
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.wrong_arguments import checked_methods


@checked_methods
class NumericalOps(Emitter):
    """Operations that plugins usually hand to tuned kernels."""

    def dot_general(
        self,
        lhs: Value,
        rhs: Value,
        *,
        lhs_batch: Sequence[int] = (),
        rhs_batch: Sequence[int] = (),
        lhs_contract: Sequence[int],
        rhs_contract: Sequence[int],
        out_dtype: DType | str | None = None,
        precision: Precision | None = None,
    ) -> Value:
        """Batched contraction; the result has batch, then free lhs, then free rhs dimensions.

        Args:
            lhs: left operand.
            rhs: right operand.
            lhs_batch: batch dimensions of lhs.
            rhs_batch: the matching ones of rhs.
            lhs_contract: dimensions of lhs that are summed over.
            rhs_contract: the matching ones of rhs.
            out_dtype: element type of sums and result; None: lhs'.
            precision: how exact the plugin must multiply floats (`precision_config`); None: as the
                builder's `precisions` have it.
        """
        op = "stablehlo.dot_general"
        lhs_dims, rhs_dims = (*lhs_batch, *lhs_contract), (*rhs_batch, *rhs_contract)
        check_dims(op, "lhs_batch + lhs_contract", lhs_dims, lhs.rank)
        check_dims(op, "rhs_batch + rhs_contract", rhs_dims, rhs.rank)
        shape = (
            *(lhs.shape[dim] for dim in lhs_batch),
            *(size for dim, size in enumerate(lhs.shape) if dim not in lhs_dims),
            *(size for dim, size in enumerate(rhs.shape) if dim not in rhs_dims),
        )
        numbers = bindings.load().stablehlo.DotDimensionNumbers.get(
            lhs_batching_dimensions=list(lhs_batch),
            rhs_batching_dimensions=list(rhs_batch),
            lhs_contracting_dimensions=list(lhs_contract),
            rhs_contracting_dimensions=list(rhs_contract),
            context=self._context,
        )
        attributes = {"dot_dimension_numbers": numbers, **self._precision(op, lhs, precision)}
        dtype = lhs.dtype if out_dtype is None else dtypes.of(out_dtype)
        return self._emit_one(op, (lhs, rhs), attributes, TensorType(shape, dtype))

    def convolution(
        self,
        lhs: Value,
        rhs: Value,
        *,
        window_strides: Sequence[int],
        padding: Padding,
        lhs_dilation: Sequence[int] | None = None,
        rhs_dilation: Sequence[int] | None = None,
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        window_reversal: Sequence[bool] | None = None,
        dimension_numbers: tuple[str, str, str],
        out_dtype: DType | str | None = None,
        precision: Precision | None = None,
    ) -> Value:
        """Convolution (correlation, unless the window is reversed).

        Args:
            lhs: input.
            rhs: kernel.
            window_strides: per spatial dimension.
            padding: (low, high) per spatial dimension.
            lhs_dilation: of the input (transposed convolution), default 1.
            rhs_dilation: of the kernel, default 1.
            feature_group_count: groups of input features.
            batch_group_count: groups of the batch.
            window_reversal: spatial dimensions along which the kernel is flipped.
            dimension_numbers: layouts of input, kernel and output such as
                `("NCHW", "OIHW", "NCHW")`. N is the batch, C the feature dimension, O and I the
                kernel's output and input features; other letters name spatial dimensions and
                their order in the input is the order of the sequences above.
            out_dtype: element type of sums and result; None: lhs'.
            precision: how exact the plugin must multiply floats (`precision_config`); None: as the
                builder's `precisions` have it.
        """
        op = "stablehlo.convolution"
        lhs_spec, rhs_spec, out_spec = dimension_numbers
        spatial = "".join(c for c in lhs_spec if c not in "NC")
        for name, spec, fixed, rank in (
            ("input", lhs_spec, "NC", lhs.rank),
            ("kernel", rhs_spec, "OI", rhs.rank),
            ("output", out_spec, "NC", lhs.rank),
        ):
            if len(spec) != rank or sorted(spec) != sorted(fixed + spatial):
                raise ProgramError(
                    f"{op}: {name} layout {spec!r} must be an order of {fixed + spatial!r} "
                    f"with one letter per dimension (rank {rank})"
                )
        count = len(spatial)
        base = [1] * count if lhs_dilation is None else lhs_dilation
        inner = [1] * count if rhs_dilation is None else rhs_dilation
        reversal = [False] * count if window_reversal is None else window_reversal
        for name, items in (
            ("window_strides", window_strides),
            ("padding", padding),
            ("lhs_dilation", base),
            ("rhs_dilation", inner),
            ("window_reversal", reversal),
        ):
            check_length(op, name, items, count)
        if batch_group_count < 1:
            raise ProgramError(f"{op}: batch_group_count must be >= 1, found {batch_group_count}")
        sizes = {
            "N": lhs.shape[lhs_spec.index("N")] // batch_group_count,
            "C": rhs.shape[rhs_spec.index("O")],
        }
        for i, letter in enumerate(spatial):
            sizes[letter] = window_count(
                op,
                lhs.shape[lhs_spec.index(letter)],
                rhs.shape[rhs_spec.index(letter)],
                window_strides[i],
                base[i],
                inner[i],
                padding[i],
            )
        numbers = bindings.load().stablehlo.ConvDimensionNumbers.get(
            input_batch_dimension=lhs_spec.index("N"),
            input_feature_dimension=lhs_spec.index("C"),
            input_spatial_dimensions=[lhs_spec.index(c) for c in spatial],
            kernel_input_feature_dimension=rhs_spec.index("I"),
            kernel_output_feature_dimension=rhs_spec.index("O"),
            kernel_spatial_dimensions=[rhs_spec.index(c) for c in spatial],
            output_batch_dimension=out_spec.index("N"),
            output_feature_dimension=out_spec.index("C"),
            output_spatial_dimensions=[out_spec.index(c) for c in spatial],
            ctx=self._context,
        )
        attributes = {
            "window_strides": self._dims(window_strides),
            "padding": self._padding(padding),
            "lhs_dilation": self._dims(base),
            "rhs_dilation": self._dims(inner),
            "window_reversal": self._ir.DenseBoolArrayAttr.get(list(reversal), self._context),
            "dimension_numbers": numbers,
            "feature_group_count": self._int(feature_group_count),
            "batch_group_count": self._int(batch_group_count),
            **self._precision(op, lhs, precision),
        }
        dtype = lhs.dtype if out_dtype is None else dtypes.of(out_dtype)
        result = TensorType(tuple(sizes[c] for c in out_spec), dtype)
        return self._emit_one(op, (lhs, rhs), attributes, result)

    @contextmanager
    def as_precise_as(self, operation: Any) -> Iterator[None]:
        """Have operations that do not state their precision take that of one of MLIR."""
        before, self._stated = self._stated, stated(operation)
        try:
            yield
        finally:
            self._stated = before

    def _precision(self, op: str, lhs: Value, precision: Precision | None) -> dict[str, Any]:
        if precision is None:
            precision = self._stated
        if precision is None and self._precisions is not None:
            precision = self._precisions.of(op, lhs.dtype)
            self.took_precisions = True
        if precision is None or precision == "DEFAULT":
            return {}
        if precision not in ORDER:
            raise ProgramError(f"{op}: precision {precision!r} is none of DEFAULT HIGH HIGHEST")
        attribute = bindings.load().stablehlo.PrecisionAttr.get(precision, self._context)
        return {"precision_config": self._ir.ArrayAttr.get([attribute] * 2, self._context)}

    def cholesky(self, x: Value, lower: bool) -> Value:
        """Cholesky factor of symmetric positive definite matrices (last two dimensions)."""
        return self._emit_one("stablehlo.cholesky", (x,), {"lower": self._bool(lower)})

    def triangular_solve(
        self,
        a: Value,
        b: Value,
        *,
        left_side: bool,
        lower: bool,
        unit_diagonal: bool,
        transpose_a: Literal["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"] = "NO_TRANSPOSE",
    ) -> Value:
        """Solve op(a) x = b (or x op(a) = b) for triangular matrices a.

        Args:
            a: triangular matrices, [..., n, n].
            b: right-hand sides, [..., n, k] or [..., k, n].
            left_side: a stands left of x.
            lower: a is a lower triangle.
            unit_diagonal: take a's diagonal as ones.
            transpose_a: NO_TRANSPOSE, TRANSPOSE or ADJOINT.
        """
        op = "stablehlo.triangular_solve"
        attributes = {
            "left_side": self._bool(left_side),
            "lower": self._bool(lower),
            "unit_diagonal": self._bool(unit_diagonal),
            "transpose_a": self._enum(op, "transpose", transpose_a),
        }
        return self._emit_one(op, (a, b), attributes)

    def fft(
        self, x: Value, kind: Literal["FFT", "IFFT", "RFFT", "IRFFT"], length: Sequence[int]
    ) -> Value:
        """Fourier transform over the last `len(length)` dimensions.

        Args:
            x: operand: complex, for RFFT real.
            kind: FFT, IFFT, RFFT or IRFFT; inverses divide by the number of elements.
            length: sizes of the transformed (for IRFFT resulting) dimensions.
        """
        op = "stablehlo.fft"
        attributes = {
            "fft_type": self._enum(op, "fft_type", kind),
            "fft_length": self._dims(length),
        }
        return self._emit_one(op, (x,), attributes)

    def rng_bit_generator(
        self,
        state: Value,
        shape: Sequence[int],
        dtype: DType | str,
        algorithm: Literal["DEFAULT", "THREE_FRY", "PHILOX"] = "DEFAULT",
    ) -> tuple[Value, Value]:
        """Uniform random bits.

        Args:
            state: uint64[2] for THREE_FRY, uint64[2] or [3] for PHILOX.
            shape: shape of the bits.
            dtype: integer or float type of the bits.
            algorithm: DEFAULT leaves it to the plugin: other plugins, other bits.

        Returns:
            The next state and the bits.
        """
        op = "stablehlo.rng_bit_generator"
        attributes = {"rng_algorithm": self._enum(op, "rng_algorithm", algorithm)}
        bits = TensorType(tuple(shape), dtypes.of(dtype))
        after, drawn = self._emit(op, (state,), attributes, (state.type, bits))
        return after, drawn

    def _enum(self, op: str, kind: str, value: str) -> Any:
        try:
            return self._ir.Attribute.parse(f"#stablehlo<{kind} {value}>", self._context)
        except self._ir.MLIRError as error:
            raise ProgramError(f"{op}: {kind} {value!r}: {bindings.explain(error)}") from None

    # -- custom calls -----------------------------------------------------------------------

    def custom_call(
        self,
        target: str,
        operands: Sequence[Value],
        results: Sequence[TensorType],
        *,
        backend_config: str | Mapping[str, Any] = "",
        api_version: int | None = None,
        has_side_effect: bool = False,
        operand_layouts: Sequence[Sequence[int]] | None = None,
        result_layouts: Sequence[Sequence[int]] | None = None,
        in_place: Mapping[int, int] = MappingProxyType({}),
        dimensions: str | None = None,
        undivided: str = "",
    ) -> tuple[Value, ...]:
        """Call a kernel that the plugin knows by name.

        Args:
            target: the name.
            operands: its operands.
            results: its result types.
            backend_config: opaque text, or attributes for a typed FFI handler: bool, int (i64),
                float (f64), str, NumPy scalars (their own type), NumPy arrays and nested mappings.
            api_version: `CustomCallApiVersion`; None: 4 (typed FFI) for a mapping, else 1.
            has_side_effect: keep the call where its results are unused.
            operand_layouts: minor-to-major order per operand; needs `result_layouts` too.
            result_layouts: minor-to-major order per result.
            in_place: by result the operand in whose memory it is written; a compiler copies that
                one first where it is read again.
            dimensions: which dimensions belong together, a letter for each:
                `"bqd,bkd,bkd->bqd"` for attention. Programs that are divided over a mesh divide
                the call along them; None leaves it whole.
            undivided: letters of dimensions that the kernel needs whole: `"qkd"`.

        Raises:
            ProgramError: letters that do not fit the shapes.
        """
        op = "stablehlo.custom_call"
        typed = not isinstance(backend_config, str)
        version = api_version if api_version is not None else (4 if typed else 1)
        self.has_effects = self.has_effects or has_side_effect
        i32 = self._ir.IntegerType.get_signless(32, self._context)
        attributes = {
            "call_target_name": self._str(target),
            "has_side_effect": self._bool(has_side_effect),
            "backend_config": self._config(op, backend_config),
            "api_version": self._ir.IntegerAttr.get(i32, version),
        }
        for name, layouts in (
            ("operand_layouts", operand_layouts),
            ("result_layouts", result_layouts),
        ):
            if layouts is not None:
                attributes[name] = self._layouts(layouts)
        if in_place:
            aliases = [
                f"#stablehlo.output_operand_alias<output_tuple_indices = "
                f"{[result] if len(results) > 1 else []}, operand_index = {operand}, "
                "operand_tuple_indices = []>"
                for result, operand in sorted(in_place.items())
            ]
            attributes["output_operand_aliases"] = self._ir.Attribute.parse(
                f"[{', '.join(aliases)}]", self._context
            )
        if dimensions is not None:
            shapes = [item.shape for item in operands], [item.shape for item in results]
            rule = custom_call_rule(target, dimensions, undivided, *shapes)
            attributes["sdy.sharding_rule"] = self._ir.Attribute.parse(rule, self._context)
        return self._emit(op, operands, attributes, results)

    def _layouts(self, layouts: Sequence[Sequence[int]]) -> Any:
        ir = self._ir
        index = ir.IndexType.get(self._context)
        return ir.ArrayAttr.get(
            [
                ir.DenseElementsAttr.get(
                    np.asarray(layout, np.int64),
                    type=ir.RankedTensorType.get([len(layout)], index, loc=self._unknown),
                    context=self._context,
                )
                for layout in layouts
            ],
            self._context,
        )

    def _config(self, op: str, value: Any) -> Any:
        ir = self._ir
        if isinstance(value, str):
            return self._str(value)
        if isinstance(value, bool | np.bool_):
            return self._bool(bool(value))
        if isinstance(value, Mapping):
            items = {str(key): self._config(op, item) for key, item in value.items()}
            return ir.DictAttr.get(items, self._context)
        if isinstance(value, np.ndarray):
            return self._dense(value, None)[0]
        if isinstance(value, int | float | np.generic):
            dtype = dtypes.from_numpy(np.asarray(value).dtype)
            element = self._element(dtype)
            if dtype.is_integer:
                return ir.IntegerAttr.get(element, int(value))
            if dtype.is_float:
                return ir.FloatAttr.get(element, float(value), loc=self._unknown)
        raise ProgramError(
            f"{op}: backend_config holds a {type(value).__name__}; expected bool, int, float, str, "
            "a NumPy scalar or array, or a mapping of these"
        )
