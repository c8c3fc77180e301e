"""Operators that are recorded, and computed together (fused eager)."""
