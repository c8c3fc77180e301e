"""Results that are views: made by PyTorch of the memory that they are views of.

AOTAutograd promises for each result what it is: a tensor of its own, an argument, a view of an
argument or a view of another result. It makes a view of an argument anew from the geometry of the
tensor that the graph returns, and expects two views of one intermediate to share its memory. So
there is one rule, for sizes that are known and for symbolic ones: a compiled graph computes the
tensors that own memory, and the operators that only view them run in PyTorch after it, on the
arguments and on these tensors.

    before: graph(x, n) -> slice(x, n), permute(exp(x)), exp(x)
    after:  graph(x, n) -> exp(x)            epilogue(x, n, e) -> slice(x, n), permute(e), e

A view of an argument that the graph writes into is a view of the old value, which is copied first;
where AOTAutograd says that a result is a view of the new value, it is one of the argument.
"""
