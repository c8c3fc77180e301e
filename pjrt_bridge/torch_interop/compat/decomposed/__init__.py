"""Decompositions: operators of torch as other operators of torch."""
