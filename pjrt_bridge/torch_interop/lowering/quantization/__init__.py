"""Quantized weights and activations, and what imitates them in training."""
