"""Layers of neural networks: activations, convolutions, pooling, attention, normalization."""
