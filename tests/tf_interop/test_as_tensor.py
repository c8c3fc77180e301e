"""Arrays of any kind as tensors of TensorFlow: over their memory where that is safe."""

from __future__ import annotations
