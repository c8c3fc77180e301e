"""Reading and writing at computed positions."""
