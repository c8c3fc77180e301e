"""What programs may say, one module for each family of statements."""
