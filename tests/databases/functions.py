"""`hop_db`, `custom_op_db` and `autograd_function_db`: functions that are no operators of ATen.

A variant is `DTYPE DIRECTION`, as in the sweep over operators (`tests.opinfo`), which runs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch.testing._internal.autograd_function_db import autograd_function_db
from torch.testing._internal.custom_op_db import custom_op_db
from torch.testing._internal.hop_db import hop_db

from tests.databases.case import Case
from tests.opinfo import running
from tests.opinfo.case import Case as OperatorCase
from tests.sweeping.worker import Verdict

NAME = "functions"

_TYPES = (torch.float32, torch.float16, torch.int64, torch.bool)


@cache
def _entries() -> dict[str, Any]:
    return {info.full_name: info for info in [*hop_db, *custom_op_db, *autograd_function_db]}


def all_cases() -> Iterator[Case]:
    """Every case, in the order of the databases; some entries know no type of the CPU."""
    for name, info in _entries().items():
        for dtype in _TYPES:
            if dtype not in info.supported_dtypes("cpu"):
                continue
            word = str(dtype).removeprefix("torch.")
            yield Case(NAME, name, f"{word} forward", "compiled")
            if dtype.is_floating_point and info.supports_autograd:
                yield Case(NAME, name, f"{word} backward", "compiled")


def run_case(case: Case) -> Verdict:
    """Run a case as the sweep over operators does."""
    dtype, direction = case.variant.split()
    info = _entries()[case.entry]
    return running.run_case(OperatorCase(case.entry, dtype, direction), info)
