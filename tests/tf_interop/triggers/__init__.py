"""What could kill the process, and bad input, one function each; `__main__` runs them."""
