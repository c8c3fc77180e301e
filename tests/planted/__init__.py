"""Faults that are planted into copies of the product, to see that its tests find them."""
