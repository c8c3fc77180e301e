"""Packages that a user may not have: which to install for a platform, a library, a topology.

This is the one place of the bridge that names devices. What is known *of* a device is in its
package, and reaches the bridge through hooks; only that a package is missing nobody else can say.
"""

from __future__ import annotations

from collections.abc import Mapping

INSTALL_DEFAULT = "for the CPU: pip install pjrt-bridge-cpu"
"""What to install where there is no plugin at all."""

INSTALL_BY_NAME: Mapping[str, str] = {
    "cpu": "pip install 'pjrt-bridge[cpu]'",
    "cuda": "pip install 'pjrt-bridge[cuda12]' or 'pjrt-bridge[cuda13]'",
    "oneapi": "pip install 'pjrt-bridge[oneapi]'",
    "reference": "pip install 'pjrt-bridge[reference]'",
    "rocm": "pip install 'pjrt-bridge[rocm]'",
    "tpu": "pip install 'pjrt-bridge[tpu]'",
}
"""What to install for a plugin that somebody names."""

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

_ROCM = (
    "AMD's ROCm 7 (packages of AMD's repository into /opt/rocm, or rocm-sdk-core and "
    "rocm-sdk-libraries from AMD's index of wheels; those on PyPI are placeholders)"
)
_ZE = "the Level Zero loader (libze1 of the system, newer than 1.8)"

BROUGHT_BY: Mapping[str, str] = {
    # jax-oneapi-pjrt 0.11.2 is linked with oneAPI 2025.1, whose wheels put them where it looks.
    "libmpi.so.12": "impi-rt",
    "libhwloc.so.15": "tcmlib",
    "libumf.so.0": "umf==0.10.*",
    "libur_": "intel-cmplr-lib-ur==2025.1.*",
    "libOpenCL.so.1": "intel-opencl-rt==2025.1.*",
    "libimf.so": "intel-cmplr-lib-rt==2025.1.*",
    "libintlc.so": "intel-cmplr-lib-rt==2025.1.*",
    "libirc.so": "intel-cmplr-lib-rt==2025.1.*",
    "libirng.so": "intel-cmplr-lib-rt==2025.1.*",
    "libsvml.so": "intel-cmplr-lib-rt==2025.1.*",
    "libsycl.so.8": "intel-sycl-rt==2025.1.*",
    "libmkl_sycl_blas.so.5": "onemkl-sycl-blas==2025.1.*",
    "libmkl_sycl_dft.so.5": "onemkl-sycl-dft==2025.1.*",
    "libmkl_sycl_lapack.so.5": "onemkl-sycl-lapack==2025.1.*",
    "libmkl_sycl_rng.so.5": "onemkl-sycl-rng==2025.1.*",
    "libmkl_sycl_sparse.so.5": "onemkl-sycl-sparse==2025.1.*",
    "libmkl_core.so.2": "mkl==2025.1.*",
    "libccl.so.1": "oneccl",
}
"""Wheels that bring shared libraries which vendors' plugins need, by how their names start."""

BROUGHT_OTHERWISE: Mapping[str, str] = {
    "libze_": _ZE,
    "libroc": _ROCM,
    "librccl": _ROCM,
    "libhip": _ROCM,
    "libhsa-": _ROCM,
    "libMIOpen": _ROCM,
    "libamdhip": _ROCM,
    "libamd_smi": _ROCM,
}
"""The same for what no wheel on PyPI brings."""
