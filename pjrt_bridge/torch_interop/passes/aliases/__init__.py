"""Results that are views: computed by PyTorch from the memory that they are views of.

AOTAutograd promises for each result what it is: a tensor of its own, an argument, a view of an
argument or a view of another result. It regenerates a view of an argument from the geometry of the
tensor that the graph returns, and expects two views of one intermediate to share its memory. So a
compiled graph computes the tensors that own memory, and an epilogue of view operators runs in
PyTorch after it, on the arguments and on these tensors. This holds for known and symbolic sizes.

    before: graph(x, n) -> slice(x, n), permute(exp(x)), exp(x)
    after:  graph(x, n) -> exp(x)            epilogue(x, n, e) -> slice(x, n), permute(e), e

A view of an argument that the graph writes into is a view of the old value, which is copied first;
where AOTAutograd says that a result is a view of the new value, it is one of the argument.
"""
