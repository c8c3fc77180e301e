"""Rewrites of ATen graphs before they are placed and emitted; each says what it takes and gives."""
