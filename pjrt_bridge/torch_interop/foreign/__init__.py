"""Foreign functions as operators of torch: in eager, in graphs, with gradients, and mapped."""
