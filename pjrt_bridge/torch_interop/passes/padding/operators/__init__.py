"""The rules of padded operators, by family."""
