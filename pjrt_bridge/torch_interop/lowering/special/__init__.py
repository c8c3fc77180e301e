"""Special functions: Airy, Bessel, error, gamma, orthogonal polynomials."""
