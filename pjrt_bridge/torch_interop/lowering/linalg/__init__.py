"""Products of matrices, factorizations, systems and spectra."""
