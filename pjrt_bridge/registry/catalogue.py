"""Packages that a user may not have: which to install for a platform, a library, a topology.

This is the one place of the bridge that names devices. What is known *of* a device is in its
package, and reaches the bridge through hooks; only that a package is missing nobody else can say.
"""

from __future__ import annotations

from collections.abc import Mapping

INSTALL_DEFAULT = "for the CPU: pip install pjrt-bridge-cpu"
"""What to install where there is no plugin at all."""

INSTALL_FOR_TOPOLOGY = "pjrt-bridge-tpu (v5e:2x2, ...) or pjrt-bridge-cuda (h100, ...)"
"""Packages that know topologies by name."""

BARE_PACKAGES = ("libtpu",)
"""Python packages around one vendor library, which declare no plugin."""

SET_UP_BY: Mapping[str, str] = {"libtpu.so": "pjrt-bridge-tpu"}
"""Libraries that cannot be used as they are, with the package that knows how.

A client of libtpu asks the metadata service of Google's cloud for minutes where there is none. All
that the other vendors' libraries lack by themselves are good defaults.
"""

GUARDED_BY: Mapping[str, str] = {"cpu": "pjrt-bridge-cpu"}
"""Platforms whose plugins give wrong results in silence, with the package that knows how not to."""
