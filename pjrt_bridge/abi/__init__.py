"""The PJRT C API as data, and the checked calls into a plugin."""
