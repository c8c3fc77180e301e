"""Functions that StableHLO lacks: operations of CHLO, decomposed when the program is finished."""

from __future__ import annotations

from pjrt_bridge.stablehlo.builder.emitter import Emitter
from pjrt_bridge.stablehlo.builder.values import Value
from pjrt_bridge.wrong_arguments import checked_methods


@checked_methods
class ChloOps(Emitter):
    """Unary elementwise functions of CHLO."""

    def _chlo(self, op: str, x: Value) -> Value:
        self._used_chlo = True
        return self._emit_one(op, (x,))

    def acos(self, x: Value) -> Value:
        """Arc cosine."""
        return self._chlo("chlo.acos", x)

    def acosh(self, x: Value) -> Value:
        """Inverse hyperbolic cosine."""
        return self._chlo("chlo.acosh", x)

    def asin(self, x: Value) -> Value:
        """Arc sine."""
        return self._chlo("chlo.asin", x)

    def asinh(self, x: Value) -> Value:
        """Inverse hyperbolic sine."""
        return self._chlo("chlo.asinh", x)

    def atan(self, x: Value) -> Value:
        """Arc tangent."""
        return self._chlo("chlo.atan", x)

    def atanh(self, x: Value) -> Value:
        """Inverse hyperbolic tangent."""
        return self._chlo("chlo.atanh", x)

    def cosh(self, x: Value) -> Value:
        """Hyperbolic cosine."""
        return self._chlo("chlo.cosh", x)

    def sinh(self, x: Value) -> Value:
        """Hyperbolic sine."""
        return self._chlo("chlo.sinh", x)

    def erf(self, x: Value) -> Value:
        """Error function."""
        return self._chlo("chlo.erf", x)

    def erfc(self, x: Value) -> Value:
        """Complementary error function, accurate for large x."""
        return self._chlo("chlo.erfc", x)

    def erf_inv(self, x: Value) -> Value:
        """Inverse of the error function."""
        return self._chlo("chlo.erf_inv", x)

    def lgamma(self, x: Value) -> Value:
        """Logarithm of the absolute value of the gamma function."""
        return self._chlo("chlo.lgamma", x)

    def digamma(self, x: Value) -> Value:
        """Derivative of lgamma."""
        return self._chlo("chlo.digamma", x)
