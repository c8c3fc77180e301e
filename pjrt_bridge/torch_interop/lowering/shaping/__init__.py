"""New tensors, views of all elements, and parts at static positions."""
