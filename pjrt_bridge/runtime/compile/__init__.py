"""Compiling programs: options, the cache on disk, flags, serialized executables."""
