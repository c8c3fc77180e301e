"""Frameworks for commands that can do without them: imported when something of theirs comes."""

from __future__ import annotations

import os

from pjrt_bridge.errors import OptionError


def need_torch(whose: object) -> None:
    """Import what `pjrt_bridge.torch_interop` has for commands.

    Args:
        whose: what needs it, for the message.

    Raises:
        OptionError: PyTorch cannot be imported; the text says what to install.
    """
    try:
        import pjrt_bridge.torch_interop.explaining  # noqa: F401
    except ImportError as error:
        raise OptionError(
            f"{whose} needs PyTorch, which cannot be imported ({error}): pip install torch==2.13.0"
        ) from error


def need_tensorflow(whose: object) -> None:
    """Import `pjrt_bridge.tf_interop`.

    Args:
        whose: what needs it, for the message.

    Raises:
        OptionError: TensorFlow cannot be imported; the text says what to install.
    """
    # It would tell of its own build on standard error otherwise; it reads this when it is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    try:
        import pjrt_bridge.tf_interop  # noqa: F401
    except ImportError as error:
        raise OptionError(f"{whose}: {error}") from error
