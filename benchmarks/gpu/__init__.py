"""Models on a GPU: the bridge beside jax.jit on the same plugin, eager PyTorch and Inductor."""
