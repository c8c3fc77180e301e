"""Building the compiled module, with a hash of its sources, by which a stale one is known.

`pjrt_bridge.native_modules` compares the hash when it loads the module. The distributions
pjrt_bridge and pjrt_bridge_cpu are built apart, so each has this file; a test compares the two.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext


class BuildNative(build_ext):
    """Defines the macro `REVISION`, a string."""

    def build_extension(self, ext: Extension) -> None:
        """Compile an extension whose sources are all in one folder."""
        sources = sorted(Path(ext.sources[0]).parent.glob("*.[ch]"))
        parts = [part for path in sources for part in (path.name.encode(), path.read_bytes())]
        revision = sha256(b"\0".join(parts)).hexdigest()
        ext.define_macros.append(("REVISION", f'"{revision}"'))
        # An object file that is newer than the sources may have been made of others.
        self.force = True
        super().build_extension(ext)
